# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's text files, as one would collect them on a live host while something leaks; the inputs
of text tests and benchmarks.

Costs: about a minute the first time (see COST below), nothing when the cache has them; 150 MB. As
much for each kernel whose text of busy processes is asked for.
Kept in ``$XDG_CACHE_HOME/mmscope/lab/inputs`` under a hash of all that shapes them.

Cannot: say what the kernel held at the very moment a file was read; the guest goes on living, and
writing these files allocates page cache of its own.

    python tests/lab/owner_inputs.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import archive
import capture
import kernels
import machine
from archive import LabError

SNAPSHOTS = 100
DISK = "1G"
# Printing page_owner takes an emulated machine its time.
SECONDS = 600.0
# The guest's /init for a text of busy processes, which it writes to its disk: a block with its
# length, and the text.
TEXT = Path(__file__).parent / "programs/owner_text.c"
TEXT_DISK_BYTES = 512 << 20
BLOCK_BYTES = 4096


@dataclass(frozen=True)
class OwnerInputs:
    """
    What the guest wrote.

    The series: each snapshot is of one moment, a file a kind, and the module's own account
    (``mmscope_lab``); ``times`` has the moments, in seconds since 1970 and since boot.
    """

    folder: Path
    page_owner: Path
    show_stacks: tuple[Path, ...]
    show_handles: tuple[Path, ...]  # none, and no stacks of them, of a kernel before v6.19
    show_stacks_handles: Path
    mmscope_lab: tuple[Path, ...]
    times: tuple[tuple[float, float], ...]
    # What it took in the guest to read a file to its end and throw it away: seconds, bytes.
    cat: dict[str, tuple[float, int]]


def owner_inputs(say: Callable[[str], None] = lambda line: None) -> OwnerInputs:
    """
    The files, from the cache or from a guest.

    :raises LabError: the kernel cannot be had, or the guest failed.
    """
    with capture.one_at_a_time():
        kernel = kernels.get("owner", say)
        folder = archive.cache_folder() / "inputs" / f"owner-{capture.fingerprint(kernel)}"
        if not folder.exists():
            _make(kernel, folder, say)
        for other in folder.parent.glob("owner-*"):
            if other != folder:
                say(f"removing the older {other.name}")
                shutil.rmtree(other)
    times = [line.split() for line in (folder / "times").read_text().splitlines()]
    costs = [line.split() for line in (folder / "seconds").read_text().splitlines()]
    return OwnerInputs(
        folder=folder,
        page_owner=folder / "page_owner",
        show_stacks=_series(folder, "show_stacks"),
        show_handles=_series(folder, "show_handles"),
        show_stacks_handles=folder / "show_stacks_handles",
        mmscope_lab=_series(folder, "mmscope_lab"),
        times=tuple((float(wall), float(boot)) for _, wall, boot in times),
        cat={name: (float(seconds), int(length)) for name, seconds, length in costs},
    )


def owner_text(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """
    What page_owner of a kernel prints when many processes have taken turns (see ``TEXT``), from the
    cache or from a guest: a minute.

    :raises LabError: the kernel cannot be had, or the guest failed.
    """
    with capture.one_at_a_time():
        kernel = kernels.get(name, say)
        shaped_by = f"{capture.fingerprint(kernel)}\n{TEXT.read_text()}".encode()
        key = hashlib.sha256(shaped_by).hexdigest()[:12]
        path = archive.cache_folder() / "inputs" / f"text-{name}-{key}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".text-", dir=path.parent) as temporary:
                _print_text(kernel, Path(temporary), say).rename(path)
        for other in path.parent.glob(f"text-{name}-{'?' * len(key)}"):
            if other != path:
                say(f"removing the older {other.name}")
                other.unlink()
    return path


def _print_text(kernel: kernels.Kernel, folder: Path, say: Callable[[str], None]) -> Path:
    init, disk, text = folder / "init", folder / "disk.raw", folder / "text"
    sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(TEXT)]
    options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernels.PAGE_BYTES}UL")
    _tool("gcc", *options, "-Wl,--wrap=truth_prepare", "-o", str(init), *sources)
    disk.touch()
    os.truncate(disk, TEXT_DISK_BYTES)
    say(f"booting {kernel.release} for page_owner's text")
    drive = ("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe")
    machine.run(kernel, "sizes", folder, say, init=init, qemu_args=drive)
    with disk.open("rb") as raw, text.open("wb") as file:
        left = int(raw.read(BLOCK_BYTES).partition(b"\n")[0])
        while left:
            chunk = raw.read(min(left, 1 << 20))
            left -= len(chunk)
            file.write(chunk)
    return text


def _series(folder: Path, kind: str) -> tuple[Path, ...]:
    paths = (folder / f"{kind}.{number:03}" for number in range(SNAPSHOTS))
    return tuple(path for path in paths if path.exists())


def _make(kernel: kernels.Kernel, folder: Path, say: Callable[[str], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the rename at the end is atomic.
    temporary = Path(tempfile.mkdtemp(prefix=".inputs-", dir=folder.parent))
    try:
        image = temporary / "disk.ext4"
        _tool("mke2fs", "-q", "-t", "ext4", str(image), DISK)
        say(f"booting {kernel.release} for page_owner's text files")
        machine.run(
            kernel,
            "owner_inputs",
            temporary,
            say,
            init=machine.build_init(temporary),
            qemu_args=("-drive", f"file={image},format=raw,if=virtio"),
            workload_seconds=SECONDS,
        )
        _tool("debugfs", "-R", f"rdump /out {temporary}", str(image))
        (temporary / "out").rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _tool(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed: apt-get install e2fsprogs") from None
    if done.returncode:
        raise LabError(f"{command[0]} failed: {done.stderr.strip()}")


def main() -> int:
    """Make the inputs and print where they are."""
    started = time.monotonic()
    try:
        made = owner_inputs(lambda line: print(f"[{time.monotonic() - started:6.1f}] {line}"))
    except (LabError, OSError) as error:
        print(f"owner_inputs.py: {error}", file=sys.stderr)
        return 1
    print(made.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
