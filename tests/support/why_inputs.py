# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Inputs of all kinds, of which ``docs/inputs.md`` shows what ``mmscope why`` prints: made of what
``tests/`` has, real bundles of the exam among it. Those of vmcores are in ``tests/lab``.
"""

import atexit
import contextlib
import functools
import gzip
import json
import os
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from checkout import ROOT
from command_line import run
from exam_kept import unpack
from given_inputs import LOG, OWNER, PERF, TREE, put

Make = Callable[[Path], object]
PAGE = ROOT / "docs/inputs.md"
BEGIN, END = "<!-- what `why` prints: `make inputs` -->\n", "<!-- end of it -->\n"
EXAMPLE = re.compile(r"^\$ mmscope why ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMAPS = """\
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:              204800 kB
Pss:              204800 kB
Pss_Anon:         204800 kB
Pss_File:              0 kB
Pss_Shmem:             0 kB
Shared_Clean:          0 kB
Shared_Dirty:          0 kB
Private_Clean:         0 kB
Private_Dirty:    204800 kB
SwapPss:               0 kB
Locked:                0 kB
7f0020000000-7f0020200000 r-xp 00000000 fe:00 247741                     /usr/lib/libexample.so
Size:               2048 kB
Rss:                1024 kB
Pss:                 256 kB
Pss_Anon:              0 kB
Pss_File:            256 kB
Pss_Shmem:             0 kB
Shared_Clean:       1024 kB
Shared_Dirty:          0 kB
Private_Clean:         0 kB
Private_Dirty:         0 kB
SwapPss:               0 kB
Locked:                0 kB
"""
MEMORY_STAT = "anon 209715200\nfile 4096\nkernel 1048576\nslab 524288\npgfault 70000\n"
MEMORY_EVENTS = "low 0\nhigh 12\nmax 900\noom 3\noom_kill 3\n"
ALLOCATED = """\
   335544320    81920 mm/slub.c:3092 func:alloc_slab_page
    73400320    17920 drivers/net/example.c:71 [example] func:example_refill
     4194304     1024 fs/dcache.c:1700 func:__d_alloc
"""
PRESSURE = "some avg10=61.50 avg60=40.00 avg300=20.00 total=912345678\n"
PRESSURE += "full avg10=33.00 avg60=20.00 avg300=10.00 total=512345678\n"
SLABS = "".join((TREE / "proc/slabinfo").read_text().splitlines(keepends=True)[2:9])


@dataclass(frozen=True)
class Input:
    """
    One input.

    :ivar given: what is typed behind ``mmscope why``. :ivar about: what it is, in words.
    :ivar make: puts it into a folder.
    """

    given: str
    about: str
    make: Make


def printed(given: str, folder: Path) -> list[str]:
    """
    The lines that one gets in a folder, whose command runs as it stands; perf is the one that is
    there, if any.
    """
    path = f"{folder}:{os.environ['PATH']}"
    own = [] if is_bundle(folder / given) else ["-o", "case"]
    with contextlib.chdir(folder), patch.dict(os.environ, PATH=path):
        done = run("why", *given.split(), *own)
        lines: list[str] = done.stdout.splitlines()
        for line in lines:
            if line.startswith("run "):
                shown = run(*shlex.split(line)[2:])
                assert shown.returncode == 0 and shown.stdout, f"{line}: {shown.stderr}"
    assert len(lines) <= 10 and all(len(line) <= 80 for line in lines), lines
    return lines or done.stderr.splitlines()


def is_bundle(path: Path) -> bool:
    """A bundle or a lake, of which no other is made."""
    return any((path / name).is_file() for name in ("datapackage.json", "lake.json"))


def page_with(shown: dict[str, str]) -> str:
    """The page with other text between its marks: of each group, in order."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    groups = "".join(f"\n### {group}\n{text}" for group, text in shown.items())
    return f"{before}{BEGIN}{groups}\n{END}{after}"


def shown_as(one: Input, lines: list[str]) -> str:
    """An input and its lines, as the page has them."""
    return "\n".join(
        ["", f"{one.about}:", "", "```", f"$ mmscope why {one.given}", *lines, "```", ""]
    )


def sosreport(folder: Path) -> None:
    with tarfile.open(folder / "sosreport.tar.gz", "w:gz") as archive:
        archive.add(TREE, "sosreport-host")


def recorded(folder: Path) -> None:
    """A recording, and a perf that has read it."""
    put(folder, "perf.data", "PERFILE2")
    put(folder, "text", PERF.replace("java 7/7 [001] 1.000000:", "java 7/7 [001] 1.000000000:"))
    perf = put(folder, "perf", f"#!/bin/sh\n[ $1 = report ] && exit 0\ncat {folder}/text\n")
    Path(perf).chmod(0o755)


def of_proc(*names: str) -> Make:
    """Files of /proc, side by side."""

    def make(folder: Path) -> None:
        for name in names:
            put(folder, name, (TREE / "proc" / name).read_bytes())

    return make


def text(name: str, content: str | bytes) -> Make:
    return lambda folder: put(folder, name, content)


def copied(*path: str) -> Make:
    """A file or a bundle of ``tests/``, under its last name."""
    source = ROOT.joinpath("tests", *path)
    copy = shutil.copytree if source.is_dir() else shutil.copy
    return lambda folder: copy(source, folder / source.name)


@functools.cache
def cases() -> Path:
    """The exam's cases, unpacked once, and gone with this process."""
    folder = Path(tempfile.mkdtemp(prefix="mmscope-cases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack(folder)
    return folder


def case(path: str, name: str) -> Make:
    """A bundle of the exam."""
    return lambda folder: shutil.copytree(cases() / path, folder / name)


def redacted(folder: Path) -> None:
    case("process-leak-7/vmcore", "case")(folder)
    with contextlib.chdir(folder):
        assert run("redact", "case", "-o", "redacted").returncode == 0


# Hosts of the lake: the guests have no names, so that they get one here.
HOSTS = {
    "db-1": "process-leak-7/vmcore",
    "db-2": "memory-locked-7/vmcore",
    "web-1": "idle-7/vmcore",
    "web-2": "cache-warming-7/vmcore",
}


def lake(folder: Path) -> None:
    for host, path in HOSTS.items():
        case(path, host)(folder)
        about = folder / host / "datapackage.json"
        about.write_text(about.read_text().replace('"(none)"', json.dumps(host)))
        with contextlib.chdir(folder):
            assert run("lake", "add", host, "lake").returncode == 0


INPUTS: dict[str, tuple[Input, ...]] = {
    "Folders and archives of a host": (
        Input(
            "sosreport.tar.gz", "A sosreport as it comes, unpacked, or its `proc` alone", sosreport
        ),
    ),
    "Logs": (
        Input("dmesg.txt", "The machine's memory ran out", text("dmesg.txt", LOG)),
        Input(
            "cma-is-free.log",
            "What was free, the request could not use",
            copied("data/logs/cma-is-free.log"),
        ),
        Input(
            "cgroup-full-of-dirty.log",
            "A cgroup's limit, full of pages that wait for a disk",
            copied("data/logs/cgroup-full-of-dirty.log"),
        ),
        Input(
            "cgroup-and-swap.log",
            "A pod at its limit, once",
            copied("data/logs/cgroup-and-swap.log"),
        ),
        Input("atomic.log", "An allocation that failed", copied("data/logs/atomic.log")),
    ),
    "Files of /proc and /sys": (
        Input(
            "meminfo vmstat zoneinfo",
            "What a user pasted",
            of_proc("meminfo", "vmstat", "zoneinfo"),
        ),
        Input(
            "ticket.txt",
            "Lines that `grep` or `sort` left of a file, in a ticket",
            text("ticket.txt", f"so:\n```\n{SLABS}```\nThanks\n"),
        ),
        Input("meminfo", "meminfo alone", of_proc("meminfo")),
        Input("vmstat", "vmstat alone", of_proc("vmstat")),
        Input("zoneinfo", "zoneinfo alone", of_proc("zoneinfo")),
        Input("buddyinfo", "buddyinfo alone", of_proc("buddyinfo")),
        Input("pagetypeinfo", "pagetypeinfo alone", of_proc("pagetypeinfo")),
        Input("pressure", "PSI of memory", text("pressure", PRESSURE)),
        Input("memory.stat", "A cgroup's memory.stat", text("memory.stat", MEMORY_STAT)),
        Input("memory.events", "A cgroup's memory.events", text("memory.events", MEMORY_EVENTS)),
        Input("4711/smaps", "A process's smaps", text("4711/smaps", SMAPS)),
        Input("allocinfo.txt", "Memory by line of source", text("allocinfo.txt", ALLOCATED)),
        Input(
            "page_owner.gz",
            "Owners of pages, packed",
            text("page_owner.gz", gzip.compress(OWNER.encode())),
        ),
    ),
    "Recordings": (
        Input("perf.data", "A perf.data, read by the `perf` that is here", recorded),
        Input("reserve-7.2.txt", "Text of `perf script`", copied("data/perf/reserve-7.2.txt")),
    ),
    "Bundles of a dump": (
        Input("leaks", "A process leaks", case("process-leak-7/vmcore", "leaks")),
        Input("waits", "Threads wait for a lock", case("mmap-lock-convoy-7/vmcore", "waits")),
        Input("tmpfs", "A deleted file fills tmpfs", case("deleted-tmpfs-file-7/vmcore", "tmpfs")),
        Input(
            "pod",
            "A pod at its limit, again and again",
            case("pod-killed-again-and-again-7/vmcore", "pod"),
        ),
        Input("idle", "A healthy machine", case("idle-7/vmcore", "idle")),
        Input("redacted", "The first again, redacted", redacted),
        Input("v0.1.0", "Made by mmscope 0.1.0", copied("bundles/v0.1.0")),
    ),
    "Watches": (
        Input("slab", "A slab cache grows", case("slab-leak-of-module-7/watch", "slab")),
        Input("swaps", "More is in use than fits", case("swap-storm-7/watch", "swaps")),
        Input("thp", "Huge pages fail", case("unmovable-scatter-7/watch", "thp")),
        Input("quiet", "A healthy machine", case("idle-7/watch", "quiet")),
    ),
    "Lakes": (Input("lake", "Four hosts", lake),),
    "What is none of these": (
        Input(
            "photo.png",
            "A picture",
            text("photo.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(99)),
        ),
    ),
}
