# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tree of text files as sections read it: /proc and /sys of a running host, or a copy of them."""

import contextlib
import errno
import functools
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mmscope.drgn.sections import prices
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.text.meminfo import COUNTER_OF
from mmscope.drgn.text.packed import PACKED, tail, unpacked
from mmscope.drgn.text.plain_file import open_plain, read_plain

LXCFS = re.compile(r"(?:^| )/proc/meminfo .*\bfuse\.lxcfs\b", re.MULTILINE)
# Lines that lxcfs leaves as the host has them (proc_meminfo_read(), src/proc_fuse.c, 4.0 to 6.0).
OF_HOST = r"PageTables|DirectMap"
# Files of a copied tree whose time says when it was copied, the first that is there.
MOMENTS = ("proc/zoneinfo", "proc/meminfo", "proc/vmstat", "proc/uptime", "proc/version")
# Files that several sections read, and that are dear: read once, so that all show one moment.
KEPT = ("proc/pagetypeinfo",)

NO_PAGE_SIZE = "the size of a page cannot be derived: /proc/meminfo with /proc/zoneinfo tells"

# Of a log: what 300,000 records print, more than a kernel's ring ever has.
MOST_OF_LOG = 64 << 20
MOST_UNPACKED = 4 << 30  # of a packed one, to get to its last


class Absent(Exception):
    """The target has no such thing. The words say why, and what would change that."""


@dataclass
class Files:
    """
    A tree with /proc and /sys: a live host's root, or an unpacked sosreport.

    :param root: the folder that has ``proc/`` in it.
    :param everything: on a running host, also what is dear to read there (``prices``).
    """

    root: Path
    everything: bool = False
    kept: dict[str, Any] = field(default_factory=dict)  # what several sections need
    logs: tuple[str, ...] = ()  # paths of logs, beside those in the places where trees have them
    at: str = ""  # where a whole tree would have the folder: "proc", "var/log"
    _left_out: dict[str, str | None] = field(default_factory=dict)

    @functools.cached_property
    def live(self) -> bool:
        """True if they are a running host's."""
        return prices.is_live(str(self.root))

    @functools.cached_property
    def here(self) -> bool:
        """True if they are of the machine that this runs on."""
        return self.live or self.root.resolve() == Path("/")

    def page_size(self) -> int | None:
        """
        The size of a page: the own kernel tells, of a copied tree it is derived from what there is;
        None where nothing tells.
        """
        if self.here:
            return os.sysconf("SC_PAGE_SIZE")
        texts = {}
        for name in ("meminfo", "zoneinfo", "vmstat", "version"):
            with contextlib.suppress(OSError):
                texts[name] = self.open(f"proc/{name}")
        return page_size(**texts, of_host=OF_HOST if self.lxcfs else "")

    @functools.cached_property
    def lxcfs(self) -> bool:
        """True if lxcfs makes /proc/meminfo, of a container, beside the host's files."""
        for path in ("proc/self/mounts", "proc/mounts", "proc/self/mountinfo"):
            with contextlib.suppress(OSError):
                if LXCFS.search(self.open(path)):
                    return True
        return False

    def left_out(self, path: str) -> str | None:
        """Why a file is not read; None if it is, as all files of a copied tree are."""
        if self.everything or not self.live:
            return None
        if path not in self._left_out:
            self._left_out[path] = prices.why_left_out(str(self.root), path)
        return self._left_out[path]

    def read(self, path: str) -> str:
        """
        The text of a file of the tree.

        :raises Absent: it is not there, or not for this user; the words say what to do.
        """
        try:
            return self.open(path)
        except FileNotFoundError:
            raise Absent(f"{self.root / path}: no such file") from None
        except PermissionError:
            raise Absent(f"{self.root / path}: only root may read it; run as root") from None
        except OSError as error:
            raise Absent(f"{self.root / path}: {error.strerror}") from None

    def names(self, folder: str) -> list[str]:
        """The names in a folder, in their order; none if it is not there."""
        try:
            return sorted(path.name for path in self._place(folder).iterdir())
        except OSError:
            return []

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in their order, without links."""
        try:
            entries = sorted(os.scandir(self._place(folder)), key=lambda each: each.name)
        except OSError:
            return []
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def taken(self) -> float | None:
        """Time of the copy: seconds since 1970; None where nothing tells."""
        for path in MOMENTS:
            with contextlib.suppress(OSError):
                return self._place(path).stat().st_mtime
        return None

    def numbers(self, folder: str, pattern: str) -> list[int]:
        """The numbers in the names of a folder's entries, ascending; none if it is not there."""
        matches = [re.fullmatch(pattern, name, re.ASCII) for name in self.names(folder)]
        return sorted(int(match[1][:12]) for match in matches if match)

    def open(self, path: str) -> str:
        """
        The text of a file of the tree.

        A link that leads out of it may be of another machine, and a pipe never ends.

        :raises OSError: it is not there, no plain file of the tree, or left out.
        """
        if path in self.kept:
            return str(self.kept[path])
        text = self.raw(path).decode("utf-8", "backslashreplace")
        if text[: text.find("\n")].endswith("\r"):  # it was copied by a machine that writes CRLF
            text = text.replace("\r\n", "\n")
        if path in KEPT:
            self.kept[path] = text
        return text

    def raw(self, path: str) -> bytes:
        """
        The same as it is.

        :raises OSError: as :meth:`open`.
        """
        return read_plain(self._plain(path))

    def log(self, path: str) -> tuple[bytes, int]:
        """
        The last of a log, which may be packed and of any size, and how many bytes come before it.

        :raises OSError: as :meth:`open`.
        :raises PackedError: it cannot be unpacked.
        """
        with open(open_plain(self._plain(path)), "rb") as raw:
            return log_of(raw)

    def open_apart(self, path: str, reader: ReaderApart) -> str:
        """
        The same by a process that may be left behind: for files that wait for another process.

        :raises OSError: as :meth:`open`, or there was no answer.
        """
        if not self.live:
            return self.open(path)
        return reader.read(self._plain(path)).decode("utf-8", "backslashreplace")

    def _place(self, path: str) -> Path:
        """
        The path on this machine.

        :raises OSError: the folder is a part of a tree that does not have it.
        """
        if not self.at:
            return self.root / path
        if path != self.at and not path.startswith(f"{self.at}/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.root / path.removeprefix(self.at).lstrip("/")

    def _plain(self, path: str) -> Path:
        file = Path(os.path.realpath(self._place(path), strict=True))
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            raise OSError(errno.EINVAL, "is not a plain file of this tree", str(self.root / path))
        # What this user may not read is not left out for its price.
        if (why := self.left_out(path)) and os.access(file, os.R_OK):
            raise OSError(errno.ECANCELED, why, str(self.root / path))
        return file


# Lines of /proc/meminfo that are counters of /proc/vmstat, from 3.10 to 7.3.
SAME = ("MemFree", "Mapped", "PageTables", "SUnreclaim", "Active(file)", "Inactive(file)")


def log_of(raw: IO[bytes]) -> tuple[bytes, int]:
    """
    The last of a log, and how many bytes come before it.

    :param raw: can be sought in, and is at its beginning.
    :raises PackedError: it cannot be unpacked, or has no end.
    """
    head = raw.read(8)
    packed = head.startswith(PACKED)
    size = raw.seek(0, os.SEEK_END)
    raw.seek(0 if packed else max(size - MOST_OF_LOG, 0))
    if packed:
        with unpacked(raw, head) as stream:
            return tail(stream, MOST_OF_LOG, MOST_UNPACKED)
    data = raw.read(MOST_OF_LOG)
    if size > MOST_OF_LOG:
        data = data[data.find(b"\n") + 1 :]
    return data, size - len(data)


def page_size(
    meminfo: str = "", zoneinfo: str = "", vmstat: str = "", version: str = "", of_host: str = ""
) -> int | None:
    """
    The page size of a machine that left only text.

    What is printed both in KiB and in pages gives it: MemTotal is the managed pages of all zones,
    and lines of /proc/vmstat are lines of /proc/meminfo (:data:`SAME`). The readings may lie apart,
    so that the power of two that is nearest is taken, and none if it is not near or if they
    disagree. Else what has one size alone: x86 (its "DirectMap2M", its release) and s390; else what
    all of the lines are multiples of that are counted in pages (:data:`IN_PAGES`).

    :param of_host: a pattern of the lines of *meminfo* that are about the same machine as the rest;
        empty: all of them.
    """
    kib = {
        name: int(number)
        for name, number in re.findall(r"^(\S{1,40}): +([0-9]{1,15}) kB$", meminfo, re.MULTILINE)
        if re.match(of_host, name)
    }
    pages = dict(re.findall(r"^(\w{1,60}) ([0-9]{1,15})$", vmstat, re.MULTILINE))
    managed = sum(map(int, re.findall(r"^ +managed +([0-9]{1,15})$", zoneinfo, re.MULTILINE)))
    if size := _near(kib.get("MemTotal", 0), managed):
        return size
    said = Counter(
        _near(kib[line], int(pages[COUNTER_OF[line]]))
        for line in SAME
        if kib.get(line) and int(pages.get(COUNTER_OF[line], 0)) >= ENOUGH
    )
    sizes = [size for size in said if size]
    # A container's /proc/meminfo beside the host's counters may fit by chance, once.
    if len(sizes) == 1 and said[sizes[0]] >= (1 if of_host else min(2, said.total())):
        return sizes[0]
    of_x86 = {"DirectMap2M", "DirectMap4M"} & kib.keys() and "DirectMap64k" not in kib
    if of_x86 or ONE_SIZE.search(version):
        return 4096
    counts = {kib[name] for name in IN_PAGES if kib.get(name)}
    common = math.gcd(*counts) << 10
    return common if len(counts) >= ENOUGH_COUNTS and common in PAGE_SIZES else None


ENOUGH = 1000  # pages, so that the rounding to KiB is nothing
# Lines of /proc/meminfo that are numbers of pages (show_val_kb()), and change all the time; so many
# different ones have nothing but a page in common.
IN_PAGES = (
    *("MemFree", "Buffers", "Cached", "Active(anon)", "Inactive(anon)", "Active(file)"),
    *("Inactive(file)", "AnonPages", "Mapped", "Shmem", "SReclaimable", "SUnreclaim", "PageTables"),
)
ENOUGH_COUNTS = 8
PAGE_SIZES = (4096, 16384, 65536)
# The release, or the compiler, of an architecture whose pages have 4 KiB: x86, s390.
ONE_SIZE = re.compile(
    r"\ALinux version \S*\b(?:x86_64|amd64|s390x|i[3-6]86)\b"
    r"|\((?:x86_64|i[3-6]86|s390x)-\w+-\w+-gcc"
)


def _near(kib: int, pages: int) -> int | None:
    """The power of two that so many KiB in so many pages are near."""
    size = kib * 1024 / pages if pages else 0
    nearest = 1 << round(math.log2(size)) if size >= 1 else 0
    return nearest if 4096 <= nearest <= 65536 and abs(size / nearest - 1) < 0.02 else None
