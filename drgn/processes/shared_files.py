# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files of shared memory on a running host, and whether a process has them open.

Names of open files are read as links, which waits for nothing; only of memfds, and of files whose
mount is a tmpfs (mnt_id in /proc/PID/fdinfo/FD), the size is asked for. Names below a tmpfs of this
mount namespace are listed, where much is on it; no link is followed, and nothing that is mounted
there is asked: it may be of a server that does not answer. Sizes are blocks: what is in swap among
them.

Cannot know: whether a process has a file mapped that it has closed; what is open in processes that
this user may not look at, or of another pid namespace.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from mmscope.drgn.text.plain_file import read_text

MOST_LINKS, MOST_NAMES = 50_000, 20_000
GONE = " (deleted)"
MEMFD = "/memfd:"

_MOUNT = re.compile(r"^mnt_id:\t([0-9]{1,10})$", re.M)
File = tuple[int, int]  # device and inode


class Found(NamedTuple):
    """A file, or smaller ones together."""

    name: str
    bytes: int
    open: bool | None  # None: not in the processes that could be looked at
    pid: int | None = None  # a process that has it open
    comm: str | None = None


def shared_files(root: str, least: int) -> Iterator[Found]:
    """
    Files, and who has them open; smaller ones together.

    :param least: bytes of a file that has a row of its own.
    :raises ValueError: more is open, or more files are there, than are read.
    """
    points, mounts = _mounts(root, least)
    opened, all_seen = _open_files(os.path.join(root, "proc"), [*mounts, "/dev/shm"])
    left = False if all_seen else None
    sizes, owners = Counter[tuple[str, int]](), dict[tuple[str, int], str]()
    for name, size, pid, comm in opened.values():
        sizes[name, pid] += size
        owners[name, pid] = comm
    for (name, pid), size in sizes.items():
        if size >= least:
            yield Found(name, size, True, pid, owners[name, pid])
    for mount in mounts:
        rest = number = 0
        for path, size, file in _names(root, mount, points):
            if file in opened:
                continue
            if size >= least:
                yield Found(path, size, left)
            else:
                rest, number = rest + size, number + 1
        if rest >= least:
            yield Found(f"{number} smaller files below {mount}", rest, left)


def _mounts(root: str, least: int) -> tuple[set[str], list[str]]:
    """
    All that something is mounted on; and mounts of tmpfs that have much in them, of two that share
    their files the first.
    """
    mounted = []
    for line in read_text(os.path.join(root, "proc/mounts")).splitlines():
        _, mount, kind, *_ = (*line.split(" "), "", "", "")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)
        mounted.append((mount, kind))
    found, seen = [], set[int]()
    for number, (mount, kind) in enumerate(mounted, 1):
        if kind != "tmpfs" or any(_is_below(mount, later) for later, _ in mounted[number:]):
            continue  # what is mounted over it later is what one gets there
        with contextlib.suppress(OSError):
            here = os.path.join(root, mount.lstrip("/"))
            said, device = os.statvfs(here), os.stat(here).st_dev
            if (said.f_blocks - said.f_bfree) * said.f_frsize >= least and device not in seen:
                seen.add(device)
                found.append(mount)
    return {mount for mount, _ in mounted}, found


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _open_files(proc: str, mounts: list[str]) -> tuple[dict[File, tuple[str, int, int, str]], bool]:
    """
    Name, bytes, and the first process that has it open, by file; and whether all processes could be
    looked at.
    """
    found: dict[File, tuple[str, int, int, str]] = {}
    all_seen = os.geteuid() == 0  # with hidepid there may be others
    below, links = (MEMFD, *(f"{mount.rstrip('/')}/" for mount in mounts)), 0
    for pid in filter(str.isdecimal, os.listdir(proc)):
        process, of_tmpfs = os.path.join(proc, pid), None
        try:
            for each in os.listdir(os.path.join(process, "fd")):
                links += 1
                if links > MOST_LINKS:
                    raise ValueError(f"more than {MOST_LINKS:,} open files")
                path = os.path.join(process, "fd", each)
                with contextlib.suppress(FileNotFoundError):
                    name = os.readlink(path)
                    if not name.startswith(below):
                        continue
                    if name.startswith(MEMFD):
                        name = name.removeprefix("/").removesuffix(GONE)
                    else:
                        of_tmpfs = _tmpfs_mounts(process) if of_tmpfs is None else of_tmpfs
                        of = _MOUNT.search(read_text(os.path.join(process, "fdinfo", each)))
                        if of is None or of[1] not in of_tmpfs:
                            continue
                    said = os.stat(path)
                    if stat.S_ISREG(said.st_mode):
                        comm = read_text(os.path.join(process, "comm")).rstrip("\n")
                        row = name, said.st_blocks * 512, int(pid), comm
                        found.setdefault((said.st_dev, said.st_ino), row)
        except PermissionError:
            all_seen = False
        except OSError:
            continue  # it has exited
    return found, all_seen


def _tmpfs_mounts(process: str) -> set[str]:
    """Numbers of the mounts of tmpfs in a process's namespace."""
    lines = read_text(os.path.join(process, "mountinfo")).splitlines()
    # 25 30 0:22 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw
    return {
        line.split(" ", 1)[0] for line in lines if line.partition(" - ")[2].startswith("tmpfs ")
    }


def _names(root: str, mount: str, points: set[str]) -> Iterator[tuple[str, int, File]]:
    """Path, bytes and file of what is below a mount, each once, without what is mounted there."""
    seen, number, folders = set[File](), 0, [mount]
    while folders:
        folder = folders.pop()
        with (
            contextlib.suppress(OSError),
            os.scandir(os.path.join(root, folder.lstrip("/"))) as entries,
        ):
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if path in points:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                    continue
                number += 1
                if number > MOST_NAMES:
                    raise ValueError(f"more than {MOST_NAMES:,} files below {mount}")
                with contextlib.suppress(OSError):
                    said = entry.stat(follow_symlinks=False)
                    file = said.st_dev, said.st_ino
                    if stat.S_ISREG(said.st_mode) and file not in seen:
                        seen.add(file)
                        yield path, said.st_blocks * 512, file
