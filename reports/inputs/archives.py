# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Archives read from their beginning to their end, in memory: nothing of them is written to disk, but
a journal's own file, for the program that reads it.

An archive is a stranger's. Its headers are read here, each in bounded memory. No path of it is
followed on this machine: names are keys, those that lead out of it (``..``) are left out, and links
are looked up among its own names. Devices and pipes are nothing. What is unpacked, kept, nested and
counted has a bound, and what is beyond is said.

Format: POSIX.1-1988 (ustar) with GNU's long names and pax headers (tar(5) of libarchive, 3.7); zip
by the standard library, once its directory is known to be small.

Costs what unpacking costs; memory for what is kept (:data:`MOST_KEPT`).
"""

import contextlib
import io
import lzma
import posixpath
import re
import stat
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from mmscope.drgn.sections.files import MOST_OF_LOG
from mmscope.drgn.tables.display import plural, size
from mmscope.drgn.text.packed import JOURNAL, PACKED, PackedError, Stream, tail, unpacked
from mmscope.drgn.text.plain_file import MAX_TEXT_BYTES
from mmscope.reports.inputs.recognise import (
    HEAD_BYTES,
    LOG,
    PERF_DATA,
    TAR,
    UNKNOWN,
    VMCORE,
    ZIP,
    Kind,
    recognise,
)

MOST_UNPACKED = 16 << 30  # bytes that pass by
MOST_KEPT = 512 << 20
MOST_OF_RECORDING = 256 << 20  # of perf
MOST_MEMBERS = 200_000
MOST_LONE = 200  # files that are no part of a tree
MOST_NESTED = 3  # archives in archives
MOST_SECONDS = 600.0
LONGEST_HEADER = 64 << 10  # of a long name, or of pax records
LARGEST_DIRECTORY = 8 << 20  # of a zip: 100,000 members
LONGEST_NAME = 4096
MOST_NOTES = 20
BLOCK, PIECE = 512, 1 << 18
LOCAL, END, END64 = 30, 22, 76  # least bytes of a zip's records: before a member, and at its end
# What the standard library raises of a zip that is damaged, or packed otherwise.
ZIP_DAMAGE = (
    *(zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, RuntimeError),
    *(zlib.error, lzma.LZMAError, EOFError, struct.error),
)
# Of a tree: what sections read, as a regular expression of its path there.
IN_TREE = re.compile(
    r"(?:^|/)(?P<path>"
    r"proc/(?:[a-z]\w{2,30}|self/mount\w*|mounts|\d+/(?:status|maps|comm|smaps_rollup)"
    r"|sys/(?:vm|kernel|fs)/[\w./-]+|spl/kstat/zfs/\w+|pressure/\w+)"
    r"|sys/(?:kernel/mm/.+|fs/cgroup/(?:.+/)?memory\.[\w.]+|devices/system/node/.+"
    r"|kernel/slab/[^/]+/object_size|kernel/debug/slab/[^/]+/alloc_traces|firmware/memmap/.+"
    r"|block/[^/]+/mm_stat|module/zswap/parameters/\w+|class/dmi/id/\w+|hypervisor/\w+)"
    r"|var/log/[^/]+|var/log/journal/[^/]+/system[^/]*\.journal~?|var/crash/(?:[^/]+/)?[^/]+"
    r"|sos_commands/(?:kernel|general|logs|systemd)/(?:dmesg|journalctl|lsmod|sysctl)[^/]*"
    r"|dmesg[^/]*|vmcore-dmesg\.txt|hostname)\Z"
)
NOT_KEPT = re.compile(r"proc/(?:kcore|kallsyms|kmsg|kpage\w+)\Z")
LOGS = re.compile(r"(?:var/|sos_commands/|dmesg|vmcore-dmesg)")
ENCRYPTED = 1  # of a zip's flags
PAX_LENGTH = re.compile(rb"(\d{1,6}) ")


@dataclass
class Member:
    """A regular file of an archive, or a link (then it has a target)."""

    name: str
    moment: float
    target: str | None = None
    hard: bool = False


@dataclass
class Unpacked:
    """
    Files that were kept of an archive.

    :ivar tree: files of the tree in it, by their path there.
    :ivar lone: (name, kind, bytes) of what is no part of a tree, and is recognised.
    :ivar notes: what was left out, and why.
    :ivar kind: ``tar`` or ``zip``.
    :ivar inner: what the names in an archive in it begin with.
    :ivar moment: the latest time of what was kept.
    """

    tree: dict[str, bytes] = field(default_factory=dict)
    lone: list[tuple[str, Kind, bytes]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)
    kind: str = TAR
    moment: float | None = None


class _Full(Exception):
    """A bound was met; says which."""


def clean_name(name: str) -> str | None:
    """A member's name as a path inside of the archive; None if it leads out of it."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name or len(name) > LONGEST_NAME:
        return None
    return "/".join(parts)


class _Counted(io.RawIOBase):
    """A stream of what is unpacked, which ends in an error at its bound."""

    def __init__(self, stream: Stream, bounds: "_Reader") -> None:
        self._stream, self._bounds = stream, bounds

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._bounds.passed(len(data))
        return data


class _Reader:
    """Reads archives, and what lies in them, until a bound is met."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}  # by name in the archive, what may be of a tree
        self.links: dict[str, str] = {}
        self.lone: list[tuple[str, Kind, bytes]] = []
        self.notes: list[str] = []
        self.moments: dict[str, float] = {}
        self.inner: list[str] = []
        self.beyond: list[str] = []  # names that are recognised, beyond MOST_LONE
        self.bytes_passed = self.bytes_kept = self.members = self.refused = self.encrypted = 0
        self.until = time.monotonic() + MOST_SECONDS

    def passed(self, size: int) -> None:
        self.bytes_passed += size
        if self.bytes_passed > MOST_UNPACKED:
            raise _Full(f"unpacked it has more than {MOST_UNPACKED >> 30} GiB")
        if time.monotonic() > self.until:
            raise _Full(f"it takes more than {MOST_SECONDS:g} s")

    def archive(self, stream: Stream, kind: str, depth: int, before: str) -> None:
        """Read an archive; its members' names begin with *before*."""
        members = _zip_members(stream) if kind == ZIP else _tar_members(stream)
        for member, content in members:
            self.members += 1
            if self.members > MOST_MEMBERS:
                raise _Full(f"it has more than {MOST_MEMBERS:,} members")
            name = clean_name(before + member.name)
            if name is None:
                self.refused += 1
            elif member.target is not None:
                folder = "" if member.hard else posixpath.dirname(name)
                self.link(name, f"{folder}/{before if member.hard else ''}{member.target}", member)
            elif content is None:
                self.encrypted += 1
            elif kind == ZIP:
                try:
                    self.file(name, member, _Counted(content, self), depth)
                except ZIP_DAMAGE as error:
                    self.notes.append(f"{name}: is damaged: {error}")
            else:
                self.file(name, member, content, depth)

    def link(self, name: str, target: str, member: Member) -> None:
        """Remember a link, if it leads to a name of this archive."""
        absolute = (member.target or "").startswith("/")
        target = posixpath.normpath((member.target or "") if absolute else target).lstrip("/")
        if clean_name(target) is not None:
            # An absolute one is meant of the tree's root.
            self.links[name] = f"/{target}" if absolute else target
        else:
            self.refused += 1

    def file(self, name: str, member: Member, content: Stream, depth: int) -> None:
        """Keep a file if it is of use."""
        match = IN_TREE.search(name)
        if match and not NOT_KEPT.match(match["path"]):
            is_log = LOGS.match(match["path"]) is not None
            try:
                data, before = self.text(content, is_log=is_log)
            except PackedError as error:
                self.notes.append(f"{name}: {error}")
                return
            if before and not is_log:
                self.notes.append(f"{name}: has more than {MAX_TEXT_BYTES >> 20} MiB, not read")
            else:
                self.kept[name] = data
                self.count(name, member, data, before)
            return
        head = content.read(HEAD_BYTES)
        kind = recognise(head)
        if head.startswith(PACKED) or kind.name in (TAR, ZIP):
            self.nested(name, member, head, content, depth)
        else:
            self.alone(name, member, kind, _Joined(head, content))

    def text(self, content: Stream, *, is_log: bool) -> tuple[bytes, int]:
        """A file of a tree, of a journal what it has of the kernel; and what comes before it."""
        if not is_log:
            return tail(content, MAX_TEXT_BYTES)
        head = content.read(len(JOURNAL))
        whole = _Joined(head, content)
        if head != JOURNAL:
            return tail(whole, MOST_OF_LOG)
        with unpacked(whole, head) as stream:
            return tail(_Counted(stream, self), MOST_OF_LOG)

    def alone(self, name: str, member: Member, kind: Kind, content: Stream) -> None:
        """Keep a file that is no part of a tree, if it is recognised."""
        if kind.name == UNKNOWN:
            return
        if len(self.lone) >= MOST_LONE:
            self.beyond.append(name)
            return
        # A dump is opened by its name, which nothing in an archive has.
        most = MOST_OF_RECORDING if kind.name == PERF_DATA else MOST_OF_LOG
        data, before = (b"", 0) if kind.name == VMCORE else tail(content, most)
        if before and kind.name != LOG:
            words = f"{kind.words} of more than {size(most)} is not read out of an archive"
            self.notes.append(f"{name}: {words}")
            return
        self.lone.append((name, kind, data))
        self.count(name, member, data, before)

    def count(self, name: str, member: Member, data: bytes, before: int) -> None:
        """Count what was kept of a file, which is the last of a log."""
        if before:
            self.notes.append(f"{name}, of which the last {size(len(data))} are read")
        self.moments[name] = member.moment
        self.bytes_kept += len(data)
        if self.bytes_kept > MOST_KEPT:
            raise _Full(f"what is of use in it has more than {MOST_KEPT >> 20} MiB")

    def nested(self, name: str, member: Member, head: bytes, content: Stream, depth: int) -> None:
        """Read an archive, or a packed file, in the archive."""
        if depth >= MOST_NESTED:
            self.notes.append(f"{name}: an archive in {depth} others, not read")
            return
        raw = _Joined(head, content)
        try:
            with unpacked(raw, head) as stream:
                counted = _Counted(stream, self)
                first = counted.read(HEAD_BYTES)
                whole = _Joined(first, counted)
                kind = recognise(first)
                if kind.name in (TAR, ZIP) and len(self.inner) < MOST_LONE:
                    self.inner.append(f"{name}/")
                if kind.name == TAR:
                    self.archive(whole, TAR, depth + 1, f"{name}/")
                elif kind.name == ZIP:
                    data, before = tail(whole, MOST_KEPT - self.bytes_kept)
                    if before:
                        raise _Full(f"{name} has more than {MOST_KEPT >> 20} MiB")
                    self.archive(io.BytesIO(data), ZIP, depth + 1, f"{name}/")
                else:
                    self.alone(name, member, kind, whole)
        except PackedError as error:
            self.notes.append(f"{name}: {error}")

    def result(self) -> Unpacked:
        """The tree with the most files, and the lone files beside it."""
        made, root = Unpacked(notes=self.notes[:MOST_NOTES], inner=self.inner), None
        if more := len(self.notes[MOST_NOTES:]):
            called = plural(more, "more file was", "more files were")
            made.notes.append(f"{called} not read, or not whole")
        roots = Counter(map(_root, self.kept))
        if roots:
            root = max(sorted(roots), key=lambda each: (roots[each], -len(each)))
            self.resolve(root)
            made.tree = {
                name.removeprefix(root): data
                for name, data in self.kept.items()
                if name.startswith(root)
            }
            others = [each for each in roots if f"{each}proc/meminfo" in self.kept and each != root]
            if others:
                called = plural(
                    len(others),
                    "other machine's tree in it was",
                    "other machines' trees in it were",
                )
                made.notes.append(f"{called} not read: give each by itself")
        # Of a tree, copies of its files elsewhere in it are no inputs of their own; a recording is.
        whole = any(path.startswith(("proc/", "sys/")) for path in made.tree)
        made.lone = [
            (name, kind, data)
            for name, kind, data in self.lone
            if kind.name == PERF_DATA or not (whole and name.startswith(root or ""))
        ]
        if beyond := [name for name in self.beyond if not (whole and name.startswith(root or ""))]:
            called = plural(len(beyond), "more file in it was", "more files in it were")
            made.notes.append(f"{called} not read: unpack it before")
        if self.refused:
            names = plural(self.refused, "name")
            made.notes.append(f"{names} in it would lead out of it, and nothing of that was read")
        if self.encrypted:
            called = plural(self.encrypted, "file in it is", "files in it are")
            made.notes.append(f"{called} encrypted: unpack it before")
        moments = [*self.moments.values()]
        made.moment = max(moments) if moments else None
        return made

    def resolve(self, root: str) -> None:
        """Give links in a tree the content of what they lead to; what leads nowhere is nothing."""
        for name, first in self.links.items():
            target = first
            for _ in range(8):
                target = root + target[1:] if target.startswith("/") else target
                if target in self.kept:
                    if IN_TREE.search(name) and name not in self.kept:
                        self.kept[name] = self.kept[target]
                    break
                if target not in self.links:
                    break
                target = self.links[target]


def _root(name: str) -> str:
    """Names before a path of a tree."""
    match = IN_TREE.search(name)
    assert match is not None  # that is why it was kept
    return name[: match.start("path")]


class _Joined(io.RawIOBase):
    """A stream of which the beginning was read already."""

    def __init__(self, head: bytes, rest: Stream) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            size = len(self._head) if size < 0 else size
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._rest.read(size)


def read_archive(raw: Stream, head: bytes) -> Unpacked:
    """
    Read an archive as far as it goes.

    :param raw: at its beginning; a zip can be sought in.
    :param head: its first bytes.
    :raises PackedError: nothing of it can be read.
    """
    reader, ended = _Reader(), None
    try:
        with unpacked(raw, head) as stream:
            counted = _Counted(stream, reader)
            if head.startswith(b"PK\3\4"):
                reader.archive(raw, ZIP, 1, "")
            else:
                reader.archive(counted, TAR, 1, "")
    except (_Full, PackedError) as error:
        if not reader.members:
            raise PackedError(str(error)) from error
        ended = f"{error}: read up to there, {plural(reader.members, 'member')}"
    made = reader.result()
    if ended:
        made.notes.append(ended)
    made.kind = ZIP if head.startswith(b"PK\3\4") else TAR
    return made


# tar


def _exactly(stream: Stream, size: int) -> bytes:
    pieces = []
    while size and (piece := stream.read(min(size, PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


class _Content(io.RawIOBase):
    """So many bytes of a stream."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream, self.left = stream, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self.left if size < 0 else min(size, self.left)
        data = self._stream.read(min(wanted, PIECE)) if wanted else b""
        if wanted and not data:
            raise PackedError("is cut short")
        self.left -= len(data)
        return data

    def skip(self) -> None:
        while self.read(PIECE):
            pass


def _number(field_bytes: bytes) -> int:
    """A number of a header: octal digits, or GNU's base 256."""
    if field_bytes[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field_bytes[1:], "big") if field_bytes[:1] == b"\x80" else 0
    digits = field_bytes.split(b"\0")[0].strip()
    if not re.fullmatch(rb"[0-7]{0,12}", digits):
        raise PackedError("is damaged: a header of tar has no number where one should be")
    return int(digits or b"0", 8)


def _is_header(block: bytes) -> bool:
    """True if the sum of a header's bytes is what it says."""
    with contextlib.suppress(PackedError):
        said = _number(block[148:156])
        rest = block[:148] + b" " * 8 + block[156:]
        return said in (sum(rest), sum(struct.unpack("512b", rest)))
    return False


def _pax(records: bytes) -> dict[bytes, bytes]:
    """``length key=value`` lines; what is damaged ends them."""
    found = {}
    at = 0
    while match := PAX_LENGTH.match(records, at):
        end = at + int(match[1])
        key, equals, value = records[match.end() : end - 1].partition(b"=")
        if not equals or end <= match.end() or end > len(records):
            break
        found[key] = value
        at = end
    return found


def _tar_members(stream: Stream) -> Iterator[tuple[Member, Stream | None]]:
    """
    The members of a tar, in its order; the content of one is read before the next.

    :raises PackedError: it is damaged, or cut short.
    """
    more: dict[bytes, bytes] = {}  # for the next member
    while len(block := _exactly(stream, BLOCK)) == BLOCK and block.strip(b"\0"):
        if not _is_header(block):
            raise PackedError("is damaged: no header of tar where one should be")
        kind, size = block[156:157], _number(block[124:136])
        if kind in b"xgLK" and kind:
            if size > LONGEST_HEADER:
                raise PackedError(f"has a header of {size:,} bytes, which none has")
            data = _exactly(stream, size)
            _exactly(stream, -size % BLOCK)
            if kind == b"x":
                more |= _pax(data)
            elif kind in b"LK":
                more[b"path" if kind == b"L" else b"linkpath"] = data.rstrip(b"\0")
            continue
        if re.fullmatch(rb"\d{1,15}", more.get(b"size", b"")):
            size = int(more[b"size"])
        name = block[:100].split(b"\0")[0]
        # A GNU header has times where ustar has the beginning of the name.
        if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0")[0]):
            name = prefix + b"/" + name
        while kind == b"S" and block[482:483] != b"\0":  # of a sparse file: more of its map
            block = b"\0" * 482 + _exactly(stream, BLOCK)[504:505] + b"\0" * 29
        target = more.get(b"linkpath", block[157:257].split(b"\0")[0])
        member = Member(
            more.get(b"path", name).decode("utf-8", "backslashreplace"),
            float(min(_number(block[136:148]), 1 << 33)) if kind != b"S" else 0.0,
        )
        more = {}
        if kind in (b"1", b"2"):
            member.target = target.decode("utf-8", "backslashreplace")
            member.hard = kind == b"1"
            yield member, None
            size = 0
        # Others than regular files have no content, or one that is not read.
        content = _Content(stream, size)
        if kind in (b"0", b"\0", b"7"):
            yield member, content
        content.skip()
        _exactly(stream, -size % BLOCK)


# zip


def _directory(stream: Stream) -> int:
    """
    Bytes of a zip's directory, as its end says; a zip64's says so in a record of its own, which
    ``zipfile`` believes.

    :raises PackedError: it has no end.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(size - (1 << 16) - END - END64, 0))
    data = stream.read()
    at = data.rfind(b"PK\5\6")
    if at < 0 or len(data) - at < END:
        raise PackedError("is cut short: a zip's directory is at its end")
    (directory,) = struct.unpack_from("<L", data, at + 12)
    if data[max(at - 20, 0) : at].startswith(b"PK\6\7") and at >= END64:
        directory = max(directory, *struct.unpack_from("<Q", data, at - END64 + 40))
    return int(directory)


def _zip_members(stream: Stream) -> Iterator[tuple[Member, Stream | None]]:
    """
    The members of a zip; one that is encrypted has no content.

    :raises PackedError: it is damaged, or has more members than an archive of logs has.
    """
    if _directory(stream) > LARGEST_DIRECTORY:
        raise PackedError("is a zip with too many members")
    try:
        with zipfile.ZipFile(stream) as archive:
            places = sorted((at.header_offset, at.compress_size) for at in archive.filelist)
            if any(at + LOCAL + size > behind for (at, size), (behind, _) in pairwise(places)):
                raise zipfile.BadZipFile("its members overlap")
            for info in archive.filelist:
                moment = time.mktime((*info.date_time, 0, 0, -1)) if info.date_time[0] else 0.0
                member = Member(info.filename, moment)
                if info.filename.endswith("/"):
                    continue
                if info.flag_bits & ENCRYPTED:
                    yield member, None
                    continue
                with archive.open(info) as content:
                    if stat.S_ISLNK(info.external_attr >> 16):
                        member.target = content.read(LONGEST_NAME).decode("utf-8", "replace")
                        yield member, None
                    else:
                        yield member, content
    except ZIP_DAMAGE as error:
        raise PackedError(f"is damaged: {error}") from error
