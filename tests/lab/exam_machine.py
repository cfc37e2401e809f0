# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Machines of the exam: booted once for each shape, kept as they wait for a case, begun from there.

QEMU writes the waiting machine to a file (``migrate``), which takes 250 MB, and the next begins
with it a second later instead of a minute. So all cases of a shape have one boot in common:
addresses and what the kernel did at boot are the same; what is planted, and its neighbours, are
not.

Disks: the tree that the guest runs from, the name of the case, what comes out, a file system for
files, and one to swap on.

Costs: two minutes for a shape, mostly imports under emulation; 2 GiB of memory and of disk while a
case runs, for the large shape 8 GiB and four minutes. For another architecture than amd64 what
``debian_tree`` takes. 5.10 has no MADV_POPULATE_WRITE, and Debian's has PSI switched off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import debian_tree
import kernels
import live
import machine
from architectures import AMD64, ARM64
from archive import LabError
from children import DIES_WITH_US
from kernels import Kernel
from qemu.qmp import QMPClient, QMPError

HERE = Path(__file__).resolve().parent
# zram last: what it needs is before it.
MODULES = ("virtio_balloon", "unix_diag", "zram")
# What a case brings along, in this order; the waiting machine has an older one of the first.
PROGRAMS = ("exam_guest", "exam_kinds")
WAIT_SECONDS = 400.0
CASE_SECONDS = 500.0

_TCG = ("-accel", "tcg,thread=single")
# As the lab's (architectures.py), without its nodes.
_MACHINES = {
    AMD64: (*_TCG, "-machine", "q35,max-ram-below-4g=512M", "-device", "pvpanic", *live.CPU),
    ARM64: (
        *(*_TCG, "-machine", "virt,gic-version=3", "-device", "pvpanic-pci"),
        *("-cpu", "max,sve=off,sme=off,pauth-impdef=on"),
    ),
}
_REST = (
    *("-device", "vmcoreinfo", "-no-reboot", "-nodefaults", "-display", "none"),
    *("-device", "virtio-balloon-pci"),
)


def _nodes(low: int, high: int) -> tuple[str, ...]:
    parts = ["-m", f"{low + high}M", "-smp", "2,sockets=2"]
    for node, size in enumerate((low, high)):
        parts += ["-object", f"memory-backend-ram,id=n{node},size={size}M"]
        parts += ["-numa", f"node,nodeid={node},cpus={node},memdev=n{node}"]
    return tuple(parts)


@dataclass(frozen=True)
class Shape:
    """A machine's memory, and what its kernel is told."""

    arguments: tuple[str, ...]
    options: str = ""


SHAPES = {
    "one": Shape(("-m", "1536M", "-smp", "2,sockets=2")),
    "nodes": Shape(_nodes(512, 1024)),
    # Nothing of it is in the host's memory before it is written, nor what the guest only frees.
    "large": Shape(
        (
            *("-m", "64G", "-object", "memory-backend-ram,id=all,size=64G,reserve=off"),
            *("-machine", "memory-backend=all", "-smp", "2,sockets=2"),
        ),
        "init_on_alloc=0",
    ),
}


class Machines:
    """The waiting machines of one kernel, in a folder."""

    def __init__(self, kernel: str, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        booted = kernels.get(kernel, say, MODULES)
        self.kernel: Kernel = kernels.with_built(booted, machine.GUEST / "exam", say)
        self._name = kernel

    def _tree(self) -> Path:
        """The disk that every machine runs from."""
        image = self._folder / "tree.ext4"
        if image.exists():
            return image
        tree = self._folder / "tree"
        tree.mkdir(parents=True)
        arch = self.kernel.architecture
        if arch is not AMD64:
            debian_tree.unpack(arch, tree)
        live.build_site(tree, None, ())
        begin = live.build_python(tree, ()) if arch is AMD64 else debian_tree.start(arch)
        shutil.copy(HERE / "exam_guest.py", tree / "site")
        (tree / "modules").mkdir()
        for number, module in enumerate(self.kernel.modules):
            shutil.copy(module, tree / "modules" / f"{number:02}-{module.name}")
        for name in ("data", "sbin"):
            (tree / name).mkdir(exist_ok=True)
        init = tree / "sbin" / "init"
        program = (HERE / "programs" / "exam_wait.py").read_text()
        init.write_text(f"#!/python\n{begin}sys.dont_write_bytecode = True\n{program}")
        init.chmod(0o755)
        size = sum(path.lstat().st_size for path in tree.rglob("*")) + (128 << 20)
        live.tool("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(image), str(size >> 10))
        shutil.rmtree(tree)
        init = self._folder / "init"
        live.tool(arch.compiler, "-static", "-O2", "-D_GNU_SOURCE", "-o", str(init),
                  str(HERE / "programs" / "switch_root.c"))  # fmt: skip
        names = [module.stem for module in self.kernel.modules]
        for_the_disk = self.kernel.modules[: names.index("virtio_blk") + 1]
        machine.build_initramfs(self._folder, init, for_the_disk)
        return image

    def waiting(self, shape: str) -> Path:
        """The file with the waiting machine of a shape, made if it is not there."""
        state = self._folder / f"{shape}.state"
        if not state.exists():
            self._say(f"booting {self.kernel.release}, shape {shape}")
            self._tree()
            work = self._folder / f"{shape}.boot"
            work.mkdir(exist_ok=True)
            asyncio.run(self._boot(shape, work, state))
            shutil.rmtree(work)
        return state

    async def _boot(self, shape: str, work: Path, state: Path) -> None:
        async with self._running(shape, work, None) as (qmp, console):
            await console.wait("waiting", WAIT_SECONDS)
            await qmp.execute("stop")
            # No slower than the disk is.
            await qmp.execute("migrate-set-parameters", {"max-bandwidth": 4 << 30})
            await qmp.execute("migrate", {"uri": f"exec:cat > {state}.part"})
            await _until_done(qmp)
        Path(f"{state}.part").rename(state)

    def play(self, shape: str, case: dict[str, object], work: Path) -> None:
        """
        Play a case; leaves ``vmcore``, ``console.log`` and what the guest wrote in *work*.

        :raises LabError: it did not come about, or the guest failed.
        """
        state = self.waiting(shape)
        asyncio.run(self._play(shape, case, work, state))

    async def _play(self, shape: str, case: dict[str, object], work: Path, state: Path) -> None:
        async with self._running(shape, work, state) as (qmp, console):
            deadline = time.monotonic() + 60
            while (await _status(qmp)) == "inmigrate":
                if time.monotonic() > deadline:
                    raise LabError("the waiting machine does not begin")
                await asyncio.sleep(0.05)
            programs = {name: (HERE / f"{name}.py").read_text() for name in PROGRAMS}
            whole = json.dumps({**case, "programs": programs}).encode()
            (work / "case").write_bytes(whole.ljust(1 << 20, b"\0"))
            await qmp.execute("cont")
            until = asyncio.create_task(console.wait("ready", CASE_SECONDS))
            if balloon := case.get("balloon"):
                await qmp.execute("balloon", {"value": (1536 << 20) - int(str(balloon))})
            await until
            await qmp.execute("stop")
            await _dump(qmp, work / "vmcore")
        with tarfile.open(work / "out", ignore_zeros=False) as tar:
            tar.extractall(work, filter="data")
        for name in ("out", "case", "swap", "data.ext4"):
            (work / name).unlink()

    @contextlib.asynccontextmanager
    async def _running(
        self, shape: str, work: Path, state: Path | None
    ) -> AsyncIterator[tuple[QMPClient, _Console]]:
        for name, size in (("case", 1 << 20), ("out", 256 << 20), ("swap", 2 << 30)):
            with (work / name).open("wb") as file:
                file.truncate(size)
        data = work / "data.ext4"
        live.tool("mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1", str(data), str(8 << 20))
        console = _Console(work / "console.log", self._say)
        ours, theirs = socket.socketpair()
        arch = self.kernel.architecture
        line = " ".join((
            f"console={arch.console} panic=-1 numa_balancing=disable psi=1", arch.options,
            self.kernel.options, live.WITHOUT_CX16.get(self._name, ""), SHAPES[shape].options,
        ))  # fmt: skip
        disks = [(self._folder / "tree.ext4", "snapshot=on")]
        disks += [(work / "case", "readonly=on,cache=none"), (work / "out", "cache=unsafe")]
        disks += [(data, "cache=unsafe"), (work / "swap", "cache=unsafe")]
        command = [
            *DIES_WITH_US,
            arch.qemu,
            *_MACHINES[arch],
            *_REST,
            *SHAPES[shape].arguments,
            *("-serial", f"file:{console.path}"),
            *("-chardev", f"socket,id=qmp,fd={theirs.fileno()}"),
            *("-mon", "chardev=qmp,mode=control"),
            *("-kernel", str(self.kernel.vmlinuz), "-append", line),
            *("-initrd", str(self._folder / "initramfs")),
            *(("-incoming", f"exec:cat {state}") if state else ()),
        ]
        for path, how in disks:
            command += ["-drive", f"file={path},format=raw,if=virtio,{how}"]
        with (work / "qemu.log").open("wb") as errors:
            qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                                    pass_fds=[theirs.fileno()])  # fmt: skip
        theirs.close()
        console.qemu = qemu
        qmp = QMPClient("exam")
        try:
            async with asyncio.timeout(60):
                await qmp.connect(ours)
            yield qmp, console
        except (QMPError, OSError, TimeoutError) as error:
            said = (work / "qemu.log").read_text(errors="replace").strip()
            raise LabError(f"QEMU: {error!r} {said}") from error
        finally:
            with contextlib.suppress(QMPError, OSError, EOFError):
                await qmp.disconnect()
            qemu.kill()
            qemu.wait()


async def _dump(qmp: QMPClient, vmcore: Path) -> None:
    """A dump in which pages of zeros take no disk."""
    pipe = vmcore.with_name("pipe")
    os.mkfifo(pipe)
    writer = subprocess.Popen(
        [*DIES_WITH_US, "dd", f"if={pipe}", f"of={vmcore}", "bs=1M", "iflag=fullblock",
         "conv=sparse", "status=none"]
    )  # fmt: skip
    try:
        await qmp.execute("dump-guest-memory", {"paging": False, "protocol": f"file:{pipe}"})
        if writer.wait():
            raise LabError("the dump cannot be written")
    finally:
        writer.kill()
        writer.wait()
        pipe.unlink()


async def _status(qmp: QMPClient) -> str:
    said = await qmp.execute("query-status")
    assert isinstance(said, dict)
    return str(said["status"])


async def _until_done(qmp: QMPClient) -> None:
    while True:
        said = await qmp.execute("query-migrate")
        assert isinstance(said, dict)
        if said.get("status") == "completed":
            return
        if said.get("status") == "failed":
            raise LabError(f"QEMU cannot write the waiting machine: {said}")
        await asyncio.sleep(0.1)


class _Console:
    """The serial console; the lines of the exam's guest are passed on."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self._say, self._at = path, say, 0
        self.qemu: subprocess.Popen[bytes]

    async def wait(self, words: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            text = self.path.read_text(errors="replace") if self.path.exists() else ""
            lines = [line[6:].strip() for line in text.splitlines() if line.startswith("exam: ")]
            for line in lines[self._at :]:
                self._say(f"guest {line}")
            self._at = len(lines)
            if any(line.endswith(f"] {words}") for line in lines):
                return
            tail = "\n".join(text.splitlines()[-25:])
            failed = [line for line in lines if "FAILED" in line]
            if failed:
                raise LabError(f"{failed[0]}\n{tail}")
            if self.qemu.poll() is not None:
                raise LabError(f"the guest died before '{words}'\n{tail}")
            if time.monotonic() > deadline:
                raise LabError(f"'{words}' is not said after {seconds:g} s\n{tail}")
            await asyncio.sleep(0.1)
