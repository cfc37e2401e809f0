# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory of DMA, BPF, AIO, KVM, VFIO, RDMA, swiotlb by holder: as planted, as the kernel says."""

import re
from collections.abc import Callable

import named_damage
import pytest
from capture import Capture
from conftest import KERNELS
from drgn import Object, container_of
from forked import in_a_fork, opened
from holders_lab import NETWORK, device_modules, holders_capture, rdma_modules
from kernels import workloads
from named_damage import say as put_number

from mmscope.drgn.ledger.memory_ledger import LedgerRow, memory_ledger_from_memory
from mmscope.drgn.ledger.page_holders import (
    PageHolder,
    VirtualMachine,
    page_holders_from_memory,
)
from mmscope.drgn.ledger.page_places import page_places
from mmscope.drgn.ledger.pins import pins_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found

# Debian's that have drivers of graphics cards and of RDMA.
STANDARD = [
    pytest.param(name, marks=pytest.mark.brief) for name in KERNELS if name.startswith("standard")
]
# Others run few workloads.
TAKEN = [*STANDARD, *(name for name in KERNELS if not workloads(name))]
PAGE, MIB = 4096, 1 << 20
# programs/owners.c
HEAP, SHARED = 8 * MIB // PAGE + 3, 2 * MIB // PAGE
SMALL = {"a_small_array"}
# Built without the system heap and udmabuf; memlock of a map is an estimate there.
OLD = ("5.10", "6.1")
# Given to a device: small pages, a huge one, shared memory, of which half is given twice.
GIVEN = {"base pages": 3 * MIB // PAGE, "large folios": 512, "shmem": MIB // PAGE}
# Memory that machines were given, in MiB: a table of the last level for each 2 MiB, and one each of
# four levels above, as the host has five.
MACHINES = {"o-small": 64, "o-large": 512}
TABLES = {"o-small": 64 // 2 + 4, "o-large": 512 // 2 + 4}

Lab = tuple[Capture, Found, list[PageHolder], list[VirtualMachine]]


@pytest.fixture(scope="module", params=TAKEN)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Lab:
    taken = holders_capture(request.param, say, "owners", device_modules(request.param))
    memory = Memory(open_target(taken.vmcore, [taken.vmlinux]))
    ledger, found = memory_ledger_from_memory(memory), page_holders_from_memory(memory)
    # What was pinned is what the kernel counts: pages of a memfd that are a dma-buf's, too.
    for each in (ledger, found, pins_from_memory(memory)):
        assert not each.notes
    return taken, ledger, found.by_name["page_holders"], found.by_name["virtual_machines"]


def test_dma_bufs_have_the_process_that_has_them_open(lab: Lab) -> None:
    taken, ledger, rows, _ = lab
    found = {row.comm: row for row in rows if row.kind == "dma-buf"}
    counted: list[LedgerRow] = ledger.by_name["memory_ledger"]
    pages = sum(row.pages for row in counted if row.part == "dma-bufs")
    if taken.kernel in OLD:
        assert not found and not pages
        return
    assert (found["o-heap"].holder, found["o-heap"].pages) == ("system camera", HEAP)
    # The memfd is closed: its pages are in no file any more.
    assert (found["o-memfd"].holder, found["o-memfd"].pages) == ("udmabuf", SHARED)
    assert pages == HEAP + SHARED


def test_maps_and_programs_have_what_memlock_says(lab: Lab) -> None:
    taken, _, rows, _ = lab
    said = {
        name: int(number)
        for name, number in re.findall(
            r"memlock of (\w+): ([0-9]+)", taken.console.read_text(errors="replace")
        )
    }
    assert said.keys() == {"an_array", "mapped_array", "a_hash", "opened", "attached"} | SMALL
    held = {row.holder.split()[-1]: row for row in rows if row.kind.startswith("BPF")}
    assert held.keys() == said.keys() - SMALL  # which are objects of slabs
    for name, row in held.items():
        assert row.owner == "vmalloc"
        # A structure beside the elements, and what percpu memory has: less than a page each.
        near = said[name] // 3 if taken.kernel in OLD else 2 * PAGE
        assert abs(row.bytes - said[name]) <= near, name
    comms = {name: row.comm for name, row in held.items()}
    assert comms.pop("attached") is None  # no process has it open
    assert comms.pop("opened") == "o-opened"
    assert set(comms.values()) == {"o-maps"}


def test_rings_of_aio_have_what_their_process_has_mapped(lab: Lab) -> None:
    said = re.search(r"rings of AIO: ([0-9]+)", lab[0].console.read_text(errors="replace"))
    (row,) = (row for row in lab[2] if row.kind == "AIO ring")
    assert said
    # The kernel has them in the page cache, and mapped.
    assert (row.comm, row.objects, row.bytes) == ("o-aio", 2, int(said[1]))
    assert (row.owner, row.part) == ("page cache", "files")


def test_tables_of_machines_are_those_that_the_kernel_counts(lab: Lab) -> None:
    rows = [row for row in lab[2] if row.kind == "virtual machine"]
    assert {row.comm: row.pages for row in rows} == (
        TABLES if device_modules(lab[0].kernel) else {}
    )
    assert {row.owner for row in rows} <= {"page tables"}
    vmstat = (lab[0].truth_b / "proc/vmstat").read_text()
    said = re.search(r"^nr_sec_page_table_pages ([0-9]+)$", vmstat, re.MULTILINE)
    # The first table of each is in no counter: kvm_tdp_mmu_alloc_root().
    of_machines = sum(row.pages for row in rows) - len(rows)
    of_iommus = sum(row.pages for row in lab[2] if row.kind == "IOMMU")
    assert bool(of_iommus) == bool(device_modules(lab[0].kernel))
    # Since "iommu: account IOMMU allocated memory" (212c5c078d83, in v6.11).
    counts = "nr_iommu_pages" in vmstat
    assert of_machines + (of_iommus if counts else 0) == (int(said[1]) if said else 0)


def test_files_of_guest_memfd_have_their_machine(lab: Lab) -> None:
    """Kernels 7.x have them for any machine."""
    said = re.search(r"guest_memfd: ([0-9]+)", lab[0].console.read_text(errors="replace"))
    rows = [row for row in lab[2] if row.kind == "guest_memfd"]
    assert bool(said) == bool(rows) == lab[0].kernel.removeprefix("standard-").startswith("7")
    for row in rows:
        assert said
        (of,) = (each for each in lab[3] if each.comm == row.comm)
        assert (row.comm, row.holder) == ("o-small", of.machine)
        assert (row.owner, row.part, row.bytes) == ("page cache", "files", int(said[1]))


def test_vcpus_have_their_pages(lab: Lab) -> None:
    rows = {row.comm: row for row in lab[2] if row.kind in ("vCPUs", "KVM")}
    # Of the host: one of each CPU, and the bitmap of I/O ports.
    assert not rows or (rows[None].kind, rows[None].pages) == ("KVM", 2 + 4)
    for comm in TABLES if device_modules(lab[0].kernel) else {}:
        # VMCB, MSRs (2), struct kvm_run, I/O, coalesced MMIO; and what is left of 40 for tables.
        assert rows[comm].objects == 1
        assert 6 <= rows[comm].pages <= 6 + 40


def test_what_a_device_has_of_a_process_is_pinned_for_it(lab: Lab) -> None:
    rows = [row for row in lab[2] if row.kind == "VFIO"]
    if not device_modules(lab[0].kernel):
        assert not rows
        return
    assert {(row.comm, row.holder) for row in rows} == {("o-device", "0000:00:10.0")}
    assert {row.part: row.pages for row in rows} == GIVEN
    assert {row.objects for row in rows} == {4}  # mappings


def test_buffers_that_do_not_fit_into_the_card_are_the_machines(lab: Lab) -> None:
    rows = [row for row in lab[2] if row.kind == "graphics"]
    if not lab[0].kernel.startswith("standard"):
        assert not rows  # built without graphics cards
        return
    assert {(row.holder.split()[0], row.part) for row in rows} == {
        ("qxl", "buffers of graphics cards")
    }
    held = {row.comm: row for row in rows}
    # 24 MiB in buffers of 512 KiB, of which the card takes 15 MiB at most.
    assert held["o-graphics"].pages == held["o-graphics"].objects * 128
    assert 18 <= held["o-graphics"].objects < 48
    assert held[None].objects == 1  # the console's
    vmstat = (lab[0].truth_b / "proc/vmstat").read_text()
    if said := re.search(r"^nr_gpu_active ([0-9]+)$", vmstat, re.MULTILINE):
        assert sum(row.pages for row in rows) == int(said[1])


def test_machines_have_the_memory_that_they_were_given(lab: Lab) -> None:
    machines: list[VirtualMachine] = lab[3]
    assert {row.comm: (row.given_bytes or 0) // MIB for row in machines} == (
        MACHINES if device_modules(lab[0].kernel) else {}
    )
    for row in machines:
        of = [each for each in lab[2] if each.holder == row.machine]
        pages = sum(each.pages for each in of if each.kind != "guest_memfd")
        assert (row.vcpus, row.kernel_bytes) == (1, pages * PAGE)


def test_hardly_anything_is_unexplained(lab: Lab) -> None:
    assert unexplained(lab[1]) < 0.0005


def unexplained(ledger: Found) -> float:
    """Share of all pages."""
    rows: list[LedgerRow] = ledger.by_name["memory_ledger"]
    pages = sum(row.pages for row in rows if row.owner == "unexplained")
    return pages / sum(row.pages for row in rows)


def iommus(taken: Capture) -> list[PageHolder]:
    """The memory of IOMMUs and of the devices behind them; nothing is missing."""
    found = page_holders_from_memory(Memory(open_target(taken.vmcore, [taken.vmlinux])))
    assert not found.notes
    return [row for row in found.by_name["page_holders"] if row.kind in ("IOMMU", "VFIO")]


def pages_of_iommus(taken: Capture) -> int:
    """The kernel's own count."""
    vmstat = (taken.truth_b / "proc/vmstat").read_text()
    return int(re.findall(r"^nr_iommu_pages ([0-9]+)$", vmstat, re.MULTILINE)[0])


@pytest.mark.x86
@pytest.mark.parametrize("kernel", STANDARD)
def test_memory_of_amds_iommus_is_what_the_kernel_counts(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = holders_capture(kernel, say, "owners", device_modules(kernel), iommu="amd")
    rows = iommus(taken)
    held = {row.holder: row.pages for row in rows if row.kind == "IOMMU"}
    assert {"page tables", "ivhd0", "PCI segment 0000"} <= held.keys()
    assert sum(held.values()) == pages_of_iommus(taken)
    given = {row.part: row.pages for row in rows if row.kind == "VFIO"}
    assert given == GIVEN


# Those before v6.11 do not count it.
ARM = [each for each in KERNELS if re.fullmatch(r"arm64-(6\.1[2-9]|[7-9].*)", each)]


@pytest.mark.parametrize("kernel", ARM)
def test_memory_of_arms_iommus_is_what_the_kernel_counts_and_its_queues(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = holders_capture(kernel, say, "owners", NETWORK, iommu="arm")
    held = {row.holder: row.pages for row in iommus(taken)}
    assert held.pop("page tables") == pages_of_iommus(taken) > 0
    ((name, pages),) = held.items()
    assert name.startswith("smmu3.")
    said = re.findall(r"allocated ([0-9]+) entries for (\w+)", taken.console.read_text("utf-8"))
    queues = sum({"cmdq": 16, "evtq": 32}[queue] * int(entries) for entries, queue in said)
    # Beside them the stream table of two levels, and a context descriptor.
    assert len(said) == 2
    assert queues // PAGE + 3 <= pages <= queues // PAGE + 16


@pytest.mark.parametrize("kernel", ARM)
def test_an_iommu_of_arm_of_more_than_there_can_be_is_told_of(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = holders_capture(kernel, say, "owners", NETWORK, iommu="arm")
    prog = open_target(taken.vmcore, [])
    head = Object(prog, "struct list_head", address=prog.symbol("iommu_device_list").address)
    type_ = prog.type("struct arm_smmu_master").member("smmu").type.type
    smmu = container_of(head.next, type_, "iommu")  # the only one
    named_damage.say(smmu.cmdq.q.llq.max_n_shift, 0xFFFFFFFF)
    named_damage.say(smmu.strtab_cfg.l2.num_l1_ents, 0xFFFFFFFF)
    notes = " ".join(page_holders_from_memory(Memory(prog)).notes)
    assert re.search(r"cmdq of smmu3\.\w+, of 2\^4294967295 entries", notes), notes
    assert re.search(r"streams of smmu3\.\w+ beyond 1,048,576", notes), notes


@pytest.mark.x86
@pytest.mark.parametrize("kernel", STANDARD)
def test_memory_that_is_registered_for_rdma_is_what_the_kernel_has_pinned(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = holders_capture(kernel, say, "rdma", rdma_modules(kernel))
    found = page_holders_from_memory(Memory(open_target(taken.vmcore, [taken.vmlinux])))
    rows: list[PageHolder] = [row for row in found.by_name["page_holders"] if row.kind == "RDMA"]
    assert not found.notes
    assert {row.holder for row in rows} == {"rxe0"}
    # programs/rdma.c; what is few is registered from the middle of a page to that of another.
    assert {(row.comm, row.part): row.pages for row in rows} == {
        ("r-several", part): pages for part, pages in GIVEN.items()
    } | {("r-few", "base pages"): 5}
    assert {(row.comm, row.objects) for row in rows} == {("r-several", 4), ("r-few", 1)}
    vmstat = (taken.truth_b / "proc/vmstat").read_text()
    acquired, released = map(int, re.findall(r"^nr_foll_pin_\w+ ([0-9]+)$", vmstat, re.MULTILINE))
    twice = GIVEN["shmem"] // 2
    assert sum(row.pages for row in rows) + twice == acquired - released


@pytest.mark.x86
@pytest.mark.odd_machine
@pytest.mark.parametrize("kernel", KERNELS)
def test_slots_of_swiotlb_are_those_that_the_kernel_counts(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = holders_capture(kernel, say, "bounce", NETWORK)
    memory = Memory(open_target(taken.vmcore, [taken.vmlinux]))
    found = page_holders_from_memory(memory)
    said = re.search(r"slots in use: ([0-9]+)", taken.console.read_text(errors="replace"))
    rows: list[PageHolder] = [r for r in found.by_name["page_holders"] if r.kind == "swiotlb"]
    assert said and not found.notes
    # Large allocations of kmalloc() have no mark in 6.1 and 6.12, nor have a driver's blocks.
    assert unexplained(memory_ledger_from_memory(memory)) < 0.0005
    if kernel == "5.10":  # its slots are no structures
        assert not rows
        return
    (row,) = rows
    assert row.objects == int(said[1]) >= 200
    # Slots are of 2 KiB, and mappings of a page and more begin at one.
    assert (row.objects + 1) // 2 <= row.pages <= row.objects
    assert (row.owner, row.part) == ("kernel reserves", "DMA pools")
    prog = opened(taken)
    pool = prog["io_tlb_default_mem"]
    pool = pool.defpool if hasattr(pool, "defpool") else pool
    if not hasattr(pool, "areas"):
        return

    def missing(used: int) -> str:
        put_number(pool.areas[0].used, used)
        return " ".join(page_places(Memory(prog)).missing)

    assert "by its count" in in_a_fork(lambda: missing(1 << 20))
