# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A dump that is packed, read by a second handle of libkdumpfile and by drgn alone: the same bytes,
the same gaps, the same errors and the same tables. Whole, damaged, cut short, by several processes.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_files import contents
from conftest import Lab
from cut_dump import about, cut_across, frames_in, numbers_of
from drgn import FaultError, Program
from drgn.helpers.linux.mm import follow_phys
from dump_formats import makedumpfile, plain_elf
from numpy.typing import NDArray
from packed_dump import KINDS, packed_dump

from mmscope.drgn.dumps import cut_short
from mmscope.drgn.dumps.bulk_reads import LEAST, OWN, Handle, read_bytes
from mmscope.drgn.dumps.core_file import (
    PAGE_DESCRIPTOR,
    missing_bytes,
    missing_frames,
    read_kdump,
)
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps, read_array
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.workers.workers import in_workers
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

pytestmark = [pytest.mark.any_kernel, pytest.mark.x86]

Data = NDArray[np.bool_]

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


@pytest.fixture(scope="module", params=[*KINDS, "raw", "raw, with zeros"])
def any_dump(lab: Lab, folder: Path, request: pytest.FixtureRequest) -> Path:
    """Packed, or as makedumpfile writes it where it is not told to pack."""
    if request.param in KINDS:
        core = folder / request.param
        return core if core.exists() else packed_dump(lab.capture.vmcore, core, request.param)
    elf, core = plain_elf(lab.capture.vmcore, folder / "elf"), folder / "raw"
    core.unlink(missing_ok=True)
    makedumpfile("-d", "0" if "zeros" in request.param else "1", elf, core)
    elf.unlink()
    return core


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


DAMAGED = (3, 700, 701, 1500)  # pages of the memory map


def damage(dump: Path, folder: Path, how: str) -> Path:
    """A copy in which pages of the memory map have no content, or descriptors of something else."""
    damaged = folder / "damaged"
    shutil.copy(dump, damaged)
    prog = open_target(dump)
    at = memory_map(prog)
    kdump = read_kdump(damaged)
    assert kdump is not None
    frames = frames_of(prog, at[0][0], 2048)
    numbers = numbers_of(dump, frames)
    with damaged.open("r+b") as file:
        for which in DAMAGED:
            place = kdump.descriptors + int(numbers[which]) * PAGE_DESCRIPTOR.itemsize
            file.seek(place)
            page = np.frombuffer(bytearray(file.read(PAGE_DESCRIPTOR.itemsize)), PAGE_DESCRIPTOR)
            if how == "bytes":
                file.seek(int(page["offset"][0]))
                file.write(b"\xff" * int(page["size"][0]))
                continue
            new = {"size": 7, "offset": 1 << 60, "flags": 0, "zeros": 0, "large": 0xFFFF_FFFF}[how]
            page[{"zeros": "offset", "large": "size"}.get(how, how)] = new
            if how == "zeros":
                page["size"] = 0
            file.seek(place)
            file.write(page.tobytes())
    return damaged


# Descriptors are the same whatever packs a page.
@pytest.mark.parametrize("dump", [*KINDS][:1], indirect=True)
@pytest.mark.parametrize("how", ["offset", "zeros", "large"])
def test_pages_whose_descriptors_no_page_has_are_gaps(dump: Path, folder: Path, how: str) -> None:
    whole = open_target(dump)
    at = memory_map(whole)
    prog = open_target(damage(dump, folder, how))
    for which in DAMAGED:
        with pytest.raises(FaultError, match="cut short or is damaged"):
            prog.read(at[0][0] + which * PAGE, 8)
    assert prog.read(at[0][0] + 4 * PAGE, PAGE) == whole.read(at[0][0] + 4 * PAGE, PAGE)
    assert struct_pages(prog, at)[1] == len(DAMAGED) * PAGE


@pytest.mark.parametrize("how", ["bytes", "size", "flags"])
def test_damaged_pages_are_the_same_gaps(dump: Path, folder: Path, how: str) -> None:
    """Of the memory map: of a page its content, or what the dump says of where and how it is."""
    damaged = damage(dump, folder, how)
    at = memory_map(open_target(dump))
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


def test_of_a_dump_that_was_cut_short_what_is_there_is_read_and_the_rest_is_an_error(
    lab: Lab, any_dump: Path, folder: Path
) -> None:
    """The page across the end as well, where libkdumpfile by itself dies of SIGBUS."""
    whole = Program()
    whole.set_core_dump(any_dump)
    frames = frames_in(any_dump)
    which = len(frames) * 5 // 8
    cut, there = cut_across(any_dump, folder, frames, which)
    assert np.count_nonzero(~there) * PAGE == missing_bytes(cut) > 0
    prog = Program()
    prog.set_core_dump(cut)
    assert cut_short.attach(prog, cut, missing_frames(cut))
    for number in about(which, len(frames)):
        place = frames[number] * PAGE
        if there[number]:
            assert prog.read(place, PAGE, True) == whole.read(place, PAGE, True)
        else:
            with pytest.raises(FaultError, match="behind the end of the file, which was cut short"):
                prog.read(place, PAGE, True)
    cut.unlink()


def test_of_a_dump_that_was_cut_short_no_struct_page_is_invented(
    lab: Lab, any_dump: Path, folder: Path
) -> None:
    whole = open_target(any_dump)
    at = max(memory_map(whole), key=lambda part: part[1])
    size = whole.type("struct page").size or 0
    pages = at[1] * size // PAGE
    frames = frames_of(whole, at[0], pages)
    for which in (pages // 4, pages // 2):
        cut, there = cut_across(any_dump, folder, frames, which)
        prog = open_target(cut, [lab.capture.vmlinux])
        assert not isinstance(prog.cache.get(OWN), Handle)
        gaps, read = Gaps(), 0
        data = np.dtype((np.void, PAGE))
        for first, array in read_array(prog, at[0], pages, data, gaps):
            assert there[first : first + len(array)].all()
            assert array.tobytes() == whole.read(at[0] + first * PAGE, len(array) * PAGE)
            read += len(array)
        assert read == np.count_nonzero(there) and gaps.bytes == (pages - read) * PAGE > 0
        cut.unlink()
    # By several processes, which share the file.
    found = struct_pages(prog, [at])
    assert 0 < found[1] < at[1] * size
    again = in_workers(3, range(4), lambda share: struct_pages(prog, [at]))
    assert list(again) == [found] * 4


def collected(prog: Program, bundle: Path) -> tuple[dict[str, bytes], list[Any]]:
    """Tables, and how sections fared."""
    with Writer(bundle) as writer:
        sections = collect(Memory(prog), describe(prog, "vmcore"), writer, SECTIONS)
    said = [(each.section, each.status, each.rows, each.message) for each in sections]
    return contents(bundle), said


@pytest.fixture(scope="module")
def whole(lab: Lab, folder: Path) -> tuple[dict[str, bytes], list[Any]]:
    """The same of the vmcore that is packed."""
    return collected(open_target(lab.capture.vmcore), folder / "whole")


def test_tables_are_the_same(
    dump: Path, folder: Path, whole: tuple[dict[str, bytes], list[Any]]
) -> None:
    for number, prog in enumerate(opened(dump)):
        assert collected(prog, folder / f"{dump.name}-{number}") == whole
    assert len(whole[0]) > len(SECTIONS)


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
    found = in_workers(3, range(4), lambda share: struct_pages(prog, at))
    assert list(found) == [alone] * 4
    assert struct_pages(prog, at) == alone
