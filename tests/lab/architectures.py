# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The machines that the lab emulates: one for each architecture, all of them under software emulation.

Two nodes, two CPUs, 512 MiB and 1 GiB; a device that freezes the machine at the guest's word; and
``vmcoreinfo``, through which the kernel says where its VMCOREINFO is.
"""

from dataclasses import dataclass

_NODES = (
    *("-m", "1536M"),
    *("-object", "memory-backend-ram,id=low,size=512M", "-numa", "node,nodeid=0,cpus=0,memdev=low"),
    *(
        "-object",
        "memory-backend-ram,id=high,size=1024M",
        "-numa",
        "node,nodeid=1,cpus=1,memdev=high",
    ),
)
_REST = ("-action", "panic=pause", "-no-reboot", "-nodefaults", "-display", "none")
_VMCOREINFO = ("-device", "vmcoreinfo")


@dataclass(frozen=True)
class Architecture:
    """What boots its kernels here."""

    name: str  # as Debian calls it
    qemu: str
    qemu_package: str
    machine: tuple[str, ...]  # QEMU's arguments
    console: str
    options: str  # for the kernel's command line
    compiler: str
    compiler_packages: str
    zones: tuple[str, str]  # the zone of each node that has nearly all of its memory
    hardware: str  # as the kernel prints it with a stack


# thread=single: with a thread per CPU, one CPU now and then runs an int3 that another has already
# patched away again, and the guest dies ("Oops: int3"); it is not faster either, as the workloads
# keep one CPU busy at a time.
#
# -cx16: after cmpxchg16b, QEMU 7.2 can have garbage in the flags, and an interrupt just then is a
# double fault. Up to 6.12 the slab allocator uses that instruction all the time: of nine 6.12
# guests three died.
#
# no_timer_check: the kernel waits for ticks of the timer at boot, and panics where QEMU had too
# little of a busy machine meanwhile ("IO-APIC + timer doesn't work!").
#
# 512 MiB below 4 GiB and the rest above: zones DMA and DMA32 on node 0, Normal on node 1. A socket
# for each CPU, as the kernel does not believe in two nodes that share a last-level cache.
AMD64 = Architecture(
    name="amd64",
    qemu="qemu-system-x86_64",
    qemu_package="qemu-system-x86",
    machine=(
        *("-accel", "tcg,thread=single", "-cpu", "max,-cx16"),
        *("-machine", "q35,max-ram-below-4g=512M", "-smp", "2,sockets=2"),
        *_NODES,
        *("-device", "pvpanic"),
        *_VMCOREINFO,
        *_REST,
    ),
    console="ttyS0",
    options="no_timer_check",
    compiler="gcc",
    compiler_packages="gcc libc6-dev",
    zones=("DMA32", "Normal"),
    hardware="QEMU Standard PC",
)

# All memory is below 4 GiB, from 1 GiB on: zone DMA on both nodes, and no other.
#
# sve, sme: with these QEMU 7.2 writes dumps in which memory lies shifted. pauth-impdef: the
# architected algorithm of pointer authentication is slow to emulate.
ARM64 = Architecture(
    name="arm64",
    qemu="qemu-system-aarch64",
    qemu_package="qemu-system-arm",
    machine=(
        *("-accel", "tcg,thread=single", "-cpu", "max,sve=off,sme=off,pauth-impdef=on"),
        *("-machine", "virt,gic-version=3", "-smp", "2,sockets=2"),
        *_NODES,
        *("-device", "pvpanic-pci"),
        *_VMCOREINFO,
        *_REST,
    ),
    console="ttyAMA0",
    options="",
    compiler="aarch64-linux-gnu-gcc",
    compiler_packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    zones=("DMA", "DMA"),
    hardware="linux,dummy-virt",
)

# No vmcoreinfo: there is no fw_cfg, so that dumps lack the note, and it is taken from the guest.
PPC64EL = Architecture(
    name="ppc64el",
    qemu="qemu-system-ppc64",
    qemu_package="qemu-system-ppc",
    machine=(
        *("-accel", "tcg,thread=single", "-cpu", "power9"),
        *("-machine", "pseries", "-smp", "2,sockets=2"),
        *_NODES,
        *("-device", "pvpanic-pci"),
        *_REST,
    ),
    console="hvc0",
    options="",
    compiler="powerpc64le-linux-gnu-gcc",
    compiler_packages="gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross",
    zones=("DMA", "DMA"),
    hardware="pSeries",
)

ARCHITECTURES = {one.name: one for one in (AMD64, ARM64, PPC64EL)}
