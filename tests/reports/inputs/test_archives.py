# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives of strangers: what is in them is read, and nothing of them leads out of them."""

import bz2
import gzip
import io
import lzma
import random
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable

import archive_files
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.text.packed import PackedError
from mmscope.reports.inputs import archives
from mmscope.reports.inputs.archives import Unpacked, clean_name, read_archive

MEMINFO = b"MemTotal: 8 kB\nMemFree: 4 kB\n"
LOG = b"[    1.000000] Linux version 6.1.0\n"


def tar(files: dict[str, bytes | str], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar; what is a text is a symbolic link to that, with = before it a hard one."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mtime = 1_700_000_000
            if isinstance(content, str):
                member.type = tarfile.LNKTYPE if content.startswith("=") else tarfile.SYMTYPE
                member.linkname = content.removeprefix("=")
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def zipped(files: dict[str, bytes | str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, (2026, 11, 28, 0, 0, 0))
            if isinstance(content, str):
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return made.getvalue()


def read(data: bytes) -> Unpacked:
    return read_archive(io.BytesIO(data), data[:600])


TREE: dict[str, bytes | str] = {
    "sosreport-x/proc/meminfo": MEMINFO,
    "sosreport-x/sos_commands/kernel/dmesg": LOG,
    "sosreport-x/etc/passwd": b"root",
    "sosreport-x/proc/kcore": b"x" * 9,
}
READ = {"proc/meminfo": MEMINFO, "sos_commands/kernel/dmesg": LOG}


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zstd])
def test_a_tree_in_a_tar_is_read_however_it_is_packed(pack: Callable[[bytes], bytes]) -> None:
    if pack is zstd and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    found = read(pack(tar(TREE)))
    assert (found.tree, found.notes, found.moment) == (READ, [], 1_700_000_000)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_any_length_are_read(form: int) -> None:
    folder = "/".join(["long-folder-name"] * (5 if form == tarfile.USTAR_FORMAT else 30))
    assert read(tar({f"{folder}/proc/meminfo": MEMINFO}, form)).tree == {"proc/meminfo": MEMINFO}


def test_a_zip_is_read() -> None:
    assert read(zipped(TREE)).tree == READ


def test_what_is_encrypted_in_a_zip_is_said() -> None:
    data = bytearray(zipped({"a.txt": LOG, "b.txt": LOG}))
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.find(signature) + flags] |= 1
    found = read(bytes(data))
    assert [name for name, _, _ in found.lone] == ["b.txt"]
    assert found.notes == ["1 file in it is encrypted: unpack it before"]


def test_what_is_no_tree_is_known_by_its_content() -> None:
    found = read(tar({"a.txt": LOG, "b.bin": MEMINFO, "c": b"nothing of interest"}))
    assert {name: kind.name for name, kind, _ in found.lone} == {"a.txt": "log", "b.bin": "tree"}


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_a_log_in_it_is_known_however_it_was_saved(order: str) -> None:
    log = "\ufeff".encode(order) + LOG.decode().encode(order)
    assert [kind.name for _, kind, _ in read(zipped({"a.txt": log})).lone] == ["log"]


def test_an_archive_in_an_archive_is_read_to_a_depth() -> None:
    inner = gzip.compress(tar(TREE))
    assert read(zipped({"deep/sos.tar.gz": inner})).tree == READ
    for depth in range(5):
        inner = tar({f"{depth}.tar": inner})
    found = read(inner)
    assert found.tree == {}
    assert "an archive in 3 others, not read" in found.notes[0]


# What leads out of it


@pytest.mark.parametrize(
    "name", ["../proc/meminfo", "x/../../proc/meminfo", "x/..", "", "/", "a\0b", "x" * 5000]
)
def test_a_name_that_leads_out_is_none(name: str) -> None:
    assert clean_name(name) is None


@given(st.text("ab./\\\0", max_size=30))
def test_no_name_leads_out(name: str) -> None:
    cleaned = clean_name(name)
    assert cleaned is None or (not cleaned.startswith("/") and ".." not in cleaned.split("/"))


@pytest.mark.parametrize("make", [tar, zipped])
def test_a_member_that_leads_out_is_counted_and_not_read(
    make: Callable[[dict[str, bytes | str]], bytes],
) -> None:
    found = read(make({**TREE, "../../proc/vmstat": b"nr_free_pages 7\n"}))
    assert found.tree == READ
    assert found.notes == ["1 name in it would lead out of it, and nothing of that was read"]


@pytest.mark.parametrize(
    ("target", "leads"),
    [
        ("sos_commands/kernel/dmesg", True),
        ("/sos_commands/kernel/dmesg", True),  # of the machine that it was taken from
        ("./sos_commands/../sos_commands/kernel/dmesg", True),
        ("/etc/passwd", False),
        ("../../../etc/passwd", False),
        ("dmesg", False),  # itself
        ("proc/kcore", False),
    ],
)
def test_a_link_leads_inside_or_nowhere(target: str, leads: bool) -> None:
    tree = read(tar({"x/proc/meminfo": MEMINFO, "x/sos_commands/kernel/dmesg": LOG,
                     "x/dmesg": target})).tree  # fmt: skip
    assert tree.get("dmesg") == (LOG if leads else None)


def test_a_hard_link_is_what_it_leads_to() -> None:
    tree = read(tar({"x/proc/meminfo": MEMINFO, "x/var/log/a": LOG,
                     "x/var/log/messages": "=x/var/log/a"})).tree  # fmt: skip
    assert tree["var/log/messages"] == LOG


def test_links_that_lead_in_a_circle_end() -> None:
    assert read(tar({"proc/meminfo": MEMINFO, "dmesg": "var/log/x", "var/log/x": "../../dmesg"}))


def test_devices_and_pipes_are_nothing() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind in (("proc/vmstat", tarfile.FIFOTYPE), ("dmesg", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
        member = tarfile.TarInfo("proc/meminfo")
        member.size = len(MEMINFO)
        archive.addfile(member, io.BytesIO(MEMINFO))
    assert read(made.getvalue()).tree == {"proc/meminfo": MEMINFO}


# Bombs


def test_a_bomb_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_UNPACKED", 1 << 20)
    found = read(gzip.compress(tar({**TREE, "z": bytes(8 << 20)})))
    assert found.tree == READ
    assert "unpacked it has more than 0 GiB" in found.notes[0]


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_KEPT", 1 << 20)
    logs: dict[str, bytes | str] = {f"sosreport-x/var/log/{n}": LOG * 20_000 for n in range(9)}
    found = read(tar({**TREE, **logs}))
    assert sum(map(len, found.tree.values())) < 3 << 20
    assert "has more than 1 MiB: read up to there" in found.notes[-1]


def test_members_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    found = read(tar({**TREE, "more": b""}))
    assert "more than 3 members" in found.notes[-1]


def test_a_file_of_proc_is_no_larger_than_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_TEXT_BYTES", 1 << 10)
    found = read(tar({**TREE, "sosreport-x/proc/vmstat": bytes(5000)}))
    assert found.tree == READ
    assert "proc/vmstat: has more than" in found.notes[0]


PERF = b"java 7/7 [001] 1.000000: 1 cycles: \n\tffffffff81000001 clear_page ([kernel])\n\n"
OWNER = b"Page allocated via order 0, mask 0x0(), pid 7\nPFN 1 type Movable\n f+0x1/0x2\n\n"


def test_a_recording_in_a_tree_is_an_input_of_its_own() -> None:
    files = {"a/proc/meminfo": b"MemTotal: 1 kB\n", "a/log2": LOG, "a/perf.data": b"PERFILE2"}
    found = read(tar(files))
    assert {name: kind.name for name, kind, _ in found.lone} == {"a/perf.data": "perf.data"}


def test_a_text_is_read_as_a_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_OF_LOG", 1 << 10)
    found = read(tar({"cpu.txt": PERF * 100, "owners": OWNER * 100, "log": LOG * 100, "a": PERF}))
    assert {name: kind.name for name, kind, _ in found.lone} == {"log": "log", "a": "perf text"}
    assert found.notes == [
        "cpu.txt: text of perf script of more than 1 KiB is not read out of an archive",
        "owners: page_owner's text of more than 1 KiB is not read out of an archive",
        "log, of which the last 1015 B are read",
    ]


def test_of_a_log_in_a_tree_that_is_cut_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_OF_LOG", 1 << 10)
    found = read(tar({**TREE, "sosreport-x/var/log/messages": LOG * 100}))
    assert found.notes == ["sosreport-x/var/log/messages, of which the last 1015 B are read"]


def test_dumps_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_KEPT", 4 << 10)
    dumps: dict[str, bytes | str] = {f"core.{n}": b"KDUMP   " + bytes(2000) for n in range(9)}
    found = read(tar({**dumps, "log": LOG}))
    assert [kind.name for _, kind, _ in found.lone] == ["vmcore"] * 9 + ["log"]
    assert found.notes == []


def test_files_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_LONE", 2)
    found = read(tar({name: LOG for name in "abc"} | {"x": b"something else"}))
    assert [name for name, _, _ in found.lone] == ["a", "b"]
    assert found.notes == ["1 more file in it was not read: unpack it before"]


def test_a_header_has_a_bound() -> None:
    data = bytearray(tar({"x" * 200: b""}))
    data[124:136] = b"77777777777\0"  # the length of the long name
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(PackedError, match="has a header of 8,589,934,591 bytes, which none has"):
        read(bytes(data))


def test_a_zip_with_too_many_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 100)
    with pytest.raises(PackedError, match="too many members"):
        read(zipped(TREE))


def test_a_zip_that_says_two_sizes_of_its_directory_is_no_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a zip64 has the number that counts in another record."""
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 1000)
    with pytest.raises(PackedError, match="too many members"):
        read(archive_files.many_entries(100))


def test_a_file_without_a_name_is_counted_and_not_read() -> None:
    found = read(zipped({**TREE, "": LOG}))
    assert found.tree == READ
    assert found.notes == ["1 name in it would lead out of it, and nothing of that was read"]


def test_a_zip_whose_directory_names_one_file_often_is_refused() -> None:
    with pytest.raises(PackedError, match="is damaged: its members overlap"):
        read(archive_files.overlapping(1 << 20, 2))
    assert archive_files.overlapping(1 << 20, 1)[:4] == b"PK\3\4"


def test_what_is_said_of_an_archive_has_a_bound() -> None:
    cut = {f"{n}.gz": b"\x1f\x8b\x08" for n in range(archives.MOST_NOTES + 7)}
    whole = tar({**TREE, **cut, "last": b"x" * 512})
    found = read(whole[: whole.rindex(b"xx")])
    assert len(found.notes) == archives.MOST_NOTES + 2
    assert found.notes[-2] == "7 more files were not read, or not whole"
    assert "read up to there" in found.notes[-1] and found.tree == READ


# Damage


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_of_one_that_is_cut_short_what_is_there_is_read(pack: Callable[[bytes], bytes]) -> None:
    noise: dict[str, bytes | str] = {"noise": random.Random(1).randbytes(400_000)}
    whole = pack(tar({**TREE, **noise}))
    if pack is bz2.compress:  # which unpacks a block, of some 900 KB, as a whole
        with pytest.raises(PackedError, match="is damaged"):
            read(whole[: len(whole) * 9 // 10])
        return
    found = read(whole[: len(whole) * 9 // 10])
    assert found.tree == READ
    assert "read up to there" in found.notes[0]


def test_damage_is_one_line_whatever_it_is() -> None:
    generator = random.Random(7)
    for make in (tar, zipped):
        whole = make(TREE)
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(generator.randrange(1, 6)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            try:
                found = read(bytes(data))
            except PackedError as error:
                assert "\n" not in str(error)
            else:
                assert not any("\n" in note for note in found.notes)


def test_another_machines_tree_beside_it_is_said() -> None:
    other = {"b/proc/meminfo": MEMINFO}
    found = read(tar({**TREE, **other}))
    assert found.tree == READ
    assert found.notes == ["1 other machine's tree in it was not read: give each by itself"]
