# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tree of text files as sections read it: /proc and /sys of a running host, or a copy of them."""

import errno
import functools
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmscope.drgn.sections import prices
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.text.plain_file import read_plain

# Files that several sections read, and that are dear: read once, so that all show one moment.
KEPT = ("proc/pagetypeinfo",)


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
    _left_out: dict[str, str | None] = field(default_factory=dict)

    @functools.cached_property
    def live(self) -> bool:
        """True if they are a running host's."""
        return prices.is_live(str(self.root))

    def page_size(self, meminfo: str, managed_pages: int) -> int | None:
        """
        The size of a page: the own kernel tells, of a copied tree it is derived.

        In a container /proc/meminfo may be of the container, and does not fit the zones of the
        host.
        """
        if self.live or self.root.resolve() == Path("/"):
            return os.sysconf("SC_PAGE_SIZE")
        return page_size(meminfo, managed_pages)

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

    def numbers(self, folder: str, pattern: str) -> list[int]:
        """The numbers in the names of a folder's entries, ascending; none if it is not there."""
        try:
            names = [path.name for path in (self.root / folder).iterdir()]
        except OSError:
            return []
        matches = [re.fullmatch(pattern, name, re.ASCII) for name in names]
        return sorted(int(match[1][:12]) for match in matches if match)

    def open(self, path: str) -> str:
        """
        The text of a file of the tree.

        A link that leads out of it may be of another machine, and a pipe never ends.

        :raises OSError: it is not there, no plain file of the tree, or left out.
        """
        if path in self.kept:
            return str(self.kept[path])
        text = read_plain(self._plain(path)).decode("utf-8", "backslashreplace")
        if path in KEPT:
            self.kept[path] = text
        return text

    def open_apart(self, path: str, reader: ReaderApart) -> str:
        """
        The same by a process that may be left behind: for files that wait for another process.

        :raises OSError: as :meth:`open`, or there was no answer.
        """
        if not self.live:
            return self.open(path)
        return reader.read(self._plain(path)).decode("utf-8", "backslashreplace")

    def _plain(self, path: str) -> Path:
        file = Path(os.path.realpath(self.root / path, strict=True))
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            raise OSError(errno.EINVAL, "is not a plain file of this tree", str(self.root / path))
        # What this user may not read is not left out for its price.
        if (why := self.left_out(path)) and os.access(file, os.R_OK):
            raise OSError(errno.ECANCELED, why, str(self.root / path))
        return file


def page_size(meminfo: str, managed_pages: int) -> int | None:
    """
    The page size of a machine that left only text: MemTotal is its managed pages, in KiB.

    The two readings may lie apart, so that the power of two that is nearest is taken, and none if
    it is not near.
    """
    match = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", meminfo, re.MULTILINE)
    if not match or not managed_pages:
        return None
    size = int(match.group(1)) * 1024 / managed_pages
    nearest = 1 << round(math.log2(size)) if size >= 1 else 0
    return nearest if 4096 <= nearest <= 65536 and abs(size / nearest - 1) < 0.02 else None
