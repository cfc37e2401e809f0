# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook of deploy/crash-kernel in a real crash kernel: a guest crashes, and in the memory that
crashkernel=256M left it the hook reads /proc/vmcore, as it is meant to, then killed, with too
little memory, its own and the machine's, with too little time, and with a full disk. Behind each
the dump is saved, as things are then, and the last is read here: both say the same, cell by cell.
The machine reboots whatever became of the hook, and what pstore kept is read then.

    make crash-kernel      (or: python tests/lab/crash_kernel.py KERNEL MEMORY [CASE…])

The crash kernel's root is a disk, as with kdump-tools, with what `make runtime` makes. Costs: three
boots and some 20 minutes of one emulated CPU, which is some 40 times as slow; 3 GiB of disk. Ends
with 1 where something is not as it should be; how long it took is printed, not held.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import kernels
import live
import machine
import make_runtime
from architectures import AMD64
from archive import LabError
from roles import resolve

from mmscope.reports.bundle.bundle import Bundle

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
SECONDS = 3 * 3600
PSTORE = ("reed_solomon", "ramoops")
# name, seconds, bytes: the unit's; too few bytes; all of the crash kernel's own memory taken while
# all sections are read; too few seconds; one that is killed then; and a disk that is full, as the
# last, as pstore keeps the end of the log.
CASES = (
    ("as_meant", 6000, 150 << 20),
    ("too_tight", 6000, 48 << 20),
    ("out_of_memory", 6000, 0),
    ("too_late", 30, 150 << 20),
    ("killed", 6000, 150 << 20),
    ("disk_full", 6000, 150 << 20),
)


def say(text: str) -> None:
    print(f"  lab: {text}", file=sys.stderr, flush=True)


def make_tree(tree: Path, kernel: kernels.Kernel, initramfs: Path, cases: Any) -> None:
    """The disk: what the hook needs, the crash kernel, and the program that is its init."""
    tree.mkdir()
    path = ["/site", str(make_runtime.make(tree))]
    begin = f"import os, sys\nos.environ |= {live.ENVIRONMENT!r}\nsys.path[:0] = {path!r}\n"
    for name in ("boot", "sbin", "out", "tmp/ballast"):
        (tree / name).mkdir()
    for path in (kernel.vmlinuz, initramfs, *kernel.modules):
        if path.suffix != ".ko" or path.stem in PSTORE:
            shutil.copy(path, tree / "boot" / path.name)
    program = (PROGRAMS / "crash_init.py").read_text()
    (tree / "sbin/init").write_text(f"#!/python\n{begin}{program}")
    (tree / "asked.json").write_text(json.dumps(cases))
    (tree / "sbin/init").chmod(0o755)


def boot(folder: Path, kernel: kernels.Kernel, initramfs: Path, memory: str) -> str:
    """
    Crash the machine; what was on its console.

    :raises LabError: it did not come to its end.
    """
    console = folder / "console.log"
    drives = []
    for name in ("disk.ext4", "core"):
        drives += ["-drive", f"file={folder / name},format=raw,if=virtio,cache=unsafe"]
    # A MiB for pstore, which is in nobody's way.
    line = f"console=ttyS0 panic=-1 crashkernel=256M memmap=1M$0x50000000 no5lvl {AMD64.options} "
    qemu = children.start(
        [
            *("qemu-system-x86_64", "-accel", "tcg,thread=single", *live.CPU),
            # More than this machine has: what the guest does not touch costs nothing.
            *("-object", f"memory-backend-ram,id=ram,size={memory},reserve=off"),
            *("-machine", "q35,memory-backend=ram", "-m", memory, "-smp", "1"),
            *("-nodefaults", "-display", "none"),
            *("-serial", f"file:{console}", "-kernel", kernel.vmlinuz, "-initrd", initramfs),
            *("-append", line + live.WITHOUT_CX16.get(kernel.name, ""), *drives),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        qemu.wait(SECONDS)
    finally:
        qemu.kill()
        qemu.wait()
    words = console.read_text(errors="replace")
    if "crash: " not in words or "] done" not in words:
        raise LabError("it did not come to its end:\n" + "\n".join(words.splitlines()[-30:]))
    return words


def crashed(folder: Path, name: str, memory: str, cases: Any) -> dict[str, Any]:
    """Make the disk, crash the machine, take off the disk what was left; what its init said."""
    kernel = kernels.get(resolve(name, say), say, PSTORE, symbols=False)
    init, tree = folder / "init", folder / "tree"
    source = PROGRAMS / "switch_root.c"
    words = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, source]
    children.run(words, check=True)
    modules = [path for path in kernel.modules if path.stem not in ("qemu_fw_cfg", *PSTORE)]
    initramfs = machine.build_initramfs(folder, init, modules)
    say("making the disk")
    make_tree(tree, kernel, initramfs, cases)
    size = sum(path.lstat().st_size for path in tree.rglob("*")) + (256 << 20)
    image = folder / "disk.ext4"
    children.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, image, str(size >> 10)], check=True)
    shutil.rmtree(tree)
    with (folder / "core").open("wb") as core:
        core.truncate(128 << 30)
    say(f"crashing {kernel.release}, with {memory}")
    boot(folder, kernel, initramfs, memory)
    children.run(["debugfs", "-R", f"rdump /out {folder}", image], check=True, capture_output=True)
    said: dict[str, Any] = json.loads((folder / "out/said.json").read_text())
    with (folder / "core").open("r+b") as core:
        core.truncate(said[cases[-1][0]]["size"])
    return said


def collected(core: Path, bundle: Path) -> Bundle:
    """The bundle of the saved dump, read here."""
    words = [*(sys.executable, "-m", "mmscope", "collect", "--core", core, "-o", bundle)]
    children.run([*words, "--no-findings", "--jobs", "1"], cwd=ROOT, check=True)
    return Bundle(bundle)


def bundles(case: Path) -> dict[str, Bundle]:
    """What a run of the hook left, by its name."""
    return {
        path.parent.name: Bundle(path.parent)
        for path in sorted(case.glob("*/*/datapackage.json"), reverse=True)
    }


def unlike(one: Bundle, other: Bundle) -> Iterator[str]:
    """Tables of a bundle that the other has not, cell by cell."""
    for table in one.tables:
        if table != "sections" and (
            table not in other.tables or list(one.rows(table)) != list(other.rows(table))
        ):
            yield f"{table} is not that of the saved dump"
    yield from (f"{s.section}: {s.message}" for s in one.sections if s.status == "failed")


def wrong(out: Path, said: dict[str, Any], dump: Bundle) -> Iterator[str]:
    """What is not as it should be."""
    said = {name: said[name] for name, *_ in CASES if name in said}
    if len({(case["size"], case["crc"]) for case in said.values()}) != 1:
        yield "a dump is not that which was saved before"
    for name, case in said.items():
        words, left = (out / f"{name}.txt").read_text(), bundles(out / name)
        print(f"{name}: {case}, left: {', '.join(left) or 'nothing'}\n{words}")
        if case["code"]:
            yield f"{name}: the hook ended with {case['code']}"
        for which, bundle in left.items():
            yield from (f"{name}: {which}: {what}" for what in unlike(bundle, dump))
        missing = {"first", "all"} - left.keys()
        if name != "disk_full" and any(
            f"{each}: no bundle: exit status" not in words for each in missing
        ):
            yield f"{name}: what is not there is not said to be missing"
        # Once for each bundle, and of a full disk for that which is in memory.
        told = len(re.findall("^(?:verdict |mmscope: why: nothing of )", words, re.MULTILINE))
        if told != max(len(left), name == "disk_full"):
            yield f"{name}: `why` did not say what it should"
        if name in ("as_meant", "disk_full") and "why: nothing of" in words:
            yield f"{name}: `why` said nothing"
        if name == "as_meant" and (missing or {*dump.tables} - {*left["all"].tables}):
            yield f"{name}: not all was read"
        if name == "out_of_memory" and not case["kills"]:
            yield f"{name}: the kernel killed nothing"
        if name in ("killed", "out_of_memory") and [*left] != ["first"]:
            yield f"{name}: left {[*left]}"
        if name in ("too_tight", "too_late", "disk_full") and left:
            yield f"{name}: it was enough: take less"
    yield from not_kept(out, words)


def not_kept(out: Path, words: str) -> Iterator[str]:
    """What pstore has not, after the reboot, of the last lines of `why`."""
    records = sorted(out.glob("pstore-dmesg-ramoops-*"))
    if not records:
        yield "pstore has nothing"
    kept = "\n".join(path.read_text(errors="replace") for path in records)
    lines = [line for line in words.splitlines() if line and not line.startswith("mmscope: ")]
    yield from (f"not in pstore: {line}" for line in lines if f"mmscope: {line}" not in kept)


def main() -> int:
    """Crash, compare, and say what is wrong."""
    kernel, memory, *asked = [*sys.argv[1:], *("stable", "1536M")[len(sys.argv) - 1 :]]
    cases = [case for case in CASES if not asked or case[0] in asked]
    with tempfile.TemporaryDirectory(prefix="mmscope-crash-") as made:
        try:
            said = crashed(Path(made), kernel, memory, cases)
            dump = collected(Path(made) / "core", Path(made) / "dump")
            found = list(wrong(Path(made) / "out", said, dump))
        except LabError as error:
            print(f"crash_kernel.py: {error}", file=sys.stderr)
            return 1
        finally:
            children.end_all()
    print(f"{kernel}, {memory}:", "\n".join(found) or "as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    children.exit_if_killed()
    sys.exit(main())
