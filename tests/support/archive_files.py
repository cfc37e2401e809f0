# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives as strangers may make them: bombs, links, names and devices that lead out, too many."""

import bz2
import functools
import gzip
import io
import lzma
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data/7.2"
FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
MILLION = 1_000_000
PLACES = (
    "proc/meminfo", "proc/vmstat", "sys/kernel/mm/hugepages/x", "var/log/messages", "hostname",
    "sos_commands/kernel/dmesg", "proc/1/smaps_rollup", "sys/fs/cgroup/a/memory.stat", "log", "a/b",
    "var/crash/1/vmcore", "proc/kcore", "dmesg", "var/log/kern.log",
)  # fmt: skip
TYPES = (
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE),
    *(tarfile.GNUTYPE_SPARSE, tarfile.XGLTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME),
    *(b"Z", b"\xff"),
)


@functools.cache
def tree() -> dict[str, bytes]:
    """Files of a tree, by name."""
    files = sorted(path for path in DATA.rglob("*") if path.is_file())
    return {str(path.relative_to(DATA)): path.read_bytes() for path in files}


@functools.cache
def zeros(size: int, letter: bytes = b"\0") -> bytes:
    """So many bytes of one letter, by gzip: a thousandth of them."""
    packer, piece = zlib.compressobj(9, wbits=31), letter * (1 << 20)
    return b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()


@functools.cache
def many_headers(count: int) -> bytes:
    """A tar of so many empty files, by gzip."""
    block = tarfile.TarInfo("proc/1/status").tobuf(tarfile.USTAR_FORMAT)
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(block) for _ in range(count)) + packer.flush()


@functools.cache
def many_entries(count: int) -> bytes:
    """A zip whose directory names one empty file so often, and whose end says that it is short."""
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        archive.writestr("log", b"")
    data = made.getvalue()
    local, _, rest = data.partition(b"PK\1\2")
    entry = b"PK\1\2" + rest.partition(b"PK\5\6")[0]
    size, start = len(entry) * count, len(local)
    end64 = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, len(entry), 0xFFFFFFFF, 0)
    return local + entry * count + end64 + locator + end


def overlapping(size: int, times: int) -> bytes:
    """A zip of one packed file that its directory names many times."""
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("proc/meminfo", bytes(size))
        archive.filelist *= times
    return made.getvalue()


def nested(data: bytes, depth: int, dice: random.Random) -> bytes:
    """An archive in an archive in an archive."""
    for _ in range(depth):
        name = dice.choice(("log.gz", "inner.tar", "var/log/messages-1.gz", "x.zip"))
        if name == "x.zip":
            with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(name, data)
            data = made.getvalue()
        elif name.endswith(".gz"):
            data = gzip.compress(data, 1)
        else:
            data = as_tar({name: data}, tarfile.GNU_FORMAT)
    return data


def as_tar(files: dict[str, bytes], form: int) -> bytes:
    with tarfile.open(fileobj=(made := io.BytesIO()), mode="w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def archive(
    dice: random.Random, files: dict[str, bytes], text: Callable[[], str], victim: str
) -> bytes:
    """
    An archive with a tree, or a part of it, and with what none should have.

    :param text: makes a nasty text.
    :param victim: a file on this machine.
    """
    whole = dice.randrange(12)
    if whole == 0:
        return many_headers(MILLION)
    if whole == 1:
        return many_entries(MILLION)
    if whole == 2:
        return overlapping(64 << 20, dice.choice((3, 300, 60_000)))
    if whole == 3:
        return zeros(1 << 30, dice.choice((b"\0", b"x", b"\n")))
    kept = dict(dice.sample(sorted(files.items()), dice.choice((1, 5, len(files)))))
    data = _zip(dice, kept, text, victim) if whole < 6 else _tar(dice, kept, text, victim)
    data = nested(data, dice.choice((0, 0, 0, 1, 2, 3, 9)), dice)
    packers = (gzip.compress, bz2.compress, lzma.compress) if len(data) < 1 << 20 else (bytes,)
    return dice.choice((bytes, bytes, *packers))(data)


def _names(dice: random.Random, text: Callable[[], str], victim: str) -> list[str]:
    place = dice.choice(PLACES)
    names = [
        *(f"../../{victim}", victim, f"x/../../{place}", f"/{place}", "..", ".", "", "x/proc"),
        *(f"x/{place}", f"x/{place}/{text()}", text(), f"x\\..\\..\\{place}", "a/" * 2000 + place),
        *("x/proc/self/mem", f"x/sys/kernel/mm/{text()}", f"x/var/log/{text()}"),
    ]
    return [name.encode("utf-8", "replace").decode() for name in names]


def _content(dice: random.Random, text: Callable[[], str]) -> bytes:
    return dice.choice(
        (
            *(b"", text().encode("utf-8", "surrogatepass"), b"MemTotal: 8 kB\nMemFree: 4 kB\n"),
            *(zeros(1 << 30), many_headers(MILLION), zeros(256 << 20, b"9"), dice.randbytes(5000)),
            *(b"\x7fELF" + bytes(600), b"PK\3\4" + bytes(90), b"\x1f\x8b\x08" + bytes(9)),
            *(b"PERFILE2" + bytes(90), b"[    1.0] Linux version 6\n" * 90, bytes(1 << 20)),
        )
    )


def _tar(
    dice: random.Random, files: dict[str, bytes], text: Callable[[], str], victim: str
) -> bytes:
    made = io.BytesIO(as_tar(files, dice.choice(FORMS)).rstrip(b"\0"))
    made.seek(0, io.SEEK_END)
    made.write(bytes(-made.tell() % tarfile.BLOCKSIZE))
    for _ in range(dice.choice((1, 3, 9, 400))):
        name = dice.choice(_names(dice, text, victim))
        member, content = tarfile.TarInfo(name), b""
        how = dice.randrange(4)
        if how == 0:
            member.type = dice.choice((tarfile.SYMTYPE, tarfile.LNKTYPE))
            member.linkname = dice.choice([*_names(dice, text, victim), name, "/dev/zero"])
        elif how == 1:
            member.type, member.devmajor, member.devminor = dice.choice(TYPES), 1, 5
            member.size = dice.choice((0, 512, 1 << 20, 1 << 40))
        else:
            content = _content(dice, text)
            size = dice.choice((len(content),) * 4 + (1 << 40, 1 << 63, 0))
            member.size = min(size, (1 << 63) - 1)
        member.mtime = dice.choice((0, 1 << 40, -1, 1_700_000_000))
        if dice.random() < 0.2:
            key = dice.choice(("size", "path", "linkpath", "GNU.sparse.size", "mtime"))
            value = text().encode("utf-8", "replace").decode()
            member.pax_headers = {key: dice.choice((value, "-1", "9" * 30, victim))}
        try:
            header = member.tobuf(dice.choice(FORMS))
        except (ValueError, UnicodeError):  # a form that has no room for it
            header = member.tobuf(tarfile.PAX_FORMAT)
        made.write(header + content + bytes(-len(content) % tarfile.BLOCKSIZE))
        if made.tell() > 16 << 20:
            break
    return made.getvalue()


def _zip(
    dice: random.Random, files: dict[str, bytes], text: Callable[[], str], victim: str
) -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for _ in range(dice.choice((1, 3, 9, 400))):
            info = zipfile.ZipInfo(dice.choice(_names(dice, text, victim)))
            mode = dice.choice((0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO))
            info.external_attr = (mode | 0o777) << 16
            info.compress_type = dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            archive.writestr(info, _content(dice, text))
            if made.tell() > 16 << 20:
                break
        for info in archive.filelist:
            if dice.random() < 0.1:
                info.flag_bits |= dice.choice((1, 8, 1 << 6))
                info.file_size = dice.choice((0, 1 << 31, info.file_size))
    return made.getvalue()
