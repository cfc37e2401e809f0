# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One capture: a kernel and a workload make a vmcore, and beside it what that kernel said of itself
just before.

Costs: about 25 s the first time (boot, workload, dump; see ``machine.py``), nothing when the cache
has it; 1.5 GiB of disk for each pair of kernel and workload. Captures are kept in
``$XDG_CACHE_HOME/mmscope/lab/cores`` under a hash of all that shapes them, and an older one of the
same pair is removed.

Cannot: make two captures alike. Every boot is a new machine.

    python tests/lab/capture.py --kernel stable --workload fragment
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import archive
import kernels
import machine
from architectures import Architecture
from archive import LabError
from kernels import Kernel
from roles import resolve


@dataclass(frozen=True)
class Capture:
    """A vmcore with its truth: two readings, A and then B, of the same files, laid out as in /."""

    kernel: str
    release: str
    workload: str
    vmcore: Path
    vmlinux: Path
    truth_a: Path
    truth_b: Path
    console: Path

    @property
    def architecture(self) -> Architecture:
        """The kernel's."""
        return kernels.architecture(self.kernel)

    @property
    def series(self) -> str:
        """The kernel's, whatever its architecture: 6.1 of arm64-6.1."""
        return self.kernel.rpartition("-")[2]


def capture(
    kernel: str = "stable",
    workload: str = "fragment",
    say: Callable[[str], None] = lambda line: None,
    *,
    fresh: bool = False,
    output: Path | None = None,
    symbols: bool = True,
) -> Capture:
    """
    The capture of *kernel* (a row or role of ``kernels.toml``) and *workload*, from the cache if
    there.

    :param fresh: boot anyway.
    :param symbols: whether the kernel's debug info is needed; see ``kernels.get``.
    :param output: put it there, outside of the cache; such a capture always boots.
    :raises LabError: the kernel cannot be had, or the guest failed.
    """
    kernel = resolve(kernel, say, symbols)
    with one_at_a_time():
        more = machine.WORKLOAD_MODULES.get(workload, ())
        booted = kernels.get(kernel, say, more, symbols=symbols)
        if workload in machine.WORKLOAD_BUILT:
            booted = kernels.with_built(booted, machine.WORKLOAD_BUILT[workload], say)
        if output is not None:
            folder = output.resolve()
            if folder.exists():
                raise LabError(f"{folder} exists: choose another folder or remove it")
        else:
            folder = archive.cache_folder() / "cores" / f"{kernel}-{workload}-{fingerprint(booted)}"
        if fresh or not folder.exists():
            try:
                _take(booted, workload, folder, say)
            except LabError as error:
                # Emulation has flaws of its own (see machine.py) that a second boot does not meet;
                # what fails twice is no accident.
                say(f"{str(error).splitlines()[0]}; once more")
                _take(booted, workload, folder, say)
        else:
            say(f"from the cache: {folder}")
        if output is None:
            for other in folder.parent.glob(f"{kernel}-{workload}-*"):
                if other != folder:
                    say(f"removing the older {other.name}")
                    shutil.rmtree(other)
    return Capture(
        kernel=kernel,
        release=booted.release,
        workload=workload,
        vmcore=folder / "vmcore",
        vmlinux=booted.vmlinux,
        truth_a=folder / "truth" / "A",
        truth_b=folder / "truth" / "B",
        console=folder / "console.log",
    )


def _take(kernel: Kernel, workload: str, folder: Path, say: Callable[[str], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the rename at the end is atomic: a capture is whole or absent.
    temporary = Path(tempfile.mkdtemp(prefix=".capture-", dir=folder.parent))
    try:
        say(f"booting {kernel.release}, workload {workload}")
        init = machine.build_init(temporary, kernel.architecture, kernel.page_bytes)
        machine.run(kernel, workload, temporary, say, init=init)
        init.unlink()
        if folder.exists():
            shutil.rmtree(folder)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except LabError as error:
        console = temporary / "console.log"
        if not console.exists():
            raise
        kept = folder.parent / f"failed-{kernel.name}-{workload}.log"
        console.replace(kept)
        raise LabError(f"{error}\nthe whole console: {kept}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fingerprint(kernel: Kernel) -> str:
    """Changes when anything does that shapes a capture."""
    digest = hashlib.sha256(kernel.vmlinuz.parent.name.encode())
    here = Path(__file__).resolve().parent
    guest = sorted(machine.GUEST.glob("*.[ch]"))
    for source in [
        here / "capture.py",
        here / "machine.py",
        here / "architectures.py",
        *guest,
        *kernel.modules,
    ]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two emulated machines at once would only run into each other's timeouts."""
    archive.cache_folder().mkdir(parents=True, exist_ok=True)
    with (archive.cache_folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waits for another machine of the lab to end", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Take a capture and print where it is."""
    parser = argparse.ArgumentParser(
        description="Boot a kernel, run a workload, take a vmcore and its truth."
    )
    parser.add_argument(
        "--kernel", default="stable", help="a row or role of kernels.toml (default: %(default)s)"
    )
    parser.add_argument(
        "--workload", default="fragment", help="a workload of guest/init.c (default: %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="boot even if the cache has it")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="a new folder instead of the cache"
    )
    arguments = parser.parse_args()
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f}] {line}", flush=True)

    try:
        taken = capture(
            arguments.kernel,
            arguments.workload,
            say,
            fresh=arguments.fresh,
            output=arguments.output,
        )
    except (LabError, OSError) as error:
        print(f"capture.py: {error}", file=sys.stderr)
        return 1
    say("done")
    for name in ("vmcore", "vmlinux", "truth_a", "truth_b", "console"):
        print(f"{name:8} {os.fspath(getattr(taken, name))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
