# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of the kernel for virtual machines (``struct kvm``, virt/kvm/kvm_main.c; x86), beside what
they have of their process's.

- Their page tables, from guest physical to host physical addresses: those of the TDP MMU
  (``tdp_mmu_roots``) are followed from their roots down, as the CPU does; shadow pages, for nested
  machines or without EPT and NPT, are on a list (``active_mmu_pages``).
- Spare pages for further tables, of which each vCPU keeps up to 40
  (``KVM_ARCH_NR_OBJS_PER_MEMORY_CACHE``), and what the CPU has of a vCPU: VMCB or VMCS, bitmaps of
  MSRs, local APIC, ``struct kvm_run``.
- What it was given of its process's memory: slots of its first address space (``kvm_memslots``),
  RAM, ROM and video memory, touched or not.
- Files of memory for a machine (guest_memfd, virt/kvm/guest_memfd.c), whose pages are page cache
  and are counted in the pass over all struct pages.
- Of each CPU what SVM needs of the host, and the bitmap of I/O ports of all machines.

Costs a read of each table that is not of the last level, and some twenty for each vCPU. Nothing
where no machine runs. The types are those of the modules' BTF.

Cannot know: what vmalloc() and kmalloc() give (dirty rings); tables of AVIC and of posted
interrupts, pages of SEV and of TDX, which the firmware has; machines of other architectures.
"""

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
from drgn import Object, Program, TypeKind, cast, offsetof
from drgn.helpers.linux.list import hlist_for_each_entry
from drgn.helpers.linux.percpu import per_cpu
from drgn.helpers.linux.xarray import xa_for_each

from mmscope.drgn.holders.holdings import Holder, Holdings, Machine, pointers
from mmscope.drgn.holders.second_tables import MOST_TABLES, frames_of, tables_below
from mmscope.drgn.opening.btf import struct_of
from mmscope.drgn.processes.open_files import NO_PROCESS, OpenFiles
from mmscope.drgn.reading.cpus import possible_cpus
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps, U64s
from mmscope.drgn.reading.linked_lists import walk_list
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reading.symbols import variable_of

MOST_MACHINES, MOST_CPUS, MOST_SPARE = 1 << 14, 1 << 13, 1 << 12
MOST_SLOTS = 1 << 15  # KVM_MEM_SLOTS_NUM
IOPM_PAGES = 4  # of IOPM_SIZE (arch/x86/kvm/svm/svm.h), a block
# What a vendor's module has of a vCPU, and pages of each; of MSRs MSRPM_SIZE.
SVM = {"vmcb01.ptr": 1, "msrpm": 2, "nested.vmcb02.ptr": 1, "nested.msrpm": 2, "sev_es.vmsa": 1}
VMX = {"vmcs01.vmcs": 1, "vmcs01.shadow_vmcs": 1, "vmcs01.msr_bitmap": 1}
MACHINE, CPUS, GUEST_FILE = "virtual machine", "vCPUs", "guest_memfd"


def add_virtual_machines(
    prog: Program, files: OpenFiles, found: Holdings, table: int, other: int
) -> None:
    """
    Tables and pages of vCPUs by machine.

    :param table: kind of the page tables; *other*: of the rest.
    """
    if (head := variable_of(prog, "kvm", "vm_list")) is None:
        return
    machine = struct_of(prog, "kvm", "kvm")
    machines, whole = walk_list(prog, head, offsetof(machine, "vm_list"), MOST_MACHINES)
    if not whole:
        found.missing.append("virtual machines: their list could not be followed to the end")
    if machines and not machine.member("arch").type.has_member("active_mmu_pages"):
        found.missing.append("virtual machines: of x86 alone")
        return
    opened, who = files.of_kind(prog, variable_of(prog, "kvm", "kvm_vm_fops"))
    openers = dict(zip(opened.tolist(), who, strict=True))
    for address in machines:
        vm = Object(prog, machine, address=address)
        name = _machine_name(vm)
        process = openers.get(address, NO_PROCESS)
        tables = [np.empty(0, np.uint64), *_tables(prog, vm, found)]
        found.memory(Holder(MACHINE, name, process), table, np.concatenate(tables))
        blocks = [(each, 1) for each in _spare(vm.arch, "split_shadow_page_cache", found.gaps)]
        blocks.append((_address(vm, "coalesced_mmio_ring"), 1))
        cpus = list(_cpus(vm))
        for cpu in cpus:
            blocks += [*((each, 1) for each in _of_any(cpu, found.gaps)), *_of_vendor(cpu)]
        addresses, counts = np.array(blocks, np.uint64).T
        holder = Holder(CPUS, name, process)
        found.memory(holder, other, addresses, counts.astype(np.int64), objects=len(cpus))
        found.machines.append(Machine(name, process, len(cpus), _given(vm)))
    _guest_files(prog, files, found)
    _add_host(prog, found, other)


def _guest_files(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Files of guest_memfd by machine and process."""
    if (operations := variable_of(prog, "kvm", "kvm_gmem_fops")) is None:
        return
    for file in files.files[files.files["f_op"] == operations]:
        opened = Object(prog, "struct file", address=int(file["address"]))
        try:
            of = struct_of(prog, "gmem_file", "kvm")
        except LookupError:
            # "KVM: guest_memfd: Rename "struct kvm_gmem" to ..." (497b1dfbcacf, in v6.19)
            of = struct_of(prog, "kvm_gmem", "kvm")
        name = _machine_name(Object(prog, of, address=int(file["private_data"])).kvm)
        holder = Holder(GUEST_FILE, name, files.processes[file["process"]])
        found.guest_files[opened.f_mapping.value_()] = holder


def _machine_name(vm: Object) -> str:
    """Name that a machine's folder in debugfs begins with."""
    return f"kvm-{vm.userspace_pid.value_()}"


def _given(vm: Object) -> int | None:
    """Pages of the slots of memory of a machine; None of 5.10, whose slots are an array."""
    slots = vm.memslots[0].read_()
    if not hasattr(slots, "id_hash"):
        return None
    slot = struct_of(vm.prog_, "kvm_memory_slot", "kvm")
    link = f"id_node[{int(slots.node_idx.value_())}]"
    pages = 0
    for head in slots.id_hash:
        entries = hlist_for_each_entry(slot, head.address_of_(), link)
        pages += sum(int(entry.npages.value_()) for entry in itertools.islice(entries, MOST_SLOTS))
    return pages


def _address(of: Object, *names: str) -> int:
    """The pointer that a member has; 0 where the kernel has no such member."""
    for name in names:
        if not hasattr(of, name):
            return 0
        of = getattr(of, name)
    return int(of.value_())


def _tables(prog: Program, vm: Object, found: Holdings) -> Iterator[U64s]:
    """Addresses of the tables of a machine."""
    page = struct_of(prog, "kvm_mmu_page", "kvm")
    link = offsetof(page, "link")
    # What is shadowed by a page: gfns, of 5.10.
    shadowed = ("shadowed_translation", "gfns")
    columns: Columns = {"spt": "spt", "role": "role.word", "shadowed": shadowed}
    for name in ("active_mmu_pages", "tdp_mmu_roots"):
        if not hasattr(vm.arch, name):
            continue
        head = getattr(vm.arch, name).address_
        heads, whole = walk_list(prog, head, link, MOST_TABLES)
        if not whole:
            found.missing.append("virtual machines: a list of tables could not be followed")
        rows, read = read_members(prog, np.array(heads, np.uint64), page, columns, found.gaps)
        rows = rows[read]
        if name == "active_mmu_pages":
            yield rows["spt"]
            yield rows["shadowed"]
        else:
            levels = rows["role"].astype(np.uint64) & np.uint64(15)
            yield from tables_below(prog, rows["spt"], levels, found, "virtual machines")


def _cpus(vm: Object) -> Iterator[Object]:
    """``struct kvm_vcpu *`` of a machine."""
    most = min(int(vm.online_vcpus.counter.value_()), MOST_CPUS)
    if hasattr(vm, "vcpu_array"):
        for _, entry in itertools.islice(xa_for_each(vm.vcpu_array.address_of_()), most):
            yield cast("struct kvm_vcpu *", entry)
    else:  # of 5.10 an array
        for number in range(most):
            yield vm.vcpus[number]


def _spare(of: Object, name: str, gaps: Gaps) -> list[int]:
    """Pages of a ``struct kvm_mmu_memory_cache``, whose objects are no slab cache's."""
    cache = getattr(of, name, None)
    if cache is None or cache.kmem_cache:
        return []
    # Of 5.10 an array, allocated when it is filled first since.
    is_pointer = cache.objects.type_.kind is TypeKind.POINTER
    address = cache.objects.value_() if is_pointer else cache.objects.address_
    count = min(int(cache.nobjs.value_()), MOST_SPARE) if address else 0
    return [int(page) for page in pointers(of.prog_, address, count, gaps).tolist()]


def _of_any(cpu: Object, gaps: Gaps) -> list[int]:
    """Pages of a vCPU, whatever the CPU that it runs on."""
    arch, pages = cpu.arch, [_address(cpu, "run")]
    for name in ("mmu_shadow_page_cache", "mmu_shadowed_info_cache", "mmu_gfn_array_cache"):
        pages += _spare(arch, name, gaps)
    for mmu in (arch.root_mmu, arch.guest_mmu):
        pages += [_address(mmu, name) for name in ("pae_root", "pml4_root", "pml5_root")]
    pages += [_address(arch, name) for name in ("pio_data", "sev_pio_data")]
    if arch.apic:
        type_ = struct_of(cpu.prog_, "kvm_lapic", "kvm")
        apic = Object(cpu.prog_, type_, address=arch.apic.value_())
        pages.append(_address(apic, "regs"))
    return pages


def _of_vendor(cpu: Object) -> list[tuple[int, int]]:
    """Blocks that the vendor's module has of a vCPU: addresses, and pages."""
    prog = cpu.prog_
    for module, structure, members in (
        ("kvm_amd", "vcpu_svm", SVM),
        ("kvm_intel", "vcpu_vmx", VMX),
    ):
        with contextlib.suppress(LookupError):
            type_ = struct_of(prog, structure, module)
            its = Object(prog, type_, address=cpu.value_() - offsetof(type_, "vcpu"))
            return [(_address(its, *path.split(".")), pages) for path, pages in members.items()]
    return []


def _add_host(prog: Program, found: Holdings, kind: int) -> None:
    """Memory that SVM has of the host: a page of each CPU, and a bitmap of I/O ports."""
    address = variable_of(prog, "kvm_amd", "svm_data")
    if address is None:
        return
    blocks = []
    with contextlib.suppress(LookupError):  # modules of 5.10 have no BTF
        type_ = struct_of(prog, "svm_cpu_data", "kvm_amd")
        # "KVM: SVM: do not allocate struct svm_cpu_data dynamically" (73412dfeea72, in v6.1)
        if type_.has_member("save_area_pa"):
            data = Object(prog, type_, address=address)
            for cpu in possible_cpus(prog):
                blocks.append((int(per_cpu(data, cpu).save_area_pa.value_()), 1))
    if (address := variable_of(prog, "kvm_amd", "iopm_base")) is not None:
        blocks.append((prog.read_u64(address), IOPM_PAGES))
    addresses, counts = np.array(blocks, np.uint64).reshape(-1, 2).T
    addresses, counts = addresses[addresses != 0], counts[addresses != 0]
    frames = frames_of(prog, addresses)
    found.frames(Holder("KVM", "of the host"), kind, frames, counts.astype(np.int64), objects=0)
