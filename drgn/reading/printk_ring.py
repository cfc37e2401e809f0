# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``prb``, the ring buffer of the kernel's log: descriptors, infos and text (5.10 and later;
kernel/printk/printk_ringbuffer.h).

Read in bulk, in three pieces: the text (128 KiB to some MiB), a descriptor of 24 bytes and an info
of 88 or more for each 32 bytes of it. A record counts if its descriptor, its info and its text
agree that they are its own: the descriptor has its ID, the info its number, the data block its ID.

Cannot know: what the log had when its end met its beginning; of a record that is not finished, how
it would have gone on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from drgn import Program, Type

from mmscope.drgn.reading.kernel_arrays import read_whole, struct_dtype
from mmscope.drgn.tables.rows import MOST_PIDS
from mmscope.drgn.text.kernel_log import CPU, MOST_RECORDS, Log, LogRecord, caller_name

MAX_TEXT_BITS = 28  # log_buf_len= of 256 MiB
MAX_DESCRIPTOR_BITS = MAX_TEXT_BITS - 5  # PRB_AVGBITS
COMMITTED, FINALIZED = 1, 2  # enum desc_state
# A record that is an empty line has no data block: EMPTY_LINE_LPOS, NO_LPOS in 6.1.
EMPTY_LINE = 3
WORD = 8  # bytes of unsigned long: a data block begins with its ID
# Bytes of a text that were asked for and not kept: its level, its newline, a zero, the rest of a
# word (vprintk_store() and printk_sprint(), kernel/printk/printk.c).
MOST_UNUSED = 24
LOG_CONT = 8  # enum printk_info_flags
LAST_FACILITY = 23  # LOG_LOCAL7, of syslog(3)
LOG_FLAGS = 15  # all of them, LOG_PREFIX of 5.10 too
POSITION_MASK = (1 << 8 * WORD) - 1
STATE_SHIFT = 8 * WORD - 2  # DESC_FLAGS_SHIFT
ID_MASK = (1 << STATE_SHIFT) - 1
DESCRIPTOR = {
    "state": "state_var.counter",
    "begin": "text_blk_lpos.begin",
    "next": "text_blk_lpos.next",
}
INFO = {name: name for name in ("seq", "ts_nsec", "text_len", "facility", "caller_id")}
PACKED = ("flags", "level")  # bit fields


def log_records(prog: Program) -> Log:
    """
    The records of the kernel's log, oldest first.

    :raises LookupError: the kernel's log is of another form (before 5.10).
    :raises FaultError: it cannot be read.
    :raises ValueError: it is damaged.
    """
    prb = prog["prb"]
    ring, texts = prb.desc_ring, prb.text_data_ring
    text_bits, bits = texts.size_bits.value_(), ring.count_bits.value_()
    if not (0 < text_bits <= MAX_TEXT_BITS and 0 < bits <= MAX_DESCRIPTOR_BITS):
        raise ValueError("the kernel's log is damaged: its size cannot be")
    # Of a running kernel, the text first: what is overwritten meanwhile has another ID afterwards.
    data = bytes(prog.read(texts.data.value_(), 1 << text_bits))
    info_type = ring.infos.type_.type
    info_dtype, flags, level = _info_dtype(info_type)
    tail, head = (ring.member_(name).counter.value_() & ID_MASK for name in ("tail_id", "head_id"))
    count = ((head - tail) & ID_MASK) + 1
    if count > 1 << bits:
        raise ValueError("the kernel's log is damaged: its end lies behind its beginning")
    left_out = max(count - MOST_RECORDS, 0)
    first, number = (tail + left_out) & ((1 << bits) - 1), count - left_out
    desc_dtype = struct_dtype(ring.descs.type_.type, DESCRIPTOR)
    descriptors = _slots(prog, ring.descs.value_(), 1 << bits, first, number, desc_dtype)
    infos = _slots(prog, ring.infos.value_(), 1 << bits, first, number, info_dtype)
    rows = zip(descriptors, infos, strict=True)
    cpus = prog["nr_cpu_ids"].value_() if "nr_cpu_ids" in prog else 1
    records: list[LogRecord] = []
    lost, expected = 0, -1
    for number, ((state, begin, end), info) in enumerate(rows, tail + left_out):
        sequence, nanoseconds, length, facility, caller, packed_flags, packed_level = info
        number, state = number & ID_MASK, state & POSITION_MASK  # an atomic_long_t has a sign
        # A reserved one is being written; a reusable one is gone.
        ours = state & ID_MASK == number and state >> STATE_SHIFT in (COMMITTED, FINALIZED)
        text = _text(data, begin, end, number, length) if ours else None
        if not _is_caller(caller, cpus) or facility > LAST_FACILITY:
            text = None
        if _bits(packed_flags, flags) & ~LOG_FLAGS:
            text = None
        expected += 1
        if text is None or (records and sequence != expected):
            lost += bool(records)  # before the first, they were overwritten
            continue
        expected = sequence
        records.append(
            LogRecord(
                sequence,
                nanoseconds,
                _bits(packed_level, level),
                facility,
                caller_name(caller),
                bool(_bits(packed_flags, flags) & LOG_CONT),
                text.decode("utf-8", "backslashreplace"),
            )
        )
    begins = records[0].sequence if records else None
    return Log(records, None if begins is None else max(begins - left_out, 0), lost, left_out)


def _is_caller(caller: int, cpus: int) -> bool:
    """``printk_caller_id()`` (kernel/printk/printk.c): a thread's number, or a CPU's."""
    return caller & ~CPU < cpus if caller & CPU else caller <= MOST_PIDS


def _slots(
    prog: Program, address: int, size: int, first: int, count: int, dtype: np.dtype[Any]
) -> list[Any]:
    """So many elements of an array of *size*, which goes on at its beginning."""
    there = min(count, size - first)
    begin = read_whole(prog, address + first * dtype.itemsize, there, dtype).tolist()
    return list(begin + read_whole(prog, address, count - there, dtype).tolist())


def _text(data: bytes, begin: int, end: int, number: int, length: int) -> bytes | None:
    """``get_data()`` (kernel/printk/printk_ringbuffer.c); None if the text is lost."""
    if begin == end == EMPTY_LINE:
        return b""
    # An odd position says that there is no data.
    if begin % WORD or end % WORD:
        return None
    size = len(data)
    last = (end - 1) & POSITION_MASK
    # is_blk_wrapped() of 7.2 and 7.3: a block may end where the ring does. In kernels before, such
    # a block wrapped, and had its end after the ring's beginning.
    if begin // size == last // size:
        at, stop = begin % size, last % size + 1
    elif ((begin + size) & POSITION_MASK) // size == last // size:
        at, stop = 0, last % size + 1
    else:
        return None
    if stop - at < WORD or int.from_bytes(data[at : at + WORD], "little") != number:
        return None
    # copy_data() refuses less room; more is the end of a word, and what was not kept.
    if not length <= stop - at - WORD <= length + MOST_UNUSED:
        return None
    return data[at + WORD : at + WORD + length]


def _info_dtype(info: Type) -> tuple[np.dtype[Any], tuple[int, int], tuple[int, int]]:
    """The columns of an info, and where in their bytes flags and level are: (shift, mask)."""
    whole = struct_dtype(info, INFO)
    fields_at: Mapping[str, Any] = whole.fields or {}
    formats = [whole[name].str for name in INFO]
    offsets = [fields_at[name][1] for name in INFO]
    fields = []
    for name in PACKED:
        member = info.member(name)
        offset, shift = divmod(member.bit_offset, 8)
        width = member.bit_field_size or 0
        if not 0 < width <= 8 - shift:
            raise LookupError(f"printk_info.{name} is of another form")
        formats.append("u1")
        offsets.append(offset)
        fields.append((shift, (1 << width) - 1))
    dtype = np.dtype(
        {
            "names": [*INFO, *PACKED],
            "formats": formats,
            "offsets": offsets,
            "itemsize": whole.itemsize,
        }
    )
    return dtype, fields[0], fields[1]


def _bits(byte: int, where: tuple[int, int]) -> int:
    shift, mask = where
    return byte >> shift & mask
