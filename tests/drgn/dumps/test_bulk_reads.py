# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A second handle of libkdumpfile: what is read through it, and that drgn is asked wherever there is
none or it fails. tests/lab/test_packed_dumps.py reads dumps with it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from descriptors import times_open
from drgn import Architecture, FaultError, Platform, Program
from kdump_files import LITTLE, Library

from mmscope.drgn.dumps import bulk_reads
from mmscope.drgn.dumps.bulk_reads import (
    LEAST,
    LOSES_ROOM,
    MOST,
    SOUND,
    Handle,
    attach,
    drgn_translates,
    loaded,
    read_bytes,
)

BASE, SIZE = 0xFFFF_8880_0000_0000, 4 * LEAST
LINE = "7f2000-7f3000 r-xp 00000000 fe:00 1234       /usr/lib/{}\n"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(bulk_reads, "loaded", lambda *_: ("", SOUND))
    monkeypatch.setattr(bulk_reads, "_library", lambda path: library)
    return library


@pytest.fixture
def core(tmp_path: Path) -> Path:
    (tmp_path / "core").touch()
    return tmp_path / "core"


@pytest.fixture
def prog() -> Iterator[Program]:
    """Memory that is all ones, as drgn reads it."""
    prog = Program(Platform(Architecture.X86_64, LITTLE))
    prog.add_memory_segment(BASE, SIZE, lambda address, count, *_: b"\1" * count)
    yield prog


@pytest.mark.parametrize("name", ["libkdumpfile.so.10.1.0", "x y/libkdumpfile-8796b0.so.12.0.0"])
def test_the_library_that_is_loaded_is_found(tmp_path: Path, name: str) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        LINE.format("libc.so.6") + 2 * LINE.format(name) + "7ff000-7ff001 r-xp 0 00:00 0  [vdso]\n"
    )
    version = LOSES_ROOM if "so.10" in name else SOUND
    found = loaded("libkdumpfile", (LOSES_ROOM, SOUND), maps)
    assert found == (f"/usr/lib/{name}", version)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["libc.so.6"],
        ["libkdumpfile.so.9.0.0"],
        ["libkdumpfile.so.13"],
        ["libkdumpfile.so"],
        ["libkdumpfile.so.12 (deleted)"],
        ["libkdumpfile.so.10", "libkdumpfile.so.12"],
    ],
)
def test_no_other_library_is_called(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "maps").write_text("".join(map(LINE.format, names)))
    with pytest.raises(OSError):
        loaded("libkdumpfile", (LOSES_ROOM, SOUND), tmp_path / "maps")


@pytest.mark.parametrize("name", ["/no/libkdumpfile.so.12", os.path.realpath("/proc/self/exe")])
def test_a_library_that_is_none_is_no_error(
    name: str, prog: Program, core: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_reads, "loaded", lambda *_: (name, SOUND))
    before = times_open(core)
    attach(prog, core, BASE)
    assert not prog.cache and times_open(core) == before


def test_a_library_without_a_function_that_is_needed_is_not_called() -> None:
    with pytest.raises(OSError, match="kdump_new"):
        bulk_reads._library("libc.so.6")


def test_what_is_no_dump_has_no_handle(prog: Program, core: Path) -> None:
    """By the library that drgn really has, if it has one."""
    core.write_bytes(b"KDUMP   " + bytes(8192))
    before = times_open(core)
    attach(prog, core, BASE)
    attach(prog, core.with_name("none"), BASE)
    assert not prog.cache and times_open(core) == before


def test_the_cache_is_made_small_before_there_is_one(library: Library, core: Path) -> None:
    before = times_open(core)
    handle = Handle(core)
    assert library.keys == [b"cache.size", b"file.fd", b"addrxlat.ostype"]
    del handle
    assert library.freed == [7] and times_open(core) == before


@pytest.mark.parametrize("refused", [b"cache.size", b"file.fd", b"addrxlat.ostype"])
def test_an_attribute_that_is_refused(library: Library, core: Path, refused: bytes) -> None:
    library.refuses = refused
    before = times_open(core)
    with pytest.raises(OSError, match=refused.decode()):
        Handle(core)
    assert library.freed == [7] and times_open(core) == before


def test_a_library_without_memory(library: Library, core: Path) -> None:
    library.new = None
    before = times_open(core)
    with pytest.raises(OSError):
        Handle(core)
    assert not library.freed and times_open(core) == before


def test_stretches_go_through_the_handle_and_the_rest_through_drgn(
    library: Library, core: Path, prog: Program
) -> None:
    attach(prog, core, BASE + 4100)
    assert library.reads == [(2, BASE + 4096, 4096)]
    library.reads.clear()
    library.byte = 2  # to tell them apart
    assert read_bytes(prog, BASE, LEAST - 1) == b"\1" * (LEAST - 1)
    assert not library.reads
    assert read_bytes(prog, BASE + 3, LEAST) == b"\2" * LEAST
    assert read_bytes(prog, 5, LEAST, True) == b"\2" * LEAST
    assert library.reads == [(2, BASE + 3, LEAST), (0, 5, LEAST)]
    with pytest.raises(FaultError):
        read_bytes(prog, BASE, MOST + 1)
    assert len(library.reads) == 2


def test_what_is_read_cannot_be_changed(library: Library, core: Path) -> None:
    found = Handle(core).read(BASE, LEAST, False)
    assert found is not None and found.readonly and len(found) == LEAST


def test_without_a_handle_drgn_reads(prog: Program) -> None:
    assert read_bytes(prog, BASE, LEAST) == b"\1" * LEAST


@pytest.mark.parametrize("how", ["fails", "short"])
def test_where_the_handle_fails_drgn_is_asked(
    library: Library, core: Path, prog: Program, how: str
) -> None:
    attach(prog, core, BASE)
    library.byte = 2
    setattr(library, how, True)
    assert read_bytes(prog, BASE, LEAST) == b"\1" * LEAST
    with pytest.raises(FaultError) as raised:
        read_bytes(prog, BASE + SIZE, LEAST)
    with pytest.raises(FaultError) as own:
        prog.read(BASE + SIZE, LEAST)
    assert str(raised.value) == str(own.value)


@pytest.mark.parametrize("version", [LOSES_ROOM, SOUND])
def test_a_library_that_loses_room_is_left_after_it_failed(
    library: Library, core: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(bulk_reads, "loaded", lambda *_: ("", version))
    before = times_open(core)
    handle = Handle(core)
    assert handle.read(BASE, 9, False) == b"\1" * 9
    library.fails = True
    assert handle.read(BASE, 9, False) is None
    library.fails = False
    assert (handle.read(BASE, 9, False) is None) == (version == LOSES_ROOM)
    assert (times_open(core) == before) == (version == LOSES_ROOM)
    assert library.freed == [7] * (version == LOSES_ROOM)


@pytest.mark.parametrize("address", [-1, -LEAST, (1 << 64) - LEAST + 1, 1 << 64, 1 << 80])
def test_an_address_that_is_none_is_left_to_drgn(
    library: Library, core: Path, prog: Program, address: int
) -> None:
    attach(prog, core, BASE)
    library.reads.clear()
    with pytest.raises((FaultError, OverflowError)) as raised:
        read_bytes(prog, address, LEAST)
    with pytest.raises(type(raised.value)):
        prog.read(address, LEAST)
    assert not library.reads


def test_the_last_bytes_of_all_are_read(library: Library, core: Path) -> None:
    assert Handle(core).read((1 << 64) - LEAST, LEAST, False) == b"\1" * LEAST


def test_a_handle_that_says_other_than_drgn_is_not_used(
    library: Library, core: Path, prog: Program
) -> None:
    library.byte = 2
    before = times_open(core)
    attach(prog, core, BASE)
    assert not prog.cache and library.freed == [7] and times_open(core) == before


def test_a_sample_that_nobody_can_read(library: Library, core: Path, prog: Program) -> None:
    library.fails = True
    attach(prog, core, 0)
    assert not prog.cache and library.freed == [7]


def test_where_drgn_translates_there_is_no_handle(
    library: Library, core: Path, prog: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRGN_PREFER_PGTABLE_READER", "1")
    attach(prog, core, BASE)
    assert not prog.cache and not library.keys


@pytest.mark.parametrize(("said", "does"), [("1", True), (" 07x", True), ("0", False), ("", False)])
def test_whether_drgn_translates_is_read_as_drgn_reads_it(
    monkeypatch: pytest.MonkeyPatch, said: str, does: bool
) -> None:
    monkeypatch.setenv("DRGN_PREFER_PGTABLE_READER", said)
    assert drgn_translates() == does
