# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Paths of a command line, each looked at once: what it was taken for, in a line, and what it gives.

A file is a log, a dump, a profile, a text of /proc, an archive; a folder is a tree of these or a
part of one, and any other has files that are looked at one by one. What is not recognised is said,
and the rest goes on.
"""

import contextlib
import errno
import itertools
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from mmscope.drgn.cgroups.cgroup_files import GIVEN
from mmscope.drgn.dumps.wrapped import unpacked_by
from mmscope.drgn.opening import TargetError
from mmscope.drgn.sections.files import MOST_OF_LOG, Files
from mmscope.drgn.sections.given_files import GivenFiles
from mmscope.drgn.tables.display import plural, size
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.text.packed import JOURNAL, PACKED, UTF_16, PackedError, Stream, tail, unpacked
from mmscope.drgn.text.plain_file import open_plain
from mmscope.drgn.text.text_source import SUBSTITUTED
from mmscope.perf.perf_record import PERF_DATA as RECORDINGS
from mmscope.reports.bundle.description import DESCRIPTION
from mmscope.reports.inputs.archives import Unpacked, read_archive
from mmscope.reports.inputs.mails import is_mail, parts_of
from mmscope.reports.inputs.recognise import (
    EMPTY,
    HEAD_BYTES,
    LOG,
    PAGE_OWNER,
    PASTED,
    PERF_DATA,
    PERF_TEXT,
    PRESSURE,
    TAR,
    TREE,
    UNKNOWN,
    VMCORE,
    ZIP,
    Kind,
    as_utf8,
    named,
    pasted,
    recognise,
    unwrapped,
    without_cut_line,
)

MOST_FILES = 500  # of a folder that is no tree
MOST_PIPED = 16 << 30  # of standard input, which is kept in a file without a name
MOST_UNPACKED = 4 << 30  # of what is packed and must be read from its beginning, kept likewise
MOST_OF_TEXT = 64 << 20  # of a file of /proc that was given
# Names in a folder that show that it is a whole tree; and parts of one, and where they belong.
WHOLE = {"proc", "sys", "sos_commands", "sos_reports", "var"}
PARTS = (
    ("proc", {"meminfo", "vmstat", "zoneinfo", "buddyinfo", "slabinfo", "pagetypeinfo"}),
    ("var/log", {"messages", "syslog", "kern.log"}),
    ("sos_commands", {"kernel", "logs", "memory"}),
    ("sys/fs/cgroup", {"memory.current", "memory.usage_in_bytes", "cgroup.controllers"}),
    ("proc/PID", {"maps", "status", "smaps", "smaps_rollup"}),
)


@dataclass
class Given:
    """
    All that there is to read.

    :ivar texts: path in a tree to bytes. :ivar folders: trees on disk. :ivar logs: paths of logs
        among the texts.
    :ivar profiles: (file, name) of recordings of perf. :ivar owners: the same of page_owner.
    :ivar bundles: folders that are bundles already.
    :ivar said: what each was taken for. :ivar refused: what was not recognised, and why.
    """

    core: Path | None = None
    texts: dict[str, bytes] = field(default_factory=dict)
    folders: list[Files] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    profiles: list[tuple[str, str]] = field(default_factory=list)
    owners: list[tuple[str, str]] = field(default_factory=list)
    bundles: list[Path] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # the same, the kind first
    refused: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    archive: str = ""  # the name of the last one
    moment: float | None = None
    open_files: ExitStack = field(default_factory=ExitStack)

    @property
    def files(self) -> Files | None:
        """The tree of all that is text; None if nothing is."""
        if not self.texts and not self.folders:
            return None
        if not self.texts and len(self.folders) == 1:
            return self.folders[0]
        return GivenFiles(
            Path(self.archive),
            texts=self.texts,
            under=self.folders,
            moment=self.moment,
            logs=tuple(self.logs),
        )

    def took(self, name: str, words: str) -> None:
        self.said.append(f"{name}: {words}")
        self.kinds.append(f"{words} ({Path(name).name or name})")


def gather(paths: list[str], *, everything: bool = False) -> Given:
    """
    Look at what was given; close its ``open_files`` when it is read.

    :param everything: of a running host, also what is dear to read.
    :raises TargetError: there are two dumps.
    """
    given = Given()
    for path in dict.fromkeys(paths):
        name = "standard input" if path == "-" else path
        given.names.append(Path(path).name if path != "-" else name)
        try:
            if path != "-" and os.path.isdir(path):
                _folder(given, Path(path), everything=everything)
            else:
                _file(given, path, name)
        except (OSError, PackedError) as error:
            given.refused.append(f"{name}: {_why(error)}")
    return given


def _why(error: OSError | PackedError) -> str:
    """The reason why something could not be read."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _folder(given: Given, path: Path, *, everything: bool) -> None:
    """A bundle, a tree or a part of one, or files."""
    names = set(os.listdir(path))
    if DESCRIPTION in names:
        given.bundles.append(path)
        given.took(str(path), "a bundle")
        return
    if names & WHOLE and ("proc" in names or not names & PARTS[0][1]):
        what = "a sosreport" if "sos_commands" in names else "a tree of /proc and /sys"
        here = path.resolve() == Path("/")
        given.took(str(path), "this host, by /proc and /sys" if here else what)
        given.folders.append(Files(path, everything))
        for name in [] if here else sorted(names)[:MOST_FILES]:
            _recording(given, path / name)
        return
    for place, marks in PARTS:
        if len(names & marks) > (place == "proc/PID"):
            pid = path.name if path.name.isdecimal() else "0"
            place = place.replace("PID", pid)
            given.took(str(path), f"/{place} of a tree")
            given.folders.append(Files(path, everything, at=place))
            return
    files = sorted(name for name in names if (path / name).is_file())
    inner = len(names) - len(files)
    more = f", and {plural(inner, 'folder')} that {'is' if inner == 1 else 'are'} not looked into"
    given.took(str(path), f"a folder of {plural(len(files), 'file')}{more if inner else ''}")
    for name in files[:MOST_FILES]:
        try:
            _file(given, str(path / name), str(path / name))
        except FileNotFoundError:
            pass  # removed meanwhile
        except (OSError, PackedError) as error:
            given.refused.append(f"{path / name}: {_why(error)}")
    if len(files) > MOST_FILES:
        given.refused.append(f"{path}: {len(files) - MOST_FILES:,} more files were not looked at")


def _recording(given: Given, path: Path) -> None:
    """Take a file beside a tree if it is a recording."""
    with contextlib.suppress(OSError, PackedError):
        with open(open_plain(str(path)), "rb") as file:
            magic = file.read(8)
        if magic in RECORDINGS:
            _file(given, str(path), str(path))


@contextlib.contextmanager
def _opened(given: Given, path: str, name: str) -> Iterator[tuple[IO[bytes], str]]:
    """
    A file, and a path by which others open it again. What is piped is put into one without a name.

    :raises OSError: it cannot be opened, or is a pipe or a device.
    """
    descriptor = SUBSTITUTED.fullmatch(path)
    if descriptor is None:
        with open(open_plain(path), "rb") as raw:
            yield raw, path
        return
    number = os.dup(int(descriptor[1] or 0))
    with open(number, "rb") as pipe:
        if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
            raise OSError(errno.EINVAL, "is a device")
        yield _kept(given, pipe, name, MOST_PIPED)


def _kept(given: Given, stream: Stream, name: str, most: int) -> tuple[IO[bytes], str]:
    """A stream as a file without a name, and the path by which others open it."""
    nameless = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    kept = given.open_files.enter_context(os.fdopen(nameless, "w+b"))
    left = min(most, shutil.disk_usage(tempfile.gettempdir()).free // 2)
    while left and (piece := stream.read(min(1 << 20, left))):
        left -= len(piece)
        kept.write(piece)
    if not left and stream.read(1):
        given.refused.append(f"{name}: its first {size(kept.tell())} are read, and no more")
    kept.seek(0)
    return kept, f"/proc/self/fd/{kept.fileno()}"


def _file(given: Given, path: str, name: str) -> None:
    with _opened(given, path, name) as (raw, again):
        _read(given, raw, again, name, itself=path == again)


def _read(given: Given, raw: IO[bytes], again: str, name: str, *, itself: bool) -> None:
    """
    Take what is in a file.

    :param itself: it is the one that was given, with its name and time.
    """
    head = raw.read(HEAD_BYTES)
    raw.seek(0)
    if head.startswith(PACKED):
        _packed(given, raw, head, again, name)
        return
    if is_mail(head):
        _mails(given, raw, name)
        return
    kind = recognise(head)
    if kind.name in (TAR, ZIP):
        _archive(given, read_archive(raw, head), name)
    elif kind.name == VMCORE and not itself:
        given.refused.append(f"{name}: a vmcore, which cannot be read from a pipe")
    elif kind.name in (LOG, TREE, PASTED):
        _text(given, kind, raw, name)
        if itself and kind.name != LOG:
            given.moment = max(given.moment or 0, os.stat(again).st_mtime)
    else:
        _other(given, kind, again, name)


def _mails(given: Given, stream: IO[bytes], name: str) -> None:
    """Take what is in mails, each part for itself; prose is nothing to speak of."""
    data = stream.read(MOST_OF_TEXT + 1)
    if len(data) > MOST_OF_TEXT:
        raise PackedError(f"mails of more than {size(MOST_OF_TEXT)}")
    taken = len(given.said)
    for called, content in parts_of(data):
        kept = given.open_files.enter_context(_in_memory(content))
        refused = len(given.refused)
        _read(given, kept, f"/proc/self/fd/{kept.fileno()}", f"{name}: {called}", itself=False)
        given.refused[refused:] = [
            each for each in given.refused[refused:] if ": not recognised: " not in each
        ]
    if len(given.said) == taken:
        given.refused.append(f"{name}: a mail without anything that mmscope reads")


def _packed(given: Given, raw: IO[bytes], head: bytes, again: str, name: str) -> None:
    """A packed file, by what is in it."""
    with unpacked(raw, head) as stream:
        inner = stream.read(HEAD_BYTES)
    raw.seek(0)
    if is_mail(inner) or inner.startswith(tuple(UTF_16)):
        with unpacked(raw, head) as stream:
            kept, again = _kept(given, stream, name, MOST_UNPACKED)
        _read(given, kept, again, name, itself=False)
        return
    # Of a text in UTF-16 none of it is binary.
    kind = recognise(head if head.startswith(tuple(UTF_16)) else inner)
    packed = f"{kind.words}, {_how(head)}"
    if head.startswith(JOURNAL) and kind.name != LOG:
        raise PackedError("a journal's own file, without records of the kernel")
    if kind.name == TAR:
        _archive(given, read_archive(raw, head), name)
    elif kind.name in (VMCORE, ZIP):
        given.refused.append(f"{name}: {packed}: unpack it before: {unpacked_by(head)} {name}")
    elif kind.name in (LOG, TREE, PASTED):
        with unpacked(raw, head) as stream:
            _text(given, Kind(kind.name, packed, kind.place), stream, name)
    else:
        _other(given, Kind(kind.name, packed), again, name)


def _how(head: bytes) -> str:
    """The way that a file is packed."""
    if head.startswith(JOURNAL):
        return "out of a journal's own file"
    return "in UTF-16" if head.startswith(tuple(UTF_16)) else "compressed"


def _text(given: Given, kind: Kind, stream: Stream, name: str) -> None:
    """Take a log, or a file of /proc, as a text of the tree."""
    data, before = tail(stream, MOST_OF_LOG if kind.name == LOG else MOST_OF_TEXT)
    if before and kind.name != LOG:
        given.refused.append(f"{name}: {kind.words} of more than {size(MOST_OF_TEXT)}")
        return
    last = f", of which the last {size(len(data))} are read" if before else ""
    _put(given, kind, name, as_utf8(data), last)


def _put(given: Given, kind: Kind, name: str, data: bytes, more: str = "") -> None:
    if kind.name == PASTED:
        for place, text in pasted(data):
            _put(given, Kind(TREE, named(place, text), place), name, text)
        return
    place = kind.place
    if kind.name == LOG:
        place = _free(given, f"given/{visible(name.rpartition('/')[2])}")
        given.logs.append(place)
    if place == PRESSURE:
        called = name.rpartition("/")[2].lower()
        if other := re.search(r"(?<![a-z])(?:cpu|io|irq)(?![a-z])", called):
            given.refused.append(f"{name}: the pressure of {other[0]}, and not of memory")
            return
        if "memory.pressure" in called:
            place = f"sys/fs/cgroup/{GIVEN}/memory.pressure"
            kind = Kind(TREE, named(place), place)
        elif "memory" not in called:
            more += " (by its form alone: cpu and io have the same)"
    if "PID" in place:
        given_pid = re.search(r"(?:^|/)(\d{1,10})/[^/]*\Z", name)
        place = place.replace("PID", given_pid[1] if given_pid else "0")
    if place in given.texts:
        given.refused.append(f"{name}: {kind.words} was given before, and one is read")
        return
    data = unwrapped(place, data)
    given.texts[place] = whole = without_cut_line(place, data)
    more += "" if whole == data else ", without its last line, which is cut"
    given.took(name, kind.words + more)
    if kind.name == LOG:  # with what else is in the same file
        _put(given, Kind(PASTED, ""), name, data)
    if place.endswith("/smaps"):
        given.texts |= _of_smaps(place, data)


def _free(given: Given, place: str) -> str:
    """A path for a log: two may have one name."""
    numbered = (f"{place}.{number}" if number else place for number in itertools.count())
    return next(each for each in numbered if each not in given.texts)


def _of_smaps(place: str, data: bytes) -> dict[str, bytes]:
    """The two files that say the same as smaps: maps, and the sums of smaps_rollup."""
    sums: dict[bytes, int] = {}
    maps = []
    for line in data.splitlines():
        if match := re.match(rb"(\w{1,20}): +(\d{1,15}) kB\Z", line):
            if match[1] not in (b"Size", b"KernelPageSize", b"MMUPageSize"):
                sums[match[1]] = sums.get(match[1], 0) + int(match[2])
        elif re.match(rb"[0-9a-f]+-[0-9a-f]+ ", line):
            maps.append(line)
    lines = b"".join(b"%s: %d kB\n" % each for each in sums.items())
    folder = place.rpartition("/")[0]
    return {
        f"{folder}/maps": b"\n".join(maps) + b"\n",
        f"{folder}/smaps_rollup": b"0-0 ---p 00000000 00:00 0 [rollup]\n" + lines,
    }


def _other(given: Given, kind: Kind, again: str, name: str) -> None:
    """Take a file that is read by its name."""
    if kind.name == UNKNOWN:
        looks = "is" if kind.words == EMPTY else "not recognised: it looks like"
        given.refused.append(f"{name}: {looks} {kind.words}")
    elif kind.name == VMCORE:
        if given.core is not None:
            raise TargetError(
                f"{name}: a second vmcore: a bundle is of one; collect each by itself"
            )
        given.core = Path(again)
        given.took(name, kind.words)
    elif kind.name in (PERF_DATA, PERF_TEXT):
        given.profiles.append((again, name))
        given.took(name, kind.words)
    elif kind.name == PAGE_OWNER:
        given.owners.append((again, name))
        given.took(name, kind.words)


def _archive(given: Given, found: Unpacked, name: str) -> None:
    """Take what was kept of an archive."""
    what = []
    if found.tree:
        what.append(f"an archive with {plural(len(found.tree), 'file')} of a tree")
        for place, data in found.tree.items():
            given.texts.setdefault(place, data)
        given.moment, given.archive = found.moment, Path(name).name
    elif found.lone:
        what.append(f"an archive with {plural(len(found.lone), 'file')} to read")
    if what:
        given.took(name, "; ".join([*what, *found.notes]))
    else:
        words = "; ".join(["an archive without anything that mmscope reads", *found.notes])
        given.refused.append(f"{name}: {words}")
    for member, kind, data in found.lone:
        called = f"{name}: {member}"
        if kind.name in (LOG, TREE, PASTED):
            _put(given, kind, called, as_utf8(data))
        elif kind.name == VMCORE:
            inner = next((each.rstrip("/") for each in found.inner if member.startswith(each)), "")
            unpack = "unzip" if found.kind == ZIP else "tar --no-anchored -xf"
            words = shlex.join([*unpack.split(), name, inner or member])
            given.refused.append(f"{called}: {kind.words}: unpack it before: {words}")
        else:
            kept = given.open_files.enter_context(_in_memory(data))
            _other(given, kind, f"/proc/self/fd/{kept.fileno()}", called)


def _in_memory(data: bytes) -> IO[bytes]:
    """A file that is nowhere on a disk, for what opens files by their names."""
    made = os.fdopen(os.memfd_create("mmscope"), "w+b")
    made.write(data)
    made.seek(0)
    return made
