# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook of deploy/crash-kernel over machines too large to be dumped, within the limits that its
unit sets: 150 s, and 150 MiB of a memory cgroup. What is bounded is all of the hook, and the page
cache that the core takes, which /proc/vmcore does not; what it shares with others is theirs.

    python tests/bench/bench_crash_kernel.py 64 1020       sizes in GiB; as root

The machines are emulated, and their memory is a sparse file, as ``bench_scale.py`` has it: 1,020
GiB, the most that can be, take a quarter of an hour to boot and 20 GiB of disk, and go afterwards.
Where $XDG_CACHE_HOME/mmscope/lab/sparse is a btrfs that compresses (a loop device, mounted with
``compress-force=zstd:1``), it is 1.5 GiB.
Types and symbols are the dump's own. Cannot: say how long the same takes in a crash kernel, which
runs on one CPU and maps each page that it reads.
"""

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench_scale import KEPT_GIB, MMSCOPE, ROOT, run, sparse_machine

from mmscope.reports.bundle.bundle import Bundle

HOOK = ROOT / "deploy/crash-kernel/crash-kernel"
SECONDS, BYTES = 150, 150 << 20


def memory_cgroup(name: str) -> Path:
    """A memory cgroup that takes so much, of either version."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup", root, name)
        if (folder.parent / "cgroup.procs").exists():
            folder.mkdir(exist_ok=True)
            (folder / limit).write_text(str(BYTES))
            return folder
    raise SystemExit("this machine has no memory cgroups")


def main() -> None:
    """Make each machine, run the hook, and say what it took and what it left."""
    for gib in map(int, sys.argv[1:]):
        core = sparse_machine(gib, lambda text: print(text, file=sys.stderr)).vmcore
        group = memory_cgroup("mmscope-bench")
        with tempfile.TemporaryDirectory() as folder:
            inside = 'echo $$ > "$0/cgroup.procs"; exec env MMSCOPE="$1" MMSCOPE_CORE="$2" "$3" '
            inside += f'"$4" {SECONDS}'
            took = run("sh", "-c", inside, group, MMSCOPE, core, HOOK, folder)
            print(
                f"{gib:,} GiB: {took.seconds:.1f} s, {took.cpu_seconds:.1f} s of CPU, "
                f"{took.peak_bytes >> 20} MiB at most, {took.read_bytes >> 20:,} MiB from the disk"
            )
            for path in sorted(Path(folder).glob("*/*/datapackage.json"), reverse=True):
                bundle = Bundle(path.parent)
                statuses = Counter(section.status for section in bundle.sections)
                print(f"  {path.parent.name}: {len(bundle.tables)} tables; {dict(statuses)}")
                for one in bundle.sections:
                    if one.status in ("failed", "partial"):
                        print(f"    {one.section}: {one.status}: {one.message}")
            for words in sorted(Path(folder).glob("*/why-*.txt")):
                print(words.read_text())
        group.rmdir()
        if gib > KEPT_GIB:
            shutil.rmtree(core.parent)


if __name__ == "__main__":
    main()
