# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Captures that :func:`capture.capture` does not take, as their machine or their ending is another:
kept beside the others, under a hash of what shapes them, with those of older shapes removed.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import archive
import kernels
from archive import LabError
from capture import fingerprint, one_at_a_time
from kernels import Kernel

Say = Callable[[str], None]


def kept(
    name: str,
    what: str,
    sources: Sequence[Path | str],
    take: Callable[[Kernel, Path], None],
    say: Say,
    modules: Sequence[str] = (),
) -> tuple[Path, Kernel]:
    """
    The folder of a capture, from the cache or taken now, and its kernel.

    :param sources: what shapes it beside what shapes all captures: files and words.
    :param take: fills an empty folder.
    :param modules: to load after those that every guest loads.
    :raises LabError: the kernel cannot be had, or the guest failed, twice.
    """
    with one_at_a_time():
        kernel = kernels.get(name, say, modules)
        digest = hashlib.sha256(fingerprint(kernel).encode())
        for source in sources:
            digest.update(source.encode() if isinstance(source, str) else source.read_bytes())
        folder = archive.cache_folder() / "cores" / f"{name}-{what}-{digest.hexdigest()[:12]}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            for trial in (1, 2):
                # Whole or absent, by the rename.
                temporary = Path(tempfile.mkdtemp(prefix=".capture-", dir=folder.parent))
                try:
                    say(f"booting {kernel.release}, {what}")
                    take(kernel, temporary)
                    temporary.chmod(0o755)
                    temporary.rename(folder)
                    break
                except LabError as error:
                    # As of capture.py: emulation has flaws that a second boot does not meet.
                    if trial == 2:
                        raise
                    say(f"{str(error).splitlines()[0]}; once more")
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
            for other in folder.parent.glob(f"{name}-{what}-*"):
                if other != folder:
                    shutil.rmtree(other)
    return folder, kernel
