# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Dumps that have to be unpacked before they are read: those that another tool compressed, and those
in makedumpfile's flattened format (``-F``), a stream of what was to be written where, for pipes, in
which cannot be sought in. kdump-tools of Debian writes every dump so (``kdump-config``, 1.10.7).

Format: ``struct makedumpfile_header`` and ``struct makedumpfile_data_header`` (makedumpfile.h,
1.7.6), big-endian on every architecture.

libkdumpfile (0.5.3 and later) reads it as it is, but opens none that was cut short, and what this
project reads of a dump by itself (``core_file.py``) stands on the rebuilt file. So it is rebuilt.

Costs: the dump is read and written once; memory for one piece of it; on disk never more than
twice what the dump takes.
"""

import errno
import os
import struct
import time
from pathlib import Path

from mmscope.drgn.text.plain_file import open_plain

# What a compressed file begins with, and how to get the dump out of it.
COMPRESSED = {
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\x1f\x8b": "gunzip -k",
    b"\xfd7zXZ\x00": "xz -dk",
    b"BZh": "bunzip2 -k",
    b"\x04\x22\x4d\x18": "lz4 -d",
}
FLATTENED = b"makedumpfile\0\0\0\0"
HEADER, HEADER_BYTES = struct.Struct(">16sqq"), 4096  # signature, type, version
TYPE, VERSION = 1, 1
RECORD = struct.Struct(">qq")  # offset, buf_size
END = (-1, -1)
PIECE = 1 << 20
BLOCK = 4096
# makedumpfile writes buffers of 64 KiB, QEMU of 16 KiB: where two meet, both count the same block.
SLACK = 2.0
LARGEST_HOLE = 64 << 30
SPARE = 64 << 20  # bytes that others are left with


class FlattenedError(Exception):
    """It cannot be rebuilt; says why in one line."""


def head_of(path: Path) -> bytes:
    """
    The first bytes of a file, by which its format is known.

    :raises OSError: it cannot be read, or is no plain file.
    """
    with open(open_plain(path), "rb") as file:
        return file.read(64)


def unpacked_by(head: bytes) -> str | None:
    """The command that unpacks a file that begins so; None if it is not compressed."""
    return next((how for magic, how in COMPRESSED.items() if head.startswith(magic)), None)


def rebuild(source: Path, target: Path, seconds: float = float("inf")) -> str | None:
    """
    Write a new file as the dump was meant to be, as ``makedumpfile -R`` does. Where records
    overlap, the later one counts.

    :param seconds: that it may take.
    :return: where the flattened dump ends too soon, in words: the rebuilt one has what lies before.
        None if it is whole.
    :raises FlattenedError: there is no room, it takes too long, or it is no such dump. There is no
        *target* then.
    """
    until = time.monotonic() + seconds
    try:
        with source.open("rb", buffering=0) as old:
            size = os.fstat(old.fileno()).st_size
            _check_header(os.pread(old.fileno(), HEADER.size, 0))
            _check_room(size, target.parent)
            new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                return _copy(old.fileno(), size, new, until)
            except BaseException:
                target.unlink()
                raise
            finally:
                os.close(new)
    except OSError as error:
        why = error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"no room for it in {target.parent}"
        raise FlattenedError(f"a flattened dump that cannot be rebuilt: {why}") from error


def _check_header(head: bytes) -> None:
    if len(head) < HEADER.size or not head.startswith(FLATTENED):
        raise FlattenedError("is not in makedumpfile's flattened format")
    _, kind, version = HEADER.unpack(head)
    if (kind, version) != (TYPE, VERSION):
        raise FlattenedError(
            f"is a flattened dump of type {kind}, version {version}, and {TYPE}, {VERSION} is known"
        )


def _check_room(size: int, folder: Path) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < size + SPARE:
        raise FlattenedError(
            "is in makedumpfile's flattened format, and to rebuild it takes "
            f"{size + SPARE >> 20:,} MiB, but {folder} has {free >> 20:,} MiB free"
        )


def _copy(old: int, size: int, new: int, until: float) -> str | None:
    at, taken = HEADER_BYTES, 0
    while len(head := os.pread(old, RECORD.size, at)) == RECORD.size:
        offset, length = RECORD.unpack(head)
        if (offset, length) == END:
            if at == HEADER_BYTES:
                raise FlattenedError("is a flattened dump without any data")
            return None
        # A file whose last blocks never came to the disk has zeros there.
        if offset < 0 or length <= 0 or offset + length > 16 * size + LARGEST_HOLE:
            return _ends("is damaged", at, size)
        # What is on disk is whole blocks: a byte here and one there takes more than the dump has.
        there = max(min(length, size - at - RECORD.size), 0)
        taken += (-(-(offset + there) // BLOCK) - offset // BLOCK) * BLOCK
        if taken > SLACK * size + SPARE:
            raise FlattenedError(
                "is a flattened dump that is scattered as makedumpfile leaves none: it would take "
                f"more than {int(SLACK * size) + SPARE >> 20:,} MiB"
            )
        at += RECORD.size
        end = at + length
        while at < end:
            if time.monotonic() > until:
                raise FlattenedError(
                    "is a flattened dump, and to rebuild it takes too long: "
                    f"{at >> 20:,} of {size >> 20:,} MiB were done"
                )
            if not (piece := os.pread(old, min(PIECE, end - at), at)):
                return _ends("is cut short", at, size)
            done = os.pwrite(new, piece, offset)
            at, offset = at + done, offset + done
    return _ends("is cut short", at + len(head), size)


def _ends(how: str, at: int, size: int) -> str:
    if at <= HEADER_BYTES + RECORD.size:
        raise FlattenedError(f"is a flattened dump that {how} at its very beginning")
    return f"the dump {how} at byte {at:,} of {size:,}: what should come behind is not in it"
