# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modules that the lab builds, kept beside the kernel that they are for."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def kept_modules(
    kernel: Path, source: Path, build: Callable[[Sequence[Path], Path], Path], how: bytes = b""
) -> tuple[Path, ...]:
    """
    The modules made from the folder *source*: built once, whole or not at all.

    :param kernel: the folder of the kernel.
    :param build: of the sources and an empty folder; returns the folder to be kept, in it or it.
    :param how: what else they depend on.
    """
    files = sorted(source.iterdir())
    digest = hashlib.sha256(how)
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    folder = kernel / "modules" / digest.hexdigest()[:12]
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".build-", dir=folder.parent))
        try:
            built = build(files, temporary)
            built.chmod(0o755)
            built.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return tuple(sorted(folder.glob("*.ko")))
