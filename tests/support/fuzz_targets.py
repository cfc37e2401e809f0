# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What is fuzzed: for each reader of other people's files, a function of bytes that returns if the
reader kept its word, and raises if it did not.

The word is the same everywhere: a text is read, or refused with the reader's own error in one line;
what was read can be written to a bundle and comes back as it was. Where there are two ways to the
same rows (in small pieces and at once, after another file and alone, by us and by DuckDB), they
must agree.

``fuzz.py`` feeds these by coverage; ``test_corpus.py`` with what is kept in ``corpus/``: pieces of
what kernels and perf printed, and what was a defect once. Where a reader takes several files, a
line of :data:`BETWEEN` separates them.
"""

import atexit
import contextlib
import csv
import functools
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mmscope.drgn.dumps import core_file
from mmscope.drgn.free.free_lists import read_buddyinfo, read_pagetypeinfo
from mmscope.drgn.free.pageblocks import read_pagetypeinfo_blocks
from mmscope.drgn.free.pcp_lists import read_zoneinfo_pcp
from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.ledger.vmalloc_callers import read_vmallocinfo
from mmscope.drgn.machine.boot_options import memory_options
from mmscope.drgn.machine.direct_map import read_direct_map
from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.machine.physical_memory import lay_out
from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.drgn.owners.alloc_tags import read_allocinfo
from mmscope.drgn.owners.slab_caches import read_slabinfo
from mmscope.drgn.owners.slab_owner import read_alloc_traces
from mmscope.drgn.page_tables.page_tables import read_status
from mmscope.drgn.page_tables.process_shares import read_smaps_rollup
from mmscope.drgn.reading.io_resources import read_iomem
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.tables.rows import columns, csv_line
from mmscope.drgn.text import page_owner_text
from mmscope.drgn.text.page_owner_text import (
    ASKED,
    EVERYTHING,
    NOTHING,
    PLACE,
    Selection,
    form_of,
    new_tally,
    page_owner_records,
    read_counts,
    read_show_stacks_handles,
    tally_page_owner,
    tally_sorted,
)
from mmscope.drgn.text.text_source import MAGIC, PEEK_BYTES, Source
from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_record import Recorded
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.stack_parts import KnownFrames, Split, load_known_frames, load_split
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.cells import value_of as _value
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.description import BundleError, SectionResult
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.bundle.writer import LINE_BREAK, Writer
from mmscope.reports.collect import run_section as running
from mmscope.reports.collect.collect import collect
from mmscope.reports.profiles import recordings
from mmscope.reports.profiles.making import Making
from mmscope.reports.profiles.recorded_rows import profiled

BETWEEN = b"\n=====\n"
MAX_WORDS = 1000  # of a refusal


@functools.cache
def scratch() -> Path:
    """A folder in memory, gone at the end."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="mmscope-fuzz.", dir=shm if shm.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def in_one_line(error: Exception) -> None:
    """A refusal is for the user."""
    words = str(error)
    assert words and "\n" not in words and len(words) < MAX_WORDS, words


def as_written(value: Any) -> Any:
    """What a bundle holds of a value: no NUL, no lone surrogate, no number without end."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    return value


def come_back(rows: Iterable[Any]) -> None:
    """Rows are written to a bundle and read from it as they were."""
    for row in rows:
        described = columns(type(row))
        values = [getattr(row, c.name) for c in described]
        line = csv_line(values).encode("utf-8", "backslashreplace").decode()
        (cells,) = csv.reader(io.StringIO(line, newline=""), strict=True)
        read = [_value(c, cell) for c, cell in zip(described, cells, strict=True)]
        for c, value, again in zip(described, values, read, strict=True):
            value = as_written(value)
            value = None if value == "" and c.nullable else value
            assert again == value, (c.name, value, again)


def of_text(*readers: Callable[[str], Any]) -> Callable[[bytes], None]:
    """A target for readers of one text, which refuse with a ValueError."""

    def target(data: bytes) -> None:
        text = data.decode("utf-8", "backslashreplace")
        for read in readers:
            try:
                rows = read(text)
            except ValueError as error:
                assert type(error) is ValueError
                in_one_line(error)
            else:
                come_back(rows)

    return target


def vmstat(data: bytes) -> None:
    """Every counter is a line of the text, and the text of these lines gives them again."""
    of_text(read_vmstat)(data)
    with contextlib.suppress(ValueError):
        text = data.decode("utf-8", "backslashreplace")
        rows = read_vmstat(text)
        lines = [line.split(" ") for line in text.splitlines()]
        assert {(row.name, row.value) for row in rows} <= {(w[0], int(w[1])) for w in lines}
        again = "".join(f"{row.name} {row.value}\n" for row in rows)
        assert read_vmstat(again) == rows


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Data as it may arrive."""
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def page_owner(data: bytes) -> None:
    """At once, in small pieces, and culled: the same counts."""
    form = form_of(data[:PEEK_BYTES])
    bare = (ASKED + NOTHING + PLACE).decode()

    def counted(
        chunks: Iterable[bytes], selection: Selection = EVERYTHING, form: str = form
    ) -> dict[str, Any]:
        tally = new_tally()
        tally_page_owner(page_owner_records(chunks, tally), tally, selection, form=form)
        return tally

    def culled_text(chunks: Iterable[bytes]) -> dict[str, Any]:
        tally = new_tally()
        tally_sorted(chunks, tally, EVERYTHING)
        return tally

    whole = counted([data])
    culled = counted([data], Selection(cull=["order"]))
    assert culled["records"] + culled["skipped"] == whole["records"] + whole["skipped"]
    for (order,), (pages, allocations, *_) in culled["culled"].items():
        most = whole["orders"][order]
        assert pages <= most[0] and allocations <= most[1]
    assert all(task == (None, None, None) for task in counted([data], form=bare)["tasks"])
    for size in (7, 61):
        assert counted(pieces(data, size)) == whole
        assert culled_text(pieces(data, size)) == culled_text([data])


def counts(data: bytes) -> None:
    """A snapshot gives the same wherever its chunks end, with stacks that are known and without."""
    files = [file for file in data.split(BETWEEN)[:4] if not file.startswith(tuple(MAGIC))]
    path = scratch() / "counts"
    ids: dict[bytes, int] = {}
    for file in files:
        path.write_bytes(file)
        for kind in ("show_handles", "show_stacks"):
            found = []
            for size, known in ((64 + len(data) % 4000, ids), (1 << 20, {})):
                with (
                    patch.object(page_owner_text, "CHUNK_BYTES", size),
                    Source(str(path)) as source,
                ):
                    found.append(read_counts(source, kind, known))
            (pages, lost), (others, other_lost) = found
            assert pages == others
            assert lost["truncated"] == other_lost["truncated"]
            # How many records garbage is depends on where blank lines in a row are cut.
            assert bool(lost["skipped"]) == bool(other_lost["skipped"])
        with Source(str(path)) as source:
            stacks, _ = read_show_stacks_handles(source)
        assert all(0 <= handle < 1 << 32 for handle in stacks)


recipe_names = functools.cache(recipes.names)


@functools.cache
def loaded(name: str | None) -> tuple[recipes.Recipe | None, Split | None, KnownFrames]:
    """What a recording by a recipe is folded with."""
    recipe = recipes.load(name) if name else None
    split = load_split(recipe.split) if recipe and recipe.split else None
    return recipe, split, load_known_frames()


class Trickle(io.BytesIO):
    """A stream that gives little at a time, as a pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(13)


def perf(data: bytes) -> None:
    """Every sample is folded, or removed for a reason; in small pieces the same samples."""
    names = [None, *recipe_names()]
    name = names[data[0] % len(names)] if data else None
    text = data[1:]
    read = []
    for stream in (io.BytesIO(text), Trickle(text)):
        reading = Reading()
        samples = list(read_samples(stream, reading))
        read.append((samples, reading.lost))
    assert read[0] == read[1]
    recipe, split, known = loaded(name)
    fold, making = Fold(recipe, split, known), Making()
    reading = Reading(on_fork=fold.fork)
    try:
        stream, own = recordings._text(io.BufferedReader(io.BytesIO(text)), Recorded(), making)
    except UsageError as error:
        in_one_line(error)
        return
    for sample in read_samples(stream, reading, own=own):
        fold.add(sample)
    assert sum(event.recorded for event in fold.events.values()) == reading.samples
    by_table, folded = profiled("fuzz", fold, reading, None, making)
    for rows in by_table.values():
        come_back(rows)
    for _, _, _, stacks in folded:
        for stack, value in stacks:
            assert value >= 0 and stack == LINE_BREAK.sub(" ", stack)


DESCRIPTION = {
    "target": {"kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 131072},
    "resources": [
        {"name": "plain", "path": "plain.csv", "section": "zones", "schema": {
            "fields": [
                {"name": "name", "type": "string", "constraints": {"required": True}},
                {"name": "value", "type": "integer", "constraints": {"required": True}},
                {"name": "share", "type": "number"}, {"name": "note", "type": "string"},
                {"name": "sure", "type": "boolean"}, {"name": "more", "type": "integer"},
            ], "primaryKey": ["name"]}},
        {"name": "x_folded", "path": "x.folded", "format": "folded", "unit": "pages"},
        {"name": "sections", "path": "sections.csv", "schema": {
            "fields": [
                {"name": name, "type": kind, "constraints": {"required": must}}
                for name, kind, must in (
                    ("section", "string", True), ("status", "string", True),
                    ("seconds", "number", True), ("rows", "integer", True),
                    ("unreadable_bytes", "integer", True), ("message", "string", False),
                )
            ]}},
    ],
}  # fmt: skip
SECTIONS_CSV = b"section,status,seconds,rows,unreadable_bytes,message\nzones,ok,0.25,1,0,\n"


def laid_out(files: dict[str, bytes]) -> Path:
    """A bundle's folder."""
    folder = scratch() / "bundle"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def bundle(data: bytes) -> None:
    """A description, its sections, a table and stacks: each is read, or the bundle refused."""
    given = [*data.split(BETWEEN, 3), b"", b"", b""]
    folder = laid_out(dict(zip(
        ("datapackage.json", "sections.csv", "plain.csv", "x.folded"), given[:4], strict=True
    )))  # fmt: skip
    try:
        opened = Bundle(folder)
    except BundleError as error:
        in_one_line(error)
        return
    for table in opened.tables.values():
        try:
            rows = list(opened.rows(table.name))
        except BundleError as error:
            in_one_line(error)
            continue
        text = "".join(csv_line(row.values()) for row in rows)
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        again = [
            {c.name: _value(c, cell) for c, cell in zip(table.columns, line, strict=True)}
            for line in lines
        ]
        assert again == [{name: as_written(value) for name, value in row.items()} for row in rows]
    for name in opened.folded:
        try:
            list(opened.stacks(name))
        except BundleError as error:
            in_one_line(error)


def sql(data: bytes) -> None:
    """A table and stacks: DuckDB has the rows that the bundle's own reader gives, or none."""
    table, _, stacks = data.partition(BETWEEN)
    folder = laid_out({
        "datapackage.json": json.dumps(DESCRIPTION).encode(), "sections.csv": SECTIONS_CSV,
        "plain.csv": table, "x.folded": stacks,
    })  # fmt: skip
    opened = Bundle(folder)
    database = open_database(opened)
    with contextlib.closing(database.connection):
        try:
            rows = list(opened.rows("plain"))
        except BundleError as error:
            in_one_line(error)
            assert "plain" in database.missing
        else:
            if "plain" not in database.missing:
                loaded = database.rows("from plain")
                assert loaded == rows, (loaded, rows)
    try:
        found = list(opened.stacks("x"))
    except BundleError as error:
        in_one_line(error)
        return
    again = scratch() / "again"
    with Writer(again) as writer:
        writer.folded("x", "Stacks", found, unit="pages", section="zones")
        writer.finish({}, [SectionResult("zones", "ok", 0.0, 0, 0, None)])
    read = list(Bundle(again).stacks("x"))
    shutil.rmtree(again)
    assert read == [(LINE_BREAK.sub(" ", stack), value) for stack, value in found]


# Files of a tree that are read. What else is there has no say.
TREE = (
    "proc/zoneinfo", "proc/pagetypeinfo", "proc/buddyinfo", "proc/vmstat", "proc/meminfo",
    "proc/slabinfo", "proc/uptime", "proc/version", "proc/7/status", "proc/7/maps", "proc/7/comm",
    "proc/sys/vm/max_map_count", "proc/sys/vm/swappiness", "proc/sys/vm/hugetlb_optimize_vmemmap",
    "sys/kernel/mm/ksm/pages_shared", "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages",
    "sys/kernel/slab/dentry/object_size", "sys/kernel/debug/slab/dentry/alloc_traces",
)  # fmt: skip


def tree(data: bytes) -> None:
    """A tree of /proc and /sys: each part is a path's number in two digits, and its text."""
    root = scratch() / "tree"
    shutil.rmtree(root, ignore_errors=True)
    (root / "proc").mkdir(parents=True)
    for part in data.split(BETWEEN)[: len(TREE)]:
        if part[:2].isdigit():
            path = root / TREE[int(part[:2]) % len(TREE)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(part[2:])
    files = Files(root)
    unexpected: list[BaseException] = []

    def explained(error: BaseException) -> str:
        if type(error) is not ValueError:
            unexpected.append(error)
        return plainly(error)

    plainly, running.explain = running.explain, explained
    path = scratch() / "collected"
    try:
        with Writer(path) as writer:
            target = describe_files(files)
            sections = collect(files, target, writer)
        read = Bundle(path)
        # Of what a file says, words may hold anything.
        written = [replace(s, message=as_written(s.message)) for s in sections]
        assert read.sections == written
        for table in read.tables:
            assert list(read.rows(table)) or True
    except Absent as error:
        in_one_line(error)
    finally:
        running.explain = plainly
        shutil.rmtree(path, ignore_errors=True)
    if unexpected:
        raise unexpected[0]


def core(data: bytes) -> None:
    """The headers of a core file; a second page of the file begins with BETWEEN."""
    head, _, second = data.partition(BETWEEN)
    path = scratch() / "core"
    path.write_bytes(head[:4096].ljust(4096, b"\0") + second if second else head)
    size = path.stat().st_size
    kdump = core_file.read_kdump(path)
    core_file.elf_type(path)
    core_file.split_part(path)
    core_file.left_out(path)
    missing = core_file.missing_bytes(path)
    assert missing >= 0
    if kdump is not None:
        frames = core_file.missing_frames(path)
        pages = 0 if frames is None else int.from_bytes(frames.tobytes(), "little").bit_count()
        assert missing == pages * kdump.page_size
    identity = core_file.build_id(path)
    assert identity is None or len(identity) <= 2 * size


def iomem(data: bytes) -> None:
    """/proc/iomem, the command line and /proc/meminfo: whatever they say, the parts add up."""
    resources, line, meminfo = (*data.split(BETWEEN), b"", b"")[:3]
    of_text(read_iomem)(resources)
    of_text(memory_options)(line)
    of_text(read_direct_map)(meminfo)
    with contextlib.suppress(ValueError):
        options = memory_options(line.decode("utf-8", "backslashreplace"))
        found = read_iomem(resources.decode("utf-8", "backslashreplace"))
        laid = lay_out(found, None, [], options, [], 4096)
        come_back([*laid.ranges, *laid.parts])
        assert sum(row.bytes for row in laid.parts[1:]) == laid.parts[0].bytes


TARGETS: dict[str, Callable[[bytes], None]] = {
    "zoneinfo": of_text(read_zoneinfo, read_zoneinfo_pcp),
    "pagetypeinfo": of_text(read_pagetypeinfo, read_pagetypeinfo_blocks),
    "buddyinfo": of_text(read_buddyinfo),
    "vmstat": vmstat,
    "status": of_text(lambda text: filter(None, [read_status(text)])),
    "smaps_rollup": of_text(lambda text: [read_smaps_rollup(text, 1, "init")]),
    "slabinfo": of_text(read_slabinfo),
    "allocinfo": of_text(read_allocinfo),
    "vmallocinfo": of_text(read_vmallocinfo),
    "alloc_traces": of_text(
        lambda text: read_alloc_traces(text, "dentry", None),
        lambda text: read_alloc_traces(text, "kmalloc-64", 64),
    ),
    "page_owner": page_owner,
    "counts": counts,
    "perf": perf,
    "bundle": bundle,
    "sql": sql,
    "iomem": iomem,
    "tree": tree,
    "core": core,
}
