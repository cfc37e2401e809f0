# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Frozen guests with memory behind open files of every kind (``programs/holders.c``), with dma-bufs,
BPF maps and programs, AIO, KVM and VFIO (``programs/owners.c``), with tasks that wait
(``programs/stuck.c``, ``programs/locks.c``, ``programs/stall.c``, and ``programs/servers.c``, which
has a disk), with a network device behind swiotlb (``programs/bounce.c``), with swap in zram and
zswap (``programs/compressed.c``), and with memory that is registered with an RDMA device
(``programs/rdma.c``).
"""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import kernels
import machine
from architectures import AMD64
from archive import run
from capture import Capture
from kept_captures import kept
from kernels import Kernel, with_built

PROGRAMS = Path(__file__).parent / "programs"
# QEMU's CPU has SVM, emulated.
# AMD's needs a CPU with cmpxchg16b (architectures.py says what of it is wrong), which slab caches
# do not use when they are checked.
IOMMUS = {
    "intel": ("-device", "intel-iommu"),
    "amd": ("-device", "amd-iommu", "-cpu", "max"),
    "arm": ("-machine", "virt,gic-version=3,iommu=smmuv3"),
}
IOMMU_OPTIONS = {"intel": "intel_iommu=on", "amd": "slab_debug=F"}
KVM = ("irqbypass", "kvm", "kvm-amd")
VFIO = ("vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci")
# A graphics card with little memory, of the kernels that have drivers of any.
GRAPHICS = ("drm", "drm_kms_helper", "ttm", "drm_ttm_helper", "drm_exec")
CARD = ("-device", "qxl,ram_size=16777216,vram_size=8388608,vgamem_mb=8")
RDMA = ("ib_uverbs", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe")
NETWORK = ("failover", "net_failover", "virtio_net")
DISKS = {"servers": 32 << 20}
# More CPUs than two, of the first node.
CPUS = {"locks": 4}
DEVICES = {"bounce": ("-device", "virtio-net-pci,disable-legacy=on,iommu_platform=on")}
OPTIONS = {"bounce": "swiotlb=force"}
# What /proc/PID/stack leaves out: functions of the scheduler's section (__sched), locks' included.
SCHEDULER = re.compile(
    r"^(__|preempt_|io_)?schedule(_\w+)?$|^__switch_to$|^__mutex_lock|^rwsem_down|^down_"
    r"|^(__)?percpu_|^(__)?(rt_mutex|rwbase|folio_lock|inode_lock)|^mutex_lock"
    r"|^(out_of_line_|__)wait_on_bit$|^bit_wait"
)


def build(kernel: Kernel, program: Path, folder: Path) -> Path:
    """The guest's ``/init`` with a program in place of its workload "sizes"."""
    init = folder / "init"
    sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(program)]
    options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernel.page_bytes}UL")
    compiler, wrapped = kernel.architecture.compiler, "-Wl,--wrap=workload_sizes"
    subprocess.run([compiler, *options, wrapped, "-o", str(init), *sources], check=True)
    return init


def make_disk(folder: Path, size: int) -> tuple[str, ...]:
    """A disk with an ext4, and QEMU's arguments for it."""
    disk = folder / "own-disk"
    disk.touch()
    os.truncate(disk, size)
    run("mkfs.ext4", "-q", str(disk))
    return "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"


def device_modules(name: str) -> tuple[str, ...]:
    """
    Modules of KVM, VFIO and a graphics card; none where a kernel has them without types: 5.10.
    """
    if kernels.architecture(name) is not AMD64 or name not in kernels.stock() or name == "5.10":
        return ()
    if name.startswith("standard"):
        newer = ["drm_client_lib"] if name == "standard-7.3" else []
        return ("ccp", *KVM, *VFIO, *GRAPHICS, *newer, "qxl")
    return (*KVM, *(["vfio_virqfd"] if name == "6.1" else []), *VFIO)


def rdma_modules(name: str) -> tuple[str, ...]:
    """Modules of RDMA, of the kernels that have a driver without hardware."""
    return ("ib_core", "ib_uverbs_support" if name == "standard-7.3" else "crc32_generic", *RDMA)


def holders_capture(
    name: str,
    say: Callable[[str], None],
    what: str = "holders",
    modules: Sequence[str] = (),
    built: Path | None = None,
    iommu: str = "intel",
) -> Capture:
    """
    The capture of a kernel and one of the programs.

    :param built: folder of a module that is built for it.
    :param iommu: whose the guest has, of those with VFIO.
    """
    program = PROGRAMS / f"{what}.c"
    sources: list[Path | str] = [program, PROGRAMS / "parts.h", *DEVICES.get(what, ())]
    sources += sorted(built.iterdir()) if built is not None else []

    def take(kernel: Kernel, folder: Path) -> None:
        if built is not None:
            kernel = with_built(kernel, built, say)
        arguments = make_disk(folder, DISKS[what]) if what in DISKS else DEVICES.get(what, ())
        if what in CPUS:
            arguments += ("-smp", f"{CPUS[what]},sockets={CPUS[what]}")
        if "vfio" in modules:
            arguments += (*IOMMUS[iommu], "-device", "edu,addr=0x10")
            if name.startswith("7"):
                arguments += ("-global", "intel-iommu.x-scalable-mode=on")
            kernel = replace(kernel, options=f"{kernel.options} {IOMMU_OPTIONS[iommu]}")
        elif iommu == "arm":
            arguments += (*IOMMUS[iommu], *DEVICES["bounce"])
        if "qxl" in modules:
            arguments += CARD
        if what in OPTIONS:
            kernel = replace(kernel, options=f"{kernel.options} {OPTIONS[what]}")
        init = build(kernel, program, folder)
        machine.run(kernel, "sizes", folder, say, init=init, qemu_args=arguments)
        (folder / "own-disk").unlink(missing_ok=True)

    own = what if iommu == "intel" else f"{what}_{iommu}"
    folder, kernel = kept(name, own, sources, take, say, modules)
    return Capture(
        kernel.name, kernel.release, what, folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
