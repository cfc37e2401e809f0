# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A tree of text files in memory: what an archive had, or files that were given one by one, laid over
folders where these were given as well.
"""

import errno
import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mmscope.drgn.sections.files import MOMENTS, Files, log_of

Content = TypeVar("Content")


@dataclass
class GivenFiles(Files):
    """
    Texts by their path in a tree.

    :param texts: path to bytes.
    :param under: trees on disk, asked in turn for what is not among them.
    :param moment: when they were copied: seconds since 1970.
    """

    texts: Mapping[str, bytes] = field(default_factory=dict)
    under: Sequence[Files] = ()
    moment: float | None = None

    @functools.cached_property
    def live(self) -> bool:
        return any(files.live for files in self.under)

    @functools.cached_property
    def here(self) -> bool:
        return any(files.here for files in self.under)

    @functools.cached_property
    def _entries(self) -> dict[str, dict[str, bool]]:
        """Folder to its names, and whether these are folders."""
        found: dict[str, dict[str, bool]] = {}
        for path in self.texts:
            is_folder = False
            while path:
                folder, _, name = path.rpartition("/")
                entries = found.setdefault(folder, {})
                entries[name] = entries.get(name, False) or is_folder
                path, is_folder = folder, True
        return found

    def names(self, folder: str) -> list[str]:
        """The names in a folder, in their order; none if it is not there."""
        mine = self._entries.get(folder, {})
        return sorted({*mine, *(name for files in self.under for name in files.names(folder))})

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in their order, without links."""
        mine = {name for name, is_folder in self._entries.get(folder, {}).items() if is_folder}
        return sorted({*mine, *(name for files in self.under for name in files.folders(folder))})

    def taken(self) -> float | None:
        """Time of the copy: seconds since 1970; None where nothing tells."""
        if self.moment is not None and any(path in self.texts for path in MOMENTS):
            return self.moment
        moments = [files.taken() for files in self.under]
        return next((moment for moment in moments if moment is not None), None)

    def raw(self, path: str) -> bytes:
        """
        A file's bytes.

        :raises OSError: none of the trees has it.
        """
        if path in self.texts:
            return self.texts[path]
        return self._first(path, lambda files: files.raw(path))

    def log(self, path: str) -> tuple[bytes, int]:
        """
        The last of a log, and how many bytes come before it.

        :raises OSError, PackedError: as of ``Files``.
        """
        if path in self.texts:
            return log_of(io.BytesIO(self.texts[path]))
        return self._first(path, lambda files: files.log(path))

    def _first(self, path: str, read: Callable[[Files], Content]) -> Content:
        """The file of the first tree that has it."""
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for files in self.under:
            try:
                return read(files)
            except FileNotFoundError as its:
                error = its
        raise error
