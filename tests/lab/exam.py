# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The exam: cases are played in guests, seen in four ways, and what mmscope says of each is scored.

    make exam SEED=1 KINDS=process-leak,idle WAYS=vmcore,watch CASES=folder

prints a JSON line a case and way, and a last one with the sums. Cases that the folder has are not
played again; without a folder they are made in one that goes. A kind whose trouble did not come
about is said on stderr, and is no case.

Costs: a minute and a half a case, most of it emulation, and a minute for each shape of machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from archive import LabError
from capture import one_at_a_time
from exam_kinds import KINDS, Kind
from exam_machine import SHAPES, Machines
from roles import resolve

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
from exam_kept import keep  # noqa: E402
from exam_page import page  # noqa: E402
from exam_score import WAYS, Marked, all_sums, mark  # noqa: E402

MEMORY = 1536 << 20


class Exam:
    """Cases of one kernel, in a folder."""

    def __init__(
        self,
        kernel: str,
        cases: Path,
        work: Path,
        say: Callable[[str], None],
        raw: Path | None = None,
        shape: str = "",
    ) -> None:
        self._kernel, self.cases, self._work, self._say = kernel, cases, work, say
        self._raw, self._shape = raw, shape
        self._machines: Machines | None = None

    def case(self, kind: Kind, seed: int) -> Path | None:
        """A case's folder: a bundle for each way, and its truth. None: it did not come about."""
        folder = self.cases / f"{kind.name}-{seed}"
        if (folder / "truth.json").exists():
            return folder
        with one_at_a_time():
            if self._machines is None:
                self._machines = Machines(self._kernel, self._work / "machines", self._say)
            work = self._work / f"{kind.name}-{seed}"
            # Emulation has flaws that another go does not meet.
            for _ in range(2):
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir(parents=True)
                began = time.monotonic()
                try:
                    self._machines.play(self._shape or kind.shape, self._named(kind, seed), work)
                    break
                except LabError as error:
                    self._say(f"{kind.name}: {error}")
                    if "NotPlanted" in str(error):
                        break
            else:
                return None
        if not (work / "truth.json").exists():
            shutil.rmtree(work)
            return None
        self._say(f"{kind.name}: played in {time.monotonic() - began:.0f} s")
        self._read(work, folder)
        shutil.rmtree(work)
        return folder

    def _named(self, kind: Kind, seed: int) -> dict[str, object]:
        balloon = kind.balloon * random.Random(f"{seed} {kind.name}").uniform(0.9, 1.2)
        return {
            "kind": kind.name,
            "seed": seed,
            "cause": kind.cause,
            "like": kind.like,
            "kernel": self._kernel,
            "shape": self._shape or kind.shape,
            "balloon": int(MEMORY * balloon),
        }

    def _read(self, work: Path, folder: Path) -> None:
        """A bundle of each way; the guest has made those of the text and the watch."""
        assert self._machines is not None
        made = work / "bundles"
        made.mkdir()
        symbols = str(self._machines.kernel.vmlinux)
        (work / "log").rename(work / "dmesg.txt")
        collect(made / "vmcore", "--core", str(work / "vmcore"), "--symbols", symbols)
        collect(made / "log", str(work / "dmesg.txt"))
        if self._raw:
            raw = self._raw / folder.name
            raw.mkdir(parents=True)
            for name in ("vmcore", "text", "dmesg.txt"):
                (work / name).rename(raw / name)
        (work / "collected").rename(made / "text")
        (work / "watch").rename(made / "watch")
        (work / "truth.json").rename(made / "truth.json")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)


def collect(to: Path, *what: str) -> None:
    command = [sys.executable, "-m", "mmscope", "collect", *what, "-o", str(to), "--no-findings"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode > 1:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")


def chosen(names: str) -> list[Kind]:
    if not names:
        return list(KINDS.values())
    unknown = [name for name in names.split(",") if name not in KINDS]
    if unknown:
        raise LabError(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return [KINDS[name] for name in names.split(",")]


def marked(
    exam: Exam, kinds: Sequence[Kind], seeds: Sequence[int], ways: Sequence[str]
) -> Iterator[Marked]:
    for seed in seeds:
        for kind in kinds:
            folder = exam.case(kind, seed)
            if folder is None:
                print(f"{kind.name} of seed {seed}: not planted, no case", file=sys.stderr)
                continue
            truth = json.loads((folder / "truth.json").read_text())
            for way in ways:
                began = time.monotonic()
                one = mark(folder / way, truth, way)
                yield dataclasses.replace(one, seconds=round(time.monotonic() - began, 2))


def main() -> int:
    parser = argparse.ArgumentParser(description="Score mmscope on planted and innocent machines.")
    parser.add_argument("--seeds", default="1", help="with commas between (default: 1)")
    parser.add_argument("--kinds", default="", help="with commas between (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between (default: all)")
    parser.add_argument("--cases", type=Path, help="folder of cases, made earlier or now")
    parser.add_argument("--kernel", default="6.12", help="a row or role of kernels.toml")
    parser.add_argument("--shape", default="", choices=SHAPES, help="of each machine (by kind)")
    parser.add_argument("--work", type=Path, help="folder that keeps the waiting machines")
    parser.add_argument("--raw", type=Path, help="folder that keeps cores and text, for rivals.py")
    parser.add_argument("--keep", action="store_true", help="keep them in tests/exam; docs/exam.md")
    asked = parser.parse_args()
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f}] {line}", file=sys.stderr, flush=True)

    marks = []
    with tempfile.TemporaryDirectory(prefix="mmscope-exam-") as temporary:
        try:
            kernel = resolve(asked.kernel, say)
            work = asked.work or Path(temporary)
            exam = Exam(kernel, asked.cases or work / "cases", work, say, asked.raw, asked.shape)
            seeds = [int(seed) for seed in asked.seeds.split(",")]
            for one in marked(exam, chosen(asked.kinds), seeds, asked.ways.split(",")):
                marks.append(one)
                print(one.line(), flush=True)
        except LabError as error:
            print(f"exam: {error}", file=sys.stderr)
            return 1
        if asked.keep:
            kept = keep(exam.cases, WAYS)
            (ROOT / "docs" / "exam.md").write_text(page(kept))
    print(json.dumps(all_sums(marks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
