# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook of deploy/crash-kernel in a real crash kernel: a guest crashes, and in the memory that
crashkernel=256M left it the hook reads /proc/vmcore, as it is meant to, then killed, with too
little memory and with too little time. The dump is saved behind it all, and read here: both say
the same, cell by cell. The machine reboots whatever became of the hook.

    make crash-kernel      (or: python tests/lab/crash_kernel.py MEMORY [CASE…])

The crash kernel's root is a disk, as with kdump-tools: this machine's Python with drgn, numpy,
rich, and what `why` needs. Costs: two boots and some 10 minutes of one emulated CPU, which is some
40 times as slow; 3 GiB of disk. Ends with 1 where something is not as it should be; how long it
took is printed, not held.
"""

import importlib.metadata
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
from architectures import AMD64
from archive import LabError
from roles import resolve

from mmscope.reports.bundle.bundle import Bundle

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
SECONDS = 3 * 3600
# What `why` needs beside what collects.
FOR_WHY = ("duckdb", "_duckdb", "jinja2", "markupsafe")
SHELL = ("sh", "timeout", "date", "mkdir", "sync", "cat")
# name, seconds, bytes: the unit's; too few bytes; too little left of the crash kernel's own memory
# (of which that much is available); too few seconds; and one that is killed.
CASES = (
    ("as_meant", 6000, 150 << 20),
    ("too_tight", 6000, 48 << 20),
    ("out_of_memory", 6000, 56 << 20),
    ("too_late", 3, 150 << 20),
    ("killed", 6000, 150 << 20),
)
COMMAND = """#!/bin/sh
PYTHONPATH=/site:{dynload} exec /python -m mmscope "$@"
"""


def say(text: str) -> None:
    print(f"  lab: {text}", file=sys.stderr, flush=True)


def make_tree(tree: Path, kernel: kernels.Kernel, initramfs: Path, cases: Any) -> None:
    """The disk: what the hook needs, the crash kernel, and the program that is its init."""
    shell = [Path(shutil.which(name) or name).resolve() for name in SHELL]
    tree.mkdir()
    live.build_site(tree, None, [])
    for name, path in zip(SHELL, shell, strict=True):
        shutil.copy(path, tree / "bin" / name)
    begin = live.build_python(tree, shell, live.ON_BOX + FOR_WHY)
    # DuckDB asks for its own version.
    described = importlib.metadata.distribution("duckdb").locate_file("")
    for info in Path(str(described)).glob("duckdb-*.dist-info"):
        shutil.copytree(info, tree / "site" / info.name)
    for name in ("boot", "sbin", "tmp/ballast"):
        (tree / name).mkdir()
    shutil.copy(kernel.vmlinuz, tree / "boot/vmlinuz")
    shutil.copy(initramfs, tree / "boot/initramfs")
    shutil.copy(ROOT / "deploy/crash-kernel/crash-kernel", tree / "hook")
    (dynload,) = re.findall(r"'(/\S+/lib-dynload)'", begin)
    (tree / "bin/mmscope").write_text(COMMAND.format(dynload=dynload))
    program = (PROGRAMS / "crash_init.py").read_text()
    (tree / "sbin/init").write_text(f"#!/python\n{begin}{program}")
    (tree / "asked.json").write_text(json.dumps(cases))
    for path in ("bin/mmscope", "sbin/init"):
        (tree / path).chmod(0o755)


def boot(folder: Path, kernel: kernels.Kernel, initramfs: Path, memory: str) -> str:
    """
    Crash the machine; what was on its console.

    :raises LabError: it did not reboot after all.
    """
    console = folder / "console.log"
    drives = []
    for name in ("disk.ext4", "core"):
        drives += ["-drive", f"file={folder / name},format=raw,if=virtio,cache=unsafe"]
    line = f"console=ttyS0 panic=-1 crashkernel=256M no5lvl {AMD64.options} "
    qemu = children.start(
        [
            *("qemu-system-x86_64", "-accel", "tcg,thread=single", *live.CPU, "-machine", "q35"),
            *("-smp", "1", "-m", memory, "-no-reboot", "-nodefaults", "-display", "none"),
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


def crashed(folder: Path, memory: str, cases: Any) -> dict[str, Any]:
    """Make the disk, crash the machine, take off the disk what was left; what its init said."""
    kernel = kernels.get(resolve("stable", say), say, symbols=False)
    init, tree = folder / "init", folder / "tree"
    source = PROGRAMS / "switch_root.c"
    words = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, source]
    children.run(words, check=True)
    modules = [path for path in kernel.modules if "fw_cfg" not in path.name]
    initramfs = machine.build_initramfs(folder, init, modules)
    say("making the disk")
    make_tree(tree, kernel, initramfs, cases)
    size = sum(path.lstat().st_size for path in tree.rglob("*")) + (256 << 20)
    image = folder / "disk.ext4"
    children.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, image, str(size >> 10)], check=True)
    shutil.rmtree(tree)
    with (folder / "core").open("wb") as core:
        core.truncate(64 << 30)
    say(f"crashing {kernel.release}, with {memory}")
    boot(folder, kernel, initramfs, memory)
    children.run(["debugfs", "-R", f"rdump /out {folder}", image], check=True, capture_output=True)
    said: dict[str, Any] = json.loads((folder / "out/said.json").read_text())
    with (folder / "core").open("r+b") as core:
        core.truncate(said["saved"])
    return said


def collected(core: Path, bundle: Path) -> Bundle:
    """The bundle of the saved dump, read here."""
    words = [*(sys.executable, "-m", "mmscope", "collect", "--core", core, "-o", bundle)]
    children.run([*words, "--no-findings", "--jobs", "1"], cwd=ROOT, check=True)
    return Bundle(bundle)


def bundles(case: Path) -> dict[str, Bundle]:
    """What a run of the hook left, by its name."""
    (folder,) = case.iterdir()
    return {
        name: Bundle(folder / name)
        for name in ("first", "all")
        if (folder / name / "datapackage.json").exists()
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
    for name, *_ in CASES:
        if name not in said:
            continue
        words, left = (out / f"{name}.txt").read_text(), bundles(out / name)
        print(f"{name}: {said[name]}, left: {', '.join(left) or 'nothing'}\n{words}")
        if said[name]["code"]:
            yield f"{name}: the hook ended with {said[name]['code']}"
        for which, bundle in left.items():
            yield from (f"{name}: {which}: {what}" for what in unlike(bundle, dump))
        missing = {"first", "all"} - left.keys()
        if any(f"{each}: no bundle: exit status" not in words for each in missing):
            yield f"{name}: what is not there is not said to be missing"
        if name == "as_meant" and (missing or {*dump.tables} - {*left["all"].tables}):
            yield f"{name}: not all was read"
        if name == "as_meant" and "verdict" not in words:
            yield f"{name}: `why` said nothing"
        if name == "killed" and [*left] != ["first"]:
            yield f"{name}: left {[*left]}"
        if name == "too_tight" and left:
            yield f"{name}: so little memory is enough: take less"


def main() -> int:
    """Crash, compare, and say what is wrong."""
    memory = sys.argv[1] if len(sys.argv) > 1 else "1536M"
    cases = [case for case in CASES if not sys.argv[2:] or case[0] in sys.argv[2:]]
    with tempfile.TemporaryDirectory(prefix="mmscope-crash-") as made:
        try:
            said = crashed(Path(made), memory, cases)
            dump = collected(Path(made) / "core", Path(made) / "dump")
            found = list(wrong(Path(made) / "out", said, dump))
        except LabError as error:
            print(f"crash_kernel.py: {error}", file=sys.stderr)
            return 1
        finally:
            children.end_all()
    print(f"{memory}: {said['saved']:,} bytes of dump saved in {said['saving']:.0f} s")
    print("\n".join(found) or "as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
