# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A dump that is packed, read by a second handle of libkdumpfile and by drgn alone: the same bytes,
the same gaps, the same errors and the same tables. Whole, damaged, cut short, by several processes.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_files import contents
from conftest import Lab
from drgn import FaultError, Program
from drgn.helpers.linux.mm import follow_phys
from dump_formats import makedumpfile, plain_elf
from numpy.typing import NDArray
from packed_dump import KINDS, packed_dump

from mmscope.drgn.dumps.bulk_reads import LEAST, OWN, Handle, read_bytes
from mmscope.drgn.dumps.core_file import PAGE_DESCRIPTOR, read_kdump
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps, read_array
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.workers.workers import in_workers
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

pytestmark = pytest.mark.x86

PAGE = 4096
SECTIONS = (
    *("memory_ledger", "free_lists", "accounting", "pcp_lists", "pageblocks", "slab_caches"),
    *("cached_files", "memory_cgroups", "rmap_cost", "page_tables", "process_shares"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("packed")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module", params=KINDS)
def dump(lab: Lab, folder: Path, request: pytest.FixtureRequest) -> Path:
    return packed_dump(lab.capture.vmcore, folder / request.param, request.param)


def opened(dump: Path, *symbols: Path) -> tuple[Program, Program]:
    """The dump with a second handle, and without."""
    both = [open_target(dump, symbols) for _ in range(2)]
    assert isinstance(both[1].cache.pop(OWN), Handle)
    assert isinstance(both[0].cache[OWN], Handle)
    return both[0], both[1]


def memory_map(prog: Program) -> list[tuple[int, int]]:
    """(address, pages) of the struct pages."""
    return [(address, end - start) for start, end, address in valid_page_ranges(prog)]


def struct_pages(prog: Program, at: list[tuple[int, int]]) -> tuple[list[Any], int]:
    """What can be read of all struct pages, and how much cannot."""
    gaps, found = Gaps(), []
    whole = np.dtype((np.void, prog.type("struct page").size))
    for address, count in at:
        for first, array in read_array(prog, address, count, whole, gaps):
            found.append((address, first, len(array), hashlib.sha256(array).hexdigest()))
    return found, gaps.bytes


def error(prog: Program, address: int, size: int) -> str:
    with pytest.raises(FaultError) as raised:
        read_bytes(prog, address, size)
    return str(raised.value)


def frames_of(prog: Program, address: int, count: int) -> list[int]:
    swapper = prog["init_mm"].address_of_()
    places = range(address, address + count * PAGE, PAGE)
    return [follow_phys(swapper, place).value_() // PAGE for place in places]


def numbers_of(dump: Path, frames: list[int]) -> NDArray[np.int64]:
    """Which of the dump's pages these page frames are; they are all there."""
    kdump = read_kdump(dump)
    assert kdump is not None
    size = kdump.bitmap_bytes
    bits = np.unpackbits(
        np.fromfile(dump, np.uint8, size, offset=kdump.bitmaps + size), bitorder="little"
    )
    assert bits[frames].all()
    numbers: NDArray[np.int64] = np.cumsum(bits, dtype=np.int64)[frames] - 1
    return numbers


def descriptors(dump: Path, frames: list[int]) -> NDArray[np.void]:
    kdump = read_kdump(dump)
    assert kdump is not None
    numbers = numbers_of(dump, frames)
    begin = kdump.descriptors
    every = np.fromfile(dump, PAGE_DESCRIPTOR, int(numbers.max()) + 1, offset=begin)
    return every[numbers]


def test_every_struct_page_is_as_drgn_reads_it(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_handle, without = opened(dump)
    done: list[int] = []
    read = Handle.read

    def reading(self: Handle, address: int, size: int, physical: bool) -> memoryview | None:
        found = read(self, address, size, physical)
        done.append(len(found) if found is not None else 0)
        return found

    monkeypatch.setattr(Handle, "read", reading)
    at = memory_map(without)
    assert not done
    found = struct_pages(with_handle, at)
    size = without.type("struct page").size
    assert sum(done) == size * sum(count for _, count in at) > 10 << 20
    assert found == struct_pages(without, at)
    # By physical address, and where no page begins.
    for prog in (with_handle, without):
        phys = frames_of(prog, at[0][0], 1)[0] * PAGE
        data = prog.read(phys + 5, LEAST, True)
        assert read_bytes(prog, phys + 5, LEAST, True) == data
        assert read_bytes(prog, at[0][0] + 5, LEAST) == data


def test_errors_are_drgns(dump: Path) -> None:
    with_handle, without = opened(dump)
    address, count = memory_map(without)[-1]
    end = address + count * (without.type("struct page").size or 0)
    for begin, size in ((0, LEAST), (end - PAGE, CHUNK_BYTES), (1 << 63, LEAST)):
        assert error(with_handle, begin, size) == error(without, begin, size)
    assert read_bytes(with_handle, address, LEAST) == without.read(address, LEAST)


@pytest.mark.parametrize("how", ["bytes", "size", "offset", "flags", "zeros"])
def test_damaged_pages_are_the_same_gaps(dump: Path, folder: Path, how: str) -> None:
    """Of the memory map: of a page its content, or what the dump says of where and how it is."""
    damaged = folder / "damaged"
    shutil.copy(dump, damaged)
    prog = open_target(dump)
    at = memory_map(prog)
    kdump = read_kdump(damaged)
    assert kdump is not None
    frames = frames_of(prog, at[0][0], 2048)
    numbers = numbers_of(dump, frames)
    with damaged.open("r+b") as file:
        for which in (3, 700, 701, 1500):
            place = kdump.descriptors + int(numbers[which]) * PAGE_DESCRIPTOR.itemsize
            file.seek(place)
            page = np.frombuffer(bytearray(file.read(PAGE_DESCRIPTOR.itemsize)), PAGE_DESCRIPTOR)
            if how == "bytes":
                file.seek(int(page["offset"][0]))
                file.write(b"\xff" * int(page["size"][0]))
                continue
            new = {"size": 7, "offset": 1 << 60, "flags": 0, "zeros": 0}[how]
            page["offset" if how == "zeros" else how] = new
            if how == "zeros":
                page["size"] = 0
            file.seek(place)
            file.write(page.tobytes())
    with_handle, without = opened(damaged)
    found = struct_pages(without, at)
    assert struct_pages(with_handle, at) == found
    assert found[1] or how == "bytes"  # a library may unpack what was damaged
    for which in (3, 700, 1500) if found[1] else ():
        begin = at[0][0] + which * PAGE
        try:
            without.read(begin, LEAST)
        except FaultError:
            assert error(with_handle, begin, LEAST) == error(without, begin, LEAST)
    # And what was read then is as it was.
    assert struct_pages(with_handle, at) == found


def test_a_dump_that_was_cut_short_has_the_same_gaps(lab: Lab, dump: Path, folder: Path) -> None:
    """But for the page across the end, which libkdumpfile maps whole, and dies of SIGBUS."""
    cut = folder / "cut"
    prog = open_target(dump)
    address, count = max(memory_map(prog), key=lambda part: part[1])
    size = prog.type("struct page").size or 0
    pages = count * size // PAGE
    described = descriptors(dump, frames_of(prog, address, pages))
    begins = described["offset"].astype(np.int64)
    ends = begins + described["size"]
    for which in (pages // 4, pages // 2):
        end = -(-int(begins[which]) // PAGE) * PAGE
        shutil.copy(dump, cut)
        os.truncate(cut, end)
        at, first = [], 0
        for across in [*np.flatnonzero((begins < end) & (ends > end)).tolist(), pages]:
            at.append((address + first * PAGE, (across - first) * PAGE // size))
            first = across + 1
        with_handle, without = opened(cut, lab.capture.vmlinux)
        found = struct_pages(with_handle, at)
        assert struct_pages(without, at) == found
        assert 0 < found[1] < count * size
        cut.unlink()


def test_tables_are_the_same(dump: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, prog in enumerate(opened(dump)):
        bundle = folder / f"{dump.name}-{number}"
        with Writer(bundle) as writer:
            sections = collect(Memory(prog), describe(prog, "vmcore"), writer, SECTIONS)
        said = [(each.section, each.status, each.rows, each.message) for each in sections]
        found.append((contents(bundle), said))
    assert found[0] == found[1]
    assert len(found[0][0]) > len(SECTIONS)


def test_what_makedumpfile_leaves_out_stays_left_out(lab: Lab, folder: Path) -> None:
    elf, core = plain_elf(lab.capture.vmcore, folder / "elf"), folder / "31"
    makedumpfile("-c", "-d", "31", elf, core)
    elf.unlink()
    with_handle, without = opened(core)
    at = memory_map(without)
    assert struct_pages(with_handle, at) == struct_pages(without, at)
    # The direct map: by stretches of pages that are there and pages that are not.
    base, faults = without["page_offset_base"].value_(), 0
    for begin in range(base, base + (512 << 20), 1 << 20):
        try:
            data = without.read(begin, LEAST)
        except FaultError:
            faults += 1
            assert error(with_handle, begin, LEAST) == error(without, begin, LEAST)
        else:
            assert read_bytes(with_handle, begin, LEAST) == data
    assert faults


def test_several_processes_read_at_once(dump: Path) -> None:
    prog, _ = opened(dump)
    at = memory_map(prog)
    alone = struct_pages(prog, at)
    assert all(
        found == alone for found in in_workers(3, 6, lambda number, tell: struct_pages(prog, at))
    )
    assert struct_pages(prog, at) == alone
