# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A kdump-compressed file that was cut short: no page that is behind the end is asked of libkdumpfile,
which another one stands in for here. tests/lab/test_packed_dumps.py reads dumps with it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from descriptors import times_open
from drgn import Architecture, FaultError, Platform, Program
from kdump_files import LITTLE, Library, kdump

from mmscope.drgn.dumps import bulk_reads, cut_short
from mmscope.drgn.dumps.bulk_reads import SOUND
from mmscope.drgn.dumps.core_file import missing_frames
from mmscope.drgn.dumps.cut_short import ADDRXLAT_OK, KDUMP_MACHPHYSADDR, MOST_KNOWN, Reader, attach

PAGE = 4096
BASE = 0xFFFF_8880_0000_0000  # is at physical 0; the page behind each odd one is elsewhere
UNMAPPED = BASE + 100 * PAGE


class Translation:
    """Stands in for libaddrxlat."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.held = 2

    def addrxlat_fulladdr_conv(self, place: Any, space: int, context: Any, system: Any) -> int:
        assert space == KDUMP_MACHPHYSADDR
        found = place._obj
        self.asked.append(found.address)
        if found.address >= UNMAPPED:
            return ADDRXLAT_OK + 1
        if found.space:
            page = (found.address - BASE) // PAGE
            found.address = (page + page // 2 * 8) * PAGE
        return ADDRXLAT_OK

    def addrxlat_ctx_decref(self, context: Any) -> None:
        self.held -= 1

    addrxlat_sys_decref = addrxlat_ctx_decref


class Kdump(Library):
    """Stands in for libkdumpfile; *refusals* is how often it cannot say how it translates."""

    refusals = 0

    def kdump_get_addrxlat(self, context: int, to: Any, system: Any) -> int:
        self.refusals -= 1
        return int(self.refusals >= 0)

    def kdump_get_err(self, context: int) -> bytes:
        return b"Cannot do it"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Kdump:
    library = Kdump()
    for module in (bulk_reads, cut_short):
        monkeypatch.setattr(module, "loaded", lambda *_: ("", SOUND))
    monkeypatch.setattr(bulk_reads, "_library", lambda path: library)
    return library


@pytest.fixture
def translation(monkeypatch: pytest.MonkeyPatch) -> Translation:
    translation = Translation()
    monkeypatch.setattr(cut_short, "_library", lambda path: translation)
    return translation


@pytest.fixture
def reader(library: Kdump, translation: Translation, tmp_path: Path) -> Reader:
    """Of its page frames, 10 and 12 are missing."""
    (tmp_path / "core").touch()
    return Reader(tmp_path / "core", np.array([0, 0b10100], np.uint8), PAGE)


def error(reader: Reader, address: int, size: int, physical: bool = False) -> str:
    with pytest.raises(FaultError) as raised:
        reader.read(address, size, 0, physical)
    return str(raised.value)


def test_nothing_is_mapped_and_that_is_said_before_the_file_is_opened(
    library: Kdump, reader: Reader
) -> None:
    assert library.keys.index(b"file.mmap_policy") < library.keys.index(b"file.fd")
    assert b"cache.size" not in library.keys


def test_a_range_is_read_where_its_pages_are(library: Kdump, reader: Reader) -> None:
    assert bytes(reader.read(BASE + 5, PAGE, 0, False)) == b"\1" * PAGE
    assert library.reads == [(KDUMP_MACHPHYSADDR, 5, PAGE)]
    library.reads.clear()
    # Pages 0 and 1 are one behind the other, page 3 is not behind page 1.
    reader.read(BASE + PAGE - 3, 2, 0, False)
    reader.read(BASE + 6 * PAGE + 1, 3 * PAGE, 0, False)
    assert library.reads == [
        (KDUMP_MACHPHYSADDR, PAGE - 3, 2),
        (KDUMP_MACHPHYSADDR, 30 * PAGE + 1, 2 * PAGE - 1),
        (KDUMP_MACHPHYSADDR, 40 * PAGE, PAGE + 1),
    ]


def test_a_page_frame_that_is_missing_is_an_error_and_not_asked_for(
    library: Kdump, reader: Reader
) -> None:
    for address, physical in ((10 * PAGE, True), (12 * PAGE + 9, True), (BASE + 2 * PAGE, False)):
        assert "it lies behind the end of the file" in error(reader, address, 8, physical)
    assert "behind the end" in error(reader, 9 * PAGE, 2 * PAGE, True)
    assert "behind the end" in error(reader, BASE + PAGE, 2 * PAGE)
    assert not library.reads
    for frame in (9, 11, 13, 1 << 30):
        reader.read(frame * PAGE, PAGE, 0, True)
    assert len(library.reads) == 4


def test_an_address_without_translation_is_an_error(library: Kdump, reader: Reader) -> None:
    assert "not mapped, or its page tables lie behind the end" in error(reader, UNMAPPED, 8)
    assert not library.reads


def test_errors_of_the_library_are_in_drgns_words(library: Kdump, reader: Reader) -> None:
    library.fails = True
    words = f"could not read memory from kdump: Cannot do it: {BASE:#x}"
    assert error(reader, BASE, 8) == words


@pytest.mark.parametrize(("refusals", "fails"), [(0, False), (1, False), (2, True)])
def test_a_translation_that_fails_once_is_asked_for_again(
    library: Kdump, translation: Translation, reader: Reader, refusals: int, fails: bool
) -> None:
    library.refusals = refusals
    if fails:
        assert "Cannot do it" in error(reader, BASE, 8)
        assert not translation.asked and translation.held == 2
    reader.read(BASE, 8, 0, False)
    reader.read(BASE + PAGE, 8, 0, False)
    assert translation.held == 0


def test_a_page_is_translated_once(translation: Translation, reader: Reader) -> None:
    for _ in range(3):
        reader.read(BASE + 7, 8, 0, False)
        reader.read(7, 8, 0, True)
    assert translation.asked == [BASE, 0]


def test_what_is_remembered_is_bounded(reader: Reader) -> None:
    reader.read(100 * PAGE, (MOST_KNOWN + 5) * PAGE, 0, True)
    assert len(reader._known) <= MOST_KNOWN


def zeros() -> Program:
    """All zeros, as drgn reads it."""
    prog = Program(Platform(Architecture.X86_64, LITTLE))
    prog.add_memory_segment(0, (1 << 64) - 1, lambda address, size, *_: bytes(size))
    prog.add_memory_segment(0, (1 << 64) - 1, lambda address, size, *_: bytes(size), True)
    return prog


def test_all_memory_of_a_program_is_read_so(
    library: Kdump, translation: Translation, tmp_path: Path
) -> None:
    core = tmp_path / "core"
    core.write_bytes(kdump([(17_000, 100), (1 << 40, 100)]))
    prog = zeros()
    assert attach(prog, core, missing_frames(core))
    assert prog.read(BASE, 8) == prog.read(0, 8, True) == b"\1" * 8
    for place in ((BASE + PAGE, False), (PAGE, True)):
        with pytest.raises(FaultError, match="behind the end"):
            prog.read(place[0], 8, place[1])
    with pytest.raises(FaultError, match="not mapped"):
        prog.read((1 << 64) - 1, 1)


def test_where_drgn_translates_physical_memory_is_read_so(
    library: Kdump, translation: Translation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRGN_PREFER_PGTABLE_READER", "1")
    (tmp_path / "core").write_bytes(kdump([(1 << 40, 100)]))
    prog = zeros()
    assert attach(prog, tmp_path / "core", missing_frames(tmp_path / "core"))
    assert prog.read(BASE, 8) == bytes(8)
    with pytest.raises(FaultError, match="behind the end"):
        prog.read(0, 8, True)


def test_a_whole_dump_is_left_to_drgn(library: Kdump, tmp_path: Path) -> None:
    core = tmp_path / "core"
    for content in (kdump([(17_000, 100), (17_100, 100)]), b"\x7fELF", b""):
        core.write_bytes(content)
        assert not attach(Program(), core, missing_frames(core))
    assert not library.keys


def test_without_a_library_that_maps_nothing_the_dump_is_refused(
    library: Kdump, translation: Translation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = tmp_path / "core"
    core.write_bytes(kdump([(1 << 40, 100)]))
    before = times_open(core)
    library.refuses = b"file.mmap_policy"
    with pytest.raises(OSError, match=r"refuses file\.mmap_policy"):
        attach(zeros(), core, missing_frames(core))
    assert times_open(core) == before


def test_a_library_without_the_function_that_is_needed_is_not_called() -> None:
    with pytest.raises(OSError, match="addrxlat_fulladdr_conv"):
        cut_short._library("libc.so.6")


def test_the_refusal_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program that is opened; the file is none that drgn opens."""

    def none(prog: Program, core: Path, missing: None) -> bool:
        raise OSError("another libkdumpfile: /lib")

    from mmscope.drgn.opening.target import TargetError, read_what_is_there

    monkeypatch.setattr(cut_short, "attach", none)
    with pytest.raises(
        TargetError, match=r"was cut short.*another libkdumpfile.*copy the dump again"
    ):
        read_what_is_there(Program(), tmp_path / "core", None)
