# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sections are on their own: what goes wrong in one leaves the others whole."""

import dataclasses
import itertools
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drgn import FaultError, ProgramFlags
from made_sections import made_section

from mmscope.drgn.free import free_memory
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.opening.target import Target
from mmscope.drgn.owners.slab_caches import SlabFinder
from mmscope.drgn.reading import memory_left
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.struct_pages import PageChunk, Scan
from mmscope.drgn.sections import registry
from mmscope.drgn.sections.files import Absent, Files, page_size
from mmscope.drgn.sections.memory import DeadlineExceeded, Memory
from mmscope.drgn.sections.section import Found, Section
from mmscope.drgn.tables.bounds import Machine
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import Beside, collect
from mmscope.reports.collect.run_section import deadline, run_section

TARGET = Target(
    "files", "7.2", "x86_64", 4096, "host", "2026-01-01T00:00:00+00:00", 1.0, 1, 1, "root"
)
FILES = Files(Path("/nonexistent"))


def found(value: str = "1") -> Found:
    return Found().add(Setting, [Setting("vm.swappiness", value)])


def spec(from_files: Callable[[Any], Found], name: str = "x", seconds: float = 600.0) -> Section:
    return made_section(name, from_files, deadline=seconds)


def fails(error: BaseException) -> Callable[[Any], Found]:
    def section(source: Any) -> Found:
        raise error

    return section


LONG = 300  # seconds: on a busy machine what is stopped at once takes some


def sleeps(source: Any) -> Found:
    time.sleep(LONG)
    return found()


def one(from_files: Callable[[Any], Found], seconds: float = LONG) -> SectionResult:
    section, tables = run_section(spec(from_files, seconds=seconds), FILES)
    assert (section.status in ("ok", "partial")) == bool(tables.tables)
    assert section.message is None or "\n" not in section.message
    return section


def test_a_section_that_is_whole() -> None:
    section = one(lambda _: found())
    assert (section.status, section.rows, section.message) == ("ok", 1, None)


def test_a_section_that_is_not_quite_whole() -> None:
    def partly(source: Any) -> Found:
        return dataclasses.replace(found(), notes=["a\ngap", "another"], unreadable_bytes=64)

    section = one(partly)
    assert (section.status, section.message) == ("partial", "a gap; another")
    assert (section.rows, section.unreadable_bytes) == (1, 64)


def test_a_remark_does_not_make_a_section_partial() -> None:
    section = one(lambda _: dataclasses.replace(found(), remarks=["it ran"]))
    assert (section.status, section.message) == ("ok", "it ran")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Absent("boot with page_owner=on"), "absent", "boot with page_owner=on"),
        (ValueError("not\n/proc/vmstat"), "failed", "not /proc/vmstat"),
        (ValueError(), "failed", "ValueError"),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError: x"),
        (RecursionError("deep"), "failed", "RecursionError: deep"),
        (MemoryError(), "failed", "it takes more memory than is left here"),
        (LookupError("no struct page"), "failed", "layout is not known here: no struct page"),
        (KeyError("lru"), "failed", "layout is not known here: lru"),
        (FaultError("no memory", 0x10), "failed", "damaged, or left out of the dump"),
    ],
)
def test_whatever_happens_is_a_status_and_a_line(
    error: Exception, status: str, message: str
) -> None:
    section = one(fails(error))
    assert section.status == status
    assert section.message is not None
    assert section.message.endswith(message) or message in section.message


def test_a_section_of_a_dump_that_takes_too_much_memory_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_left, "memory_left", lambda: 64 << 20)
    memory = Memory(SimpleNamespace(flags=ProgramFlags(0), cache={}))  # type: ignore[arg-type]
    greedy = spec(lambda _: Found(remarks=[str(len(bytearray(256 << 20)))]))
    section, _ = run_section(greedy, memory, Machine())
    assert (section.status, section.message) == ("failed", "it takes more memory than is left here")
    section, _ = run_section(spec(lambda _: found()), memory, Machine())
    assert section.status == "ok"


def test_a_section_is_stopped_at_its_deadline() -> None:
    begin = time.monotonic()
    section = one(sleeps, seconds=0.1)
    assert time.monotonic() - begin < LONG
    assert (section.status, section.message) == ("failed", "took longer than 0.1 s and was stopped")
    assert section.seconds >= 0.1


def test_a_deadline_is_not_taken_for_a_failure_of_its_own_on_the_way_up() -> None:
    def careful(source: Any) -> Found:
        for _ in range(10):
            try:
                time.sleep(3)
            except Exception:
                continue
        return found()

    assert one(careful, seconds=0.1).status == "failed"


def test_a_deadline_that_is_kept_leaves_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline(600):
        assert signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_ctrl_c_is_no_failure_of_a_section() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_section(spec(fails(KeyboardInterrupt())), FILES)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "status"),
    [(fails(ZeroDivisionError()), "failed"), (fails(Absent("none")), "absent"), (sleeps, "failed")],
    ids=["raises", "is absent", "takes too long"],
)
def test_one_bad_section_leaves_the_others_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    position: int,
    bad: Callable[[Any], Found],
    status: str,
) -> None:
    def good(name: str) -> Callable[[Any], Found]:
        return lambda _: Found().add(Table(name, name, Setting), [Setting(name, "1")])

    specs = [spec(good("a"), "a"), spec(good("b"), "b")]
    specs.insert(position, spec(bad, "bad", 0.2))
    monkeypatch.setattr(registry, "SECTIONS", {s.name: s for s in specs})
    with Writer(tmp_path / "b") as writer:
        collect(FILES, TARGET, writer)
    bundle = Bundle(tmp_path / "b")
    assert {s.section: s.status for s in bundle.sections} == {"a": "ok", "b": "ok", "bad": status}
    for name in "ab":
        assert list(bundle.rows(name)) == [{"name": name, "value": "1"}]
    assert bundle.target["hostname"] == "host"


def test_all_sections_have_a_deadline_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets half of what is left; those that none is left for say so."""
    stop = [spec(sleeps, f"slow-{number}", 600) for number in range(9)]
    specs = [spec(lambda _: found(), "quick"), *stop]
    monkeypatch.setattr(registry, "SECTIONS", {s.name: s for s in specs})
    begin = time.monotonic()
    with Writer(tmp_path / "b") as writer:
        collect(FILES, TARGET, writer, more=Beside(seconds=1))
    assert time.monotonic() - begin < LONG
    quick, first, *others = Bundle(tmp_path / "b").sections
    assert quick.status == "ok" and first.message is not None
    assert re.fullmatch(r"took longer than 0\.[0-9]+ s and was stopped", first.message)
    assert others[-1].message == "not read: 1 s (--deadline) were over"
    assert {one.status for one in others} == {"failed"}


def test_notes_are_kept_with_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SECTIONS", {})
    with Writer(tmp_path / "b") as writer:
        collect(FILES, TARGET, writer, notes={"truncated": "5 bytes"})
    assert Bundle(tmp_path / "b").target["truncated"] == "5 bytes"


# A libkdumpfile that reads nothing any more.


class Dump:
    """A program whose library has lost its way, or has not; a mock."""

    flags = ProgramFlags(0)

    def __init__(self, why: str = "") -> None:
        self.why = why
        self.cache: dict[object, object] = {}

    def symbol(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(address=0xFFFFFFFFA8600000)

    def read(self, address: int, size: int) -> bytes:
        if self.why:
            raise FaultError(f"could not read memory from kdump: {self.why}", address)
        return bytes(size)


LOST = "Decompresion failed: error -2"


def collected(path: Path, section: Callable[[Any], Found], *programs: Dump) -> list[SectionResult]:
    """Two sections of a dump, which is opened as often as there are programs."""
    opened = iter(programs)
    memory = Memory(next(opened), opened=lambda: next(opened))  # type: ignore[arg-type, return-value]
    with pytest.MonkeyPatch.context() as patched, Writer(path / "b") as writer:
        patched.setattr(registry, "SECTIONS", {name: spec(section, name) for name in "ab"})
        return collect(memory, TARGET, writer)


@pytest.mark.parametrize("whole", [False, True])
def test_a_dump_of_which_nothing_is_read_any_more_is_opened_anew(
    tmp_path: Path, whole: bool
) -> None:
    read: list[Any] = []

    def section(memory: Memory) -> Found:
        read.append(memory.prog)
        assert memory.once("kept", lambda: memory.prog) is memory.prog
        if whole:
            memory.prog.read(0, 1)
            return found()
        partly = found()
        partly.notes += ["5 bytes could not be read"] * bool(memory.prog.why)  # type: ignore[attr-defined]
        return partly

    first, anew = Dump(LOST), Dump()
    assert [one.status for one in collected(tmp_path, section, first, anew)] == ["ok", "ok"]
    assert read == [first, anew, anew]


def test_a_section_that_fares_worse_then_is_as_it_was(tmp_path: Path) -> None:
    def section(memory: Memory) -> Found:
        if not memory.prog.why:  # type: ignore[attr-defined]
            raise ValueError("no")
        partly = found()
        partly.notes.append("5 bytes could not be read")
        return partly

    sections = collected(tmp_path, section, Dump(LOST), Dump())
    assert [one.status for one in sections] == ["partial", "failed"]


@pytest.mark.parametrize("why", ["Excluded page", "Decompression failed: error -3", ""])
def test_other_faults_do_not_have_a_dump_opened_anew(tmp_path: Path, why: str) -> None:
    sections = collected(tmp_path, fails(FaultError("Excluded page", 0)), Dump(why))
    assert [one.status for one in sections] == ["failed", "failed"]


# The pass over the struct pages, which several sections share.


def test_a_pass_that_failed_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = itertools.count()

    def scan(prog: Any, progress: Any, more: Any, *, jobs: int) -> Any:
        next(runs)
        raise DeadlineExceeded("took longer than 600 s")

    monkeypatch.setattr(free_memory, "FreeMemory", scan)
    memory = Memory(SimpleNamespace(flags=ProgramFlags(0), cache={}))  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            free_memory.free_memory(memory)
    assert next(runs) == 1


def test_slabs_that_cannot_be_looked_for_do_not_cost_the_others_their_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finder(prog: Any) -> Any:
        raise AttributeError("'struct kmem_cache' has no member 'oo'")

    seen = []
    scanned = SimpleNamespace(scan=Scan(0, Gaps()))
    monkeypatch.setattr(
        free_memory, "FreeMemory", lambda *given, jobs: seen.append(given) or scanned
    )
    memory = Memory(SimpleNamespace(flags=ProgramFlags(0), cache={}), consumers=lambda: [finder])  # type: ignore[arg-type]
    free_memory.free_memory(memory)
    assert [more for _, _, more in seen] == [[]]
    assert memory.kept_consumer(SlabFinder) is None


class Broken:
    """A consumer that cannot stand a chunk."""

    columns = ("flags",)

    def __init__(self) -> None:
        self.taken = 0

    def take(self, chunk: PageChunk) -> None:
        self.taken += 1
        raise ZeroDivisionError("in a consumer")


class Counting:
    """A consumer that counts."""

    columns = ("flags",)

    def __init__(self) -> None:
        self.pages = 0

    def take(self, chunk: PageChunk) -> None:
        self.pages += len(chunk)


def scanned(monkeypatch: pytest.MonkeyPatch, *consumers: Any) -> Scan:
    """A pass over ten chunks of three pages."""
    from mmscope.drgn.reading import struct_pages

    chunks = [(3 * n, [0, 0, 0]) for n in range(10)]
    monkeypatch.setattr(struct_pages, "page_dtype", lambda *_: SimpleNamespace(itemsize=64))
    monkeypatch.setattr(struct_pages, "valid_page_ranges", lambda _: [(0, 30, 0)])
    monkeypatch.setattr(struct_pages, "read_array", lambda *_, **__: iter(chunks))
    prog: Any = SimpleNamespace(type=lambda _: None)
    return struct_pages.scan_struct_pages(prog, consumers)


def test_a_consumer_that_raises_is_dropped_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, counting = Broken(), Counting()
    scan = scanned(monkeypatch, broken, counting)
    assert (broken.taken, counting.pages, scan.pages) == (1, 30, 30)
    assert [str(error) for _, error in scan.failures] == ["in a consumer"]


def test_what_a_dropped_consumer_was_for_raises_its_error() -> None:
    error = ZeroDivisionError("in a consumer")
    parts: Any = ["blocks", "pcp", "pageblocks"]
    memory = free_memory.FreeMemory.__new__(free_memory.FreeMemory)
    memory.scan = Scan(3, Gaps(), [(parts[1], error)])
    memory._blocks, memory._pcp, memory._pageblocks = parts
    assert memory.blocks == "blocks"
    assert memory.pageblocks == "pageblocks"
    with pytest.raises(ZeroDivisionError):
        _ = memory.pcp


def test_a_deadline_inside_a_consumer_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Counting):
        def take(self, chunk: PageChunk) -> None:
            time.sleep(30)

    with pytest.raises(DeadlineExceeded), deadline(0.1):
        scanned(monkeypatch, Slow())


# What text tells of the machine.


@pytest.mark.parametrize(
    ("kib", "pages", "size"),
    [(1435856, 358964, 4096), (16 * 1000, 1000, 16384), (64_000, 1000, 65536),
     (64_000, 1001, 65536), (4 * 1000, 900, None), (0, 1000, None), (4000, 0, None),
     (10**12, 1, None), (1, 10**12, None)],
)  # fmt: skip
def test_the_page_size_is_derived_not_assumed(kib: int, pages: int, size: int | None) -> None:
    """Of the memory of all zones, and of any counter that both files have."""
    zoneinfo = f"Node 0, zone Normal\n        managed  {pages}\n"
    assert page_size(f"MemTotal:       {kib} kB\nMemFree: 1 kB\n", zoneinfo) == size
    if pages >= 1000 or size is None:
        vmstat = f"nr_free_pages {pages}\nnr_mapped 5\n"
        assert page_size(f"MemFree:       {kib} kB\nMapped: 80 kB\n", vmstat=vmstat) == size


@pytest.mark.parametrize(
    ("texts", "size"),
    [
        ({"meminfo": "DirectMap4k: 1 kB\nDirectMap2M: 9 kB\n"}, 4096),
        ({"meminfo": "DirectMap4k: 1 kB\nDirectMap64k: 1 kB\nDirectMap2M: 9 kB\n"}, None),
        ({"version": "Linux version 5.14.0-427.el9.x86_64 (x@y) (gcc"}, 4096),
        ({"version": "Linux version 6.1.0-18-amd64 (debian-kernel"}, 4096),
        ({"version": "Linux version 5.4.0-97-generic (b@l) (x86_64-linux-gnu-gcc-12"}, 4096),
        ({"version": "Linux version 5.14.0+64k (b@x86_64-builder) (aarch64-linux-gnu-gcc"}, None),
        ({"version": "Linux version 6.1.0-18-arm64 (debian"}, None),
        ({}, None),
    ],
)
def test_what_has_one_size_alone_tells_it(texts: dict[str, str], size: int | None) -> None:
    assert page_size(**texts) == size


@pytest.mark.parametrize("kib", [4, 16, 64])
def test_a_page_is_what_all_counts_are_multiples_of(kib: int) -> None:
    names = ("MemFree", "Buffers", "Cached", "AnonPages", "Mapped", "Shmem", "SReclaimable")
    lines = [f"{name}: {(2 * at + 1) * kib} kB\n" for at, name in enumerate(names, 7)]
    more = f"SUnreclaim: {900 * kib} kB\nKernelStack: 7 kB\nVmallocTotal: 34359738367 kB\n"
    assert page_size("".join(lines) + more) == kib << 10
    assert page_size("".join(lines)) is None  # too few
    assert page_size("".join([*lines, more, "PageTables: 9 kB\n"])) is None


def test_counters_that_disagree_tell_no_page_size() -> None:
    """As a container's /proc/meminfo beside the host's counters."""
    meminfo = "MemFree: 64000 kB\nMapped: 4000 kB\nPageTables: 4000 kB\n"
    vmstat = "nr_free_pages 4000\nnr_mapped 1000\nnr_page_table_pages 2000\n"
    assert page_size(meminfo, vmstat=vmstat) is None
    assert page_size(meminfo, vmstat=vmstat, of_host="Mapped") == 4096


def test_the_own_host_tells_its_page_size(tmp_path: Path) -> None:
    """As where /proc/meminfo is a container's, and the zones are the host's."""
    assert Files(Path("/")).page_size() == os.sysconf("SC_PAGE_SIZE")
    assert Files(tmp_path).page_size() is None
