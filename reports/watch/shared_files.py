# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files of shared memory on a running host, and whether a process has them open.

Names of open files are read as links, which waits for nothing; only of those below a mount of
tmpfs, and of memfds, the size is asked for. Names below a tmpfs of this mount namespace are listed,
where much is on it. Sizes are blocks: what is in swap among them.

Cannot know: whether a process has a file mapped that it has closed.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator

from mmscope.drgn.text.plain_file import read_plain

MOST_LINKS, MOST_NAMES = 50_000, 20_000
GONE = " (deleted)"
MEMFD = "/memfd:"

File = tuple[int, int]  # device and inode


def shared_files(root: str, least: int) -> Iterator[tuple[tuple[str, int | None], int, bool]]:
    """
    (name and a process that has it open, bytes, whether one has) of files, smaller ones together.

    :param least: bytes of a file that has a row of its own.
    :raises ValueError: more is open, or more files are there, than a watch reads.
    """
    mounts = _mounts(root, least)
    opened = _open_files(os.path.join(root, "proc"), [*mounts, "/dev/shm"])
    sizes, owners = Counter[tuple[str, int]](), dict[tuple[str, int], str]()
    for name, size, pid, comm in opened.values():
        sizes[name, pid] += size
        owners[name, pid] = comm
    for (name, pid), size in sizes.items():
        if size >= least:
            yield (f"{name}, open by {owners[name, pid]}", pid), size, True
    for mount in mounts:
        rest = number = 0
        for path, size, file in _names(os.path.join(root, mount.lstrip("/")), mount):
            if file in opened:
                continue
            if size >= least:
                yield (path, None), size, False
            else:
                rest, number = rest + size, number + 1
        if rest >= least:
            yield (f"{number} smaller files below {mount}", None), rest, False


def _mounts(root: str, least: int) -> list[str]:
    """Mounts of tmpfs that have much in them; of two that share their files the first."""
    found, seen = [], set[int]()
    text = read_plain(os.path.join(root, "proc/mounts")).decode("utf-8", "backslashreplace")
    for line in text.splitlines():
        _, mount, kind, *_ = (*line.split(" "), "", "", "")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)
        if kind != "tmpfs":
            continue
        with contextlib.suppress(OSError):
            here = os.path.join(root, mount.lstrip("/"))
            said, device = os.statvfs(here), os.stat(here).st_dev
            if (said.f_blocks - said.f_bfree) * said.f_frsize >= least and device not in seen:
                seen.add(device)
                found.append(mount)
    return found


def _open_files(proc: str, mounts: list[str]) -> dict[File, tuple[str, int, int, str]]:
    """Name, bytes, and the first process that has it open, by file."""
    found: dict[File, tuple[str, int, int, str]] = {}
    below, links = (MEMFD, *(f"{mount.rstrip('/')}/" for mount in mounts)), 0
    for pid in filter(str.isdecimal, os.listdir(proc)):
        folder = os.path.join(proc, pid, "fd")
        with contextlib.suppress(OSError):  # it has exited, or only root may look
            for each in os.listdir(folder):
                links += 1
                if links > MOST_LINKS:
                    raise ValueError(f"more than {MOST_LINKS:,} open files")
                path = os.path.join(folder, each)
                with contextlib.suppress(OSError):
                    name = os.readlink(path)
                    if not name.startswith(below):
                        continue
                    said = os.stat(path)
                    if stat.S_ISREG(said.st_mode):
                        comm = read_plain(os.path.join(proc, pid, "comm")).decode(
                            "utf-8", "backslashreplace"
                        )
                        name = name.removeprefix("/") if name.startswith(MEMFD) else name
                        if name.startswith("memfd:"):
                            name = name.removesuffix(GONE)
                        row = name, said.st_blocks * 512, int(pid), comm.rstrip("\n")
                        found.setdefault((said.st_dev, said.st_ino), row)
    return found


def _names(folder: str, mount: str) -> Iterator[tuple[str, int, File]]:
    """Path, bytes and file of what is below a mount, each once, without other mounts."""
    device, seen, number = os.stat(folder).st_dev, set[File](), 0
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _device(os.path.join(here, name)) == device]
        for name in names:
            number += 1
            if number > MOST_NAMES:
                raise ValueError(f"more than {MOST_NAMES:,} files below {mount}")
            with contextlib.suppress(OSError):
                said = os.lstat(os.path.join(here, name))
                file = said.st_dev, said.st_ino
                if stat.S_ISREG(said.st_mode) and file not in seen:
                    seen.add(file)
                    path = os.path.join(mount, os.path.relpath(here, folder), name)
                    yield os.path.normpath(path), said.st_blocks * 512, file


def _device(path: str) -> int:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return -1
