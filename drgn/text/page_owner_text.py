# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A file ``/sys/kernel/debug/page_owner``, read and counted; a large one by several processes at once.

Costs 0.4 to 1.5 µs a record, the less the more records in a row are alike. Memory is bounded: what
is kept grows with the distinct stacks and tasks, both up to a limit, beyond which the rest is one
row of its own that says so. See ``page_owner_records`` for the text, ``page_owner_tally`` for the
counting.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import functools
import marshal
import mmap
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator

from mmscope.drgn.text.page_owner_records import Tally, members_of, record_texts
from mmscope.drgn.text.page_owner_selection import EVERYTHING, Selection
from mmscope.drgn.text.page_owner_tally import (
    merge,
    new_tally,
    tally_page_owner,
    tally_selected,
)
from mmscope.drgn.text.text_source import CHUNK_BYTES, Source, TextError

# bytes read, of how many (0: unknown)
Progress = Callable[[int, int], None]
# Counts texts of records.
Count = Callable[[Iterable[bytes], Tally, Selection], None]
# Reading with several processes pays from here on: each learns what the others have seen, too.
PARALLEL_BYTES = 64 << 20
MAX_PROCESSES = 4


def read_page_owner(
    source: Source,
    selection: Selection = EVERYTHING,
    progress: Progress | None = None,
    processes: int = 0,
) -> Tally:
    """
    Count a ``page_owner`` file. Of its tally, "members" are those of struct page_owner that it has.

    :param processes: how many may read it; 0: as many as there are CPUs, up to a limit.
    :raises TextError: it cannot be decompressed, or does not have what is to be selected by.
    """
    # What a kernel prints at all is the same for all its records.
    members = members_of(source.peek())
    if lacking := selection.members - members:
        what = " and no ".join(sorted(lacking)).replace("ts_nsec", "ts")
        raise TextError(f"{source.name}: its kernel prints no {what} of an allocation to select by")
    counting = tally_selected if selection.timed else tally_page_owner
    count: Count = counting
    if "ts_nsec" not in members:
        count = functools.partial(counting, bare=True)
    tally = _read(source, selection, progress, processes, count)
    tally["members"] = members
    return tally


def _read(
    source: Source,
    selection: Selection,
    progress: Progress | None,
    processes: int,
    count: Count,
) -> Tally:
    tally = new_tally()
    available = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    wanted = processes or min(available, max(source.size // PARALLEL_BYTES, 1))
    if source.plain and wanted > 1:
        return _read_in_parts(source, selection, progress, wanted, count)
    count(record_texts(_shown(source, progress), tally), tally, selection)
    return tally


def _shown(source: Source, progress: Progress | None) -> Iterator[bytes]:
    """A source's chunks, and the progress they mean."""
    for number, chunk in enumerate(source.chunks()):
        if progress is not None and number % 64 == 0:
            progress(source.position(), source.size)
        yield chunk


def _read_in_parts(
    source: Source, selection: Selection, progress: Progress | None, parts: int, count: Count
) -> Tally:
    """Count a plain file with several processes, each from the first beginning in its part."""
    edges = [source.size * part // parts for part in range(parts)] + [source.size]
    # Each process writes how far it is to a place that all share.
    done = mmap.mmap(-1, 8 * parts)
    pipes: dict[int, tuple[int, bytearray]] = {}
    try:
        for part in range(parts):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _run_part(
                    source.name, count, selection, edges[part], edges[part + 1], writer, done, part
                )
            os.close(writer)
            pipes[reader] = child, bytearray()
        tally = new_tally()
        waiting = set(pipes)
        while waiting:
            for reader in select.select(list(waiting), [], [], 0.2)[0]:
                if data := os.read(reader, 1 << 20):
                    pipes[reader][1].extend(data)
                    continue
                waiting.discard(reader)
                merge(tally, _part_result(source.name, pipes[reader][1]))
                pipes[reader][1].clear()
            if progress is not None:
                progress(sum(memoryview(done).cast("Q")), source.size)
        return tally
    finally:
        for reader, (child, _) in pipes.items():
            os.close(reader)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _part_result(name: str, data: bytearray) -> Tally:
    """What a process handed over."""
    if not data:
        raise TextError(f"{name}: a process that read it was killed (is memory short?)")
    result = marshal.loads(data)
    if isinstance(result, str):
        raise TextError(f"{name}: {result}")
    tally: Tally = result
    return tally


def _run_part(
    name: str,
    count: Count,
    selection: Selection,
    begin: int,
    end: int,
    writer: int,
    done: mmap.mmap,
    part: int,
) -> None:
    """A child's whole life: count a part of a file, hand the tally over, end."""
    result: Tally | str = new_tally()
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with open(name, "rb", buffering=0) as file, memoryview(done).cast("Q") as shared:
            file.seek(begin)

            def chunks() -> Iterator[bytes]:
                while chunk := file.read(CHUNK_BYTES):
                    shared[part] = min(file.tell(), end) - begin
                    yield chunk

            assert isinstance(result, dict)
            count(record_texts(chunks(), result, begin, end), result, selection)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    try:
        with os.fdopen(writer, "wb") as pipe:
            marshal.dump(result, pipe)
    finally:
        os._exit(0)
