# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What other tools say of the exam's cases: hotsos of the text, ``kmem -i`` of crash and of drgn of
the vmcore.

    rivals.py RAW CASES VMLINUX --hotsos .venv-rivals/bin/hotsos

reads what ``exam.py --raw RAW --cases CASES`` kept, prints a line a case and tool, and writes
tests/exam/rivals.json, of which docs/exam.md has a table. Figures without a judgement neither
find nor clear.

Costs: ten seconds a case.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "exam" / "rivals.json"
DRGN = 'from drgn.commands import run_command; run_command(prog, "crash kmem -i")'
# Words of hotsos's memory checks, by the cause that they speak of.
MEANS = {
    "fragmented": ("limited high order memory", "compaction"),
    "hugetlb": ("hugepages which are consuming",),
    "oom": ("oom-killer", "out of memory"),
    "oom-cgroup": ("oom-killer", "out of memory"),
}
TROUBLE, FIGURES, NOTHING, UNREAD = "trouble", "figures", "nothing", "does not read this"


def run(command: Sequence[str | Path], typed: str = "") -> tuple[int, str]:
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


def hotsos(program: Path, raw: Path) -> tuple[str, str]:
    """Its issues of a tree that has the log where sos puts it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "sos")
        shutil.copytree(raw / "text", tree)
        (tree / "var" / "log").mkdir(parents=True)
        log = (raw / "dmesg.txt").read_text(errors="replace").splitlines()
        stamped = "".join(f"Nov 29 06:00:00 host kernel: {line}\n" for line in log)
        (tree / "var" / "log" / "kern.log").write_text(stamped)
        code, said = run([program, "--kernel", "--force", "--format", "json", tree])
    if code:
        return UNREAD, ""
    # A line of its log comes first.
    issues = json.loads(said[said.index("{") :]).get("kernel", {}).get("potential-issues", {})
    return (TROUBLE, json.dumps(issues)) if issues else (NOTHING, "")


def crash(raw: Path, vmlinux: Path) -> tuple[str, str]:
    _, said = run(["crash", "-s", vmlinux, raw / "vmcore"], "kmem -i\nquit\n")
    return (FIGURES, said) if "TOTAL MEM" in said else (UNREAD, "")


def drgn(raw: Path, vmlinux: Path) -> tuple[str, str]:
    program = Path(sys.executable).with_name("drgn")
    _, said = run([program, "-c", raw / "vmcore", "-s", vmlinux, "-e", DRGN])
    return (FIGURES, said) if "TOTAL MEM" in said else (UNREAD, "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask other tools about cases of the exam.")
    parser.add_argument("raw", type=Path)
    parser.add_argument("cases", type=Path)
    parser.add_argument("vmlinux", type=Path)
    parser.add_argument("--hotsos", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    for raw in sorted(asked.raw.iterdir()):
        truth = json.loads((asked.cases / raw.name / "truth.json").read_text())
        for tool, (word, said) in {
            "hotsos": hotsos(asked.hotsos, raw),
            "crash `kmem -i`": crash(raw, asked.vmlinux),
            "drgn `crash kmem -i`": drgn(raw, asked.vmlinux),
        }.items():
            words = MEANS.get(truth["cause"], ())
            rows.append({
                "case": raw.name, "tool": tool, "sick": bool(truth["cause"]), "word": word,
                "cause_right": word == TROUBLE and any(each in said.lower() for each in words),
                "owner_right": any(name in said for name in truth.get("owner") or ()),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    KEPT.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
