# SPDX-License-Identifier: LGPL-2.1-or-later
"""draft"""
from __future__ import annotations
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class LabError(Exception):
    """Something the lab needs is missing or went wrong; the first line says what to do."""


@dataclass(frozen=True)
class Kernel:
    """One kernel, unpacked and ready to boot."""

    name: str
    release: str
    vmlinuz: Path
    vmlinux: Path
    modules: tuple[Path, ...]


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/mmscope/lab``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmscope" / "lab"


def get(name: str, say: Callable[[str], None]) -> Kernel:
    (folder,) = (cache_folder() / "kernels").glob(name + "*")
    return Kernel(name, folder.name, folder / "vmlinuz", folder / "vmlinux", tuple(sorted(folder.glob("*.ko"))))
