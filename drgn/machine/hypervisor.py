# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hypervisor that the machine runs on, and drivers by which that takes memory back (balloons): by
the loaded modules, the kernel's log, and the firmware's DMI.

Costs a look at each module, and at each record of the log, which section ``kernel_log`` reads, too.

Cannot know: how much a balloon has, but where the kernel counts it (``nr_balloon_pages``, v6.16).
A driver that is built in is no module, and a log that does not reach back to the boot does not name
the hypervisor.
"""

import contextlib
import re
from collections.abc import Iterable
from itertools import islice

from drgn import FaultError
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.log.kernel_log import log_of_files, log_of_memory
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log

HYPERVISOR, BALLOON = "hypervisor", "balloon"
MOST_MODULES = 10_000
# drivers/hv/hv_balloon.c, drivers/virtio/virtio_balloon.c and virtio_mem.c, drivers/misc/
# vmw_balloon.c, drivers/xen/balloon.c, arch/powerpc/platforms/pseries/cmm.c (6.12, 7.2).
BALLOONS = {
    "hv_balloon": "Hyper-V",
    "virtio_balloon": "KVM",
    "virtio_mem": "KVM",
    "vmw_balloon": "VMware",
    "xen_balloon": "Xen",
    "cmm": "PowerVM",
}
# init_hypervisor_platform() (arch/x86/kernel/cpu/hypervisor.c); default_banner() and its like
# (arch/x86/kernel/paravirt.c).
SAID = re.compile(
    r"Hypervisor detected: (?P<detected>[\w .-]{2,40})\Z"
    r"|Booting paravirtualized kernel on (?P<booted>(?!bare hardware)[\w .-]{2,40})\Z"
    r"|(?P<balloon>hv_balloon|virtio_balloon|virtio_mem|vmw_balloon|xen_balloon)\b"
    r"|xen:balloon: (?P<xen>)"
)
NAMES = {"Microsoft Hyper-V": "Hyper-V", "VMware hypervisor": "VMware", "Xen HVM": "Xen"}
VENDORS = (
    ("QEMU", "KVM"), ("VMware", "VMware"), ("Microsoft Corporation", "Hyper-V"), ("Xen", "Xen"),
    ("Amazon EC2", "Amazon EC2"), ("Google", "KVM"), ("innotek GmbH", "VirtualBox"),
    ("OpenStack", "KVM"), ("Red Hat", "KVM"), ("Nutanix", "KVM"),
)  # fmt: skip


@table(
    "hypervisor_signs",
    "Hypervisor and balloons",
    empty="Nothing shows a hypervisor.",
    not_compared="it is what the machine is, and not what it does",
)
class HypervisorSign:
    """A sign of a hypervisor, or of a balloon driver."""

    kind: str = column(holds="words", key=True, help="hypervisor, or balloon (a driver)")
    name: str = column(holds="kernel", key=True, help="of hypervisor or driver")
    seen_in: str = column(holds="words", key=True, help="modules, log or dmi")


def signs_of_modules(names: Iterable[str]) -> list[HypervisorSign]:
    """Rows of the drivers among loaded modules."""
    loaded = {name.replace("-", "_") for name in names}
    return [HypervisorSign(BALLOON, name, "modules") for name in BALLOONS if name in loaded]


def signs_of_log(log: Log) -> list[HypervisorSign]:
    """Rows of what the kernel printed of its hypervisor, and its drivers."""
    found = set()
    for record in log.records:
        if record.facility in (None, 0) and (match := SAID.match(record.text)):
            said = match["detected"] or match["booted"]
            name = match["balloon"] or ("" if said else "xen_balloon")
            found.add((HYPERVISOR, NAMES.get(said, said)) if said else (BALLOON, name))
    return [HypervisorSign(kind, name, "log") for kind, name in sorted(found)]


def signs_of_dmi(vendor: str, product: str) -> list[HypervisorSign]:
    """A row of what the firmware says of the machine (``/sys/class/dmi/id``)."""
    if vendor.startswith("Microsoft") and "Virtual" not in product:
        return []  # a Surface
    if vendor.startswith("Google") and "Compute" not in product:
        return []
    name = next((name for begin, name in VENDORS if vendor.startswith(begin)), None)
    return [HypervisorSign(HYPERVISOR, name, "dmi")] if name else []


def hypervisor_from_memory(memory: Memory) -> Found:
    found, rows, prog = Found(memory.live), list[HypervisorSign](), memory.prog
    if "modules" in prog:  # CONFIG_MODULES
        modules = list_for_each_entry("struct module", prog["modules"].address_of_(), "list")
        rows = signs_of_modules(
            module.name.string_().decode("utf-8", "backslashreplace")
            for module in islice(modules, MOST_MODULES)
        )
    try:
        rows += signs_of_log(log_of_memory(memory))
    except (Absent, FaultError, ValueError) as reason:
        found.remarks.append(f"the log is not among what was looked at: {reason}")
    return found.add(HypervisorSign, rows)


def hypervisor_from_files(files: Files) -> Found:
    rows, looked = [], False
    lsmod = "sos_commands/kernel"
    for path in ("proc/modules", *([f"{lsmod}/lsmod"] if "lsmod" in files.names(lsmod) else [])):
        with contextlib.suppress(OSError):
            text = files.open(path)
            lines = filter(str.strip, text.split("\n"))
            rows = signs_of_modules(line.split(maxsplit=1)[0] for line in lines)
            looked = True
            break
    with contextlib.suppress(Absent, ValueError):
        rows += signs_of_log(log_of_files(files))
        looked = True
    with contextlib.suppress(OSError):
        vendor = files.open("sys/class/dmi/id/sys_vendor").strip()
        product = ""
        with contextlib.suppress(OSError):
            product = files.open("sys/class/dmi/id/product_name").strip()
        rows += signs_of_dmi(vendor, product)
        looked = True
    if not looked:
        raise Absent("there are no /proc/modules, log or /sys/class/dmi to show a hypervisor")
    return Found().add(HypervisorSign, rows)


HYPERVISOR_SECTION = Section(
    name="hypervisor",
    title="Hypervisor and balloons",
    since="0.3.0",
    tables=tables_of(
        HypervisorSign,
    ),
    intro="""
Signs that the machine is a guest, and drivers by which its hypervisor takes memory back: what a
balloon has is in use to the guest, and mostly in no counter. Where the kernel counts it, section
`vm_counters` has `nr_balloon_pages`, or `balloon_inflate` and `balloon_deflate`
([virtio-balloon](https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html)).
""",
    command=Command("the hypervisor, and balloons"),
    from_memory=hypervisor_from_memory,
    from_files=hypervisor_from_files,
    reads=(prices.KMSG, prices.NAMES),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("hypervisor")
