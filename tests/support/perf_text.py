# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text as ``perf script`` prints it, and what is folded from it."""

import io
from collections.abc import Iterable
from typing import Any

from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.stack_parts import load_known_frames, load_split


def header(
    comm: bytes = b"cat",
    pid: int = 7,
    time: str = "11481.355766123",
    period: str = "1003009",
    event: str = "cpu-clock",
    rest: bytes = b"",
) -> bytes:
    words = f" {pid:5d}/{pid:<5d} [000] {time}: {period:>10} {event:>12}: ".encode()
    return comm + words + rest + b"\n"


KNOWN = load_known_frames()


def stack(*names: str) -> bytes:
    """Frames of the kernel, root first, as perf prints them."""
    lines = [f"\tffffffff8161df68 {name} ([kernel.kallsyms])\n" for name in reversed(names)]
    return "".join(lines).encode()


def fold(
    text: bytes,
    recipe: str | None = "exit-path",
    *,
    pids: tuple[int, ...] = (),
    filtered: Iterable[str] = (),
    command: str = "",
    **options: Any,
) -> Fold:
    loaded = recipes.load(recipe) if recipe else None
    split = load_split(loaded.split) if loaded and loaded.split else None
    folder = Fold(loaded, split, KNOWN, wanted=pids, **options)
    folder.set_recording((), filtered, command=command)
    reading = Reading(on_fork=folder.fork)
    for sample in read_samples(io.BytesIO(text), reading, own=True):
        folder.add(sample)
    assert not reading.unread_bytes
    assert sum(e.recorded for e in folder.events.values()) == reading.samples
    for event in folder.events.values():
        drawn = sum(values[0] for values in event.stacks.values())
        assert drawn in (0, event.samples)
    return folder


def sampled(*names: str, comm: bytes = b"cat", pid: int = 7, **more: Any) -> bytes:
    return header(comm, pid=pid, **more) + stack(*names) + b"\n"


COMM = b'<img src=x>;"'
TEXT = (
    sampled("do_exit", "exit_mmap", "unmap_page_range", comm=COMM) * 5
    + sampled("do_exit", "exit_mmap", "free_pgtables", comm=COMM) * 2
    + sampled("do_idle")
    + sampled("exc_page_fault", comm=COMM) * 3
)
