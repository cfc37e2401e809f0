# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening a target: whatever is wrong with it is one line that says what to do."""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from descriptors import said_of_kernel_log
from elf_files import BUILD_ID, ET_CORE, ET_EXEC, PT_LOAD, PT_NOTE, VMLINUX, elf, gnu, note, vmcore
from hypothesis import given, settings
from hypothesis import strategies as st
from kdump_files import kdump

from mmscope.drgn.dumps.core_file import (
    build_id,
    damaged_header,
    ends_before_pages,
    missing_bytes,
    missing_frames,
)
from mmscope.drgn.opening.constants import vmcoreinfo_number
from mmscope.drgn.opening.target import TargetError, open_target, where_symbols_are


def refusal(core: Path, symbols: list[Path] | None = None) -> str:
    with pytest.raises(TargetError) as error:
        open_target(core, symbols or [])
    words = str(error.value)
    assert "\n" not in words
    return words


def file(folder: Path, content: bytes, name: str = "core") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty, not a vmcore"),
        (b"hello\n", "not a vmcore: neither ELF nor kdump-compressed"),
        (b"\x28\xb5\x2f\xfd" + bytes(60), "is compressed; unpack it first: zstd -d "),
        (b"\x1f\x8b\x08" + bytes(60), "is compressed; unpack it first: gunzip -k "),
        (b"\xfd7zXZ\0" + bytes(60), "is compressed; unpack it first: xz -dk "),
        (b"BZh91AY" + bytes(60), "is compressed; unpack it first: bunzip2 -k "),
        (b"\x04\x22\x4d\x18" + bytes(60), "is compressed; unpack it first: lz4 -d "),
        (b"makedumpfile\0\0\0\0" + bytes(4080), "rebuild it first: makedumpfile -R "),
        (VMLINUX, "an ELF file, but no core; was it meant as --symbols?"),
        (elf(ET_EXEC, [], ">", 22), "an ELF file, but no core"),
        (elf(ET_CORE, [(PT_LOAD, 0, bytes(64))]), "a core dump, but not a Linux kernel's"),
        (
            elf(ET_CORE, [(PT_NOTE, 0, note(b"CORE\0", 1, bytes(336))), (PT_LOAD, 0, bytes(64))]),
            "a core dump, but not a Linux kernel's: it has no VMCOREINFO note (QEMU: give the "
            "guest '-device vmcoreinfo')",
        ),
        (elf(ET_CORE, [], ">", 22), "of an s390x machine: big-endian, whose memory cannot be read"),
        (elf(ET_CORE, [], ">", 21), "of a big-endian machine, whose memory cannot be read here; its"
         " text can be read: --proc-root"),
        (elf(ET_CORE, [], "<", 243), "of a riscv64 machine, whose addresses drgn cannot translate"),
        (b"KDUMP   " + bytes(264) + b"s390x".ljust(300, b"\0"), "of an s390x machine: big-endian"),
        (b"KDUMP   " + bytes(264) + b"riscv64".ljust(300, b"\0"), "of a riscv64 machine, whose"),
        (b"\x7fELF", "drgn cannot open it"),
        (VMLINUX[:40], "drgn cannot open it"),
        (b"KDUMP   " + bytes(100), "drgn cannot open it"),
    ],
)  # fmt: skip
def test_what_is_no_vmcore_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    core = file(tmp_path, content)
    said = refusal(core)
    assert said.startswith(f"{core}: ")
    assert words in said


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda info: "", "does not contain valid OSRELEASE"),
        (lambda info: "\0" * len(info), "does not contain valid OSRELEASE"),
        (lambda info: info[:10], "does not contain valid OSRELEASE"),
        (
            lambda info: info[: info.index("SYMBOL(swapper")],
            "does not contain valid swapper_pg_dir",
        ),
        (lambda info: info.replace("7.2.12-test", ""), "does not contain valid OSRELEASE"),
        (lambda info: info.replace("=4096", "=0"), "does not contain valid PAGESIZE"),
        (lambda info: info.replace("=4096", "=3"), "does not contain valid PAGESIZE"),
        (lambda info: info.replace("=4096", "=4k"), "number in VMCOREINFO is invalid"),
        (lambda info: info.replace("phys_base)=0", "phys_base)=zz"), "number in VMCOREINFO"),
        (lambda info: info.replace("KERNELOFFSET=0", "KERNELOFFSET=-"), "number in VMCOREINFO"),
        (lambda info: info.replace(BUILD_ID.hex(), "zz"), "couldn't parse BUILD-ID"),
    ],
)
def test_a_damaged_vmcoreinfo_is_said_to_be_so(
    tmp_path: Path, damage: Callable[[str], str], words: str
) -> None:
    core = file(tmp_path, vmcore(damage=damage))
    said = refusal(core)
    assert said.startswith(f"{core}: its VMCOREINFO note, by which a dump is read, is damaged: ")
    assert words in said
    assert said.endswith("; copy the dump again from where it was taken")


@pytest.mark.parametrize(
    ("key", "base", "said", "number"),
    [
        ("KERNELOFFSET", 16, "2e000000", 0x2E000000),
        ("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)", 10, "-129", -129),
        ("NUMBER(phys_base)", 10, "", None),
        ("KERNELOFFSET", 16, "-2e", None),
        ("NUMBER(phys_base)", 10, "1_000", None),
        ("NUMBER(phys_base)", 10, "9" * 30, None),
    ],
)
def test_numbers_of_vmcoreinfo(key: str, base: int, said: str, number: int | None) -> None:
    text = SimpleNamespace(string_=lambda: f"OSRELEASE=7.2\n{key}={said}\n".encode())
    prog: Any = {"VMCOREINFO": text}  # drgn opens no dump whose KERNELOFFSET is damaged
    if number is None:
        with pytest.raises(ValueError, match=re.escape(f"VMCOREINFO is damaged: {key} is")):
            vmcoreinfo_number(prog, key, base=base)
    else:
        assert vmcoreinfo_number(prog, key, base=base) == number
    assert vmcoreinfo_number(prog, "NUMBER(sme_mask)") is None


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no") == f"{tmp_path / 'no'}: no such file (given as --core)"


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: is a folder; --core must be a file"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe or a device; --core must be a file" in refusal(tmp_path / "pipe")
    core = file(tmp_path, vmcore())
    assert "is a pipe or a device; symbols must be a file" in refusal(core, [tmp_path / "pipe"])


def test_what_waits_for_more_is_not_waited_for() -> None:
    def tried(log: Path) -> str | None:
        words = refusal(log)
        return words if "not a plain file" in words else None

    assert said_of_kernel_log(tried) == "/proc/kmsg: cannot be read: is not a plain file"


def test_symbols_that_are_not_there(tmp_path: Path) -> None:
    core = file(tmp_path, vmcore())
    assert "no: no such file (given as symbols)" in refusal(core, [tmp_path / "no"])


def test_symbols_of_another_build_are_told_by_both_build_ids(tmp_path: Path) -> None:
    core = file(tmp_path, vmcore())
    other = elf(ET_EXEC, [(PT_NOTE, 0, gnu(bytes(20)))])
    said = refusal(core, [file(tmp_path, other, "vmlinux")])
    assert f"its build ID is {bytes(20).hex()}" in said
    assert f"the kernel (7.2.12-test) has {BUILD_ID.hex()}" in said
    assert "give --symbols VMLINUX" in said


def test_symbols_without_a_build_id(tmp_path: Path) -> None:
    core = file(tmp_path, vmcore())
    said = refusal(core, [file(tmp_path, b"System.map\n", "vmlinux")])
    assert "its build ID is missing" in said


def test_symbols_that_fit_but_have_no_types(tmp_path: Path) -> None:
    core = file(tmp_path, vmcore())
    said = refusal(core, [file(tmp_path, VMLINUX, "vmlinux")])
    assert "debug symbols" in said or "no type information" in said
    assert "give --symbols VMLINUX" in said


def test_no_symbols_at_all(tmp_path: Path) -> None:
    said = refusal(file(tmp_path, vmcore(release="6.12.41+deb13-amd64")))
    assert said.startswith("no debug symbols for kernel 6.12.41+deb13-amd64 (build ID 000102")
    assert "apt install linux-image-6.12.41+deb13-amd64-dbg, or give --symbols VMLINUX" in said


def test_a_release_that_is_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damaged = vmcore(release="7.2.12-????").replace(b"????", b"\xff\xff\xff\xff")
    said = refusal(file(tmp_path, damaged))
    assert "VMCOREINFO is damaged: '7.2.12-" in said and "is no kernel release" in said
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("release", "advice"),
    [
        ("6.12.41+deb13-amd64", "apt install linux-image-6.12.41+deb13-amd64-dbg"),
        ("5.14.0-503.el9.x86_64", "dnf debuginfo-install kernel-5.14.0-503.el9.x86_64"),
        ("6.11.4-301.fc41.x86_64", "dnf debuginfo-install kernel-6.11.4-301.fc41.x86_64"),
        ("6.8.0-45-generic", "install linux-image-6.8.0-45-generic-dbgsym (ddebs)"),
        ("6.4.0-150600.21-default", "zypper install kernel-default-debuginfo"),
        ("7.2.0-rc1+", "keep the vmlinux of the build"),
    ],
)
def test_where_symbols_are(release: str, advice: str) -> None:
    assert where_symbols_are(release) == f"{advice}, or give --symbols VMLINUX"


# ELF by hand.


@pytest.mark.parametrize("order", ["<", ">"])
def test_build_id_is_found_among_other_notes(tmp_path: Path, order: str) -> None:
    content = elf(ET_EXEC, [(PT_NOTE, 0, note(b"Xen\0", 3, b"no")), (PT_NOTE, 0, gnu(order=order))],
                  order)  # fmt: skip
    assert build_id(file(tmp_path, content)) == BUILD_ID.hex()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"text", elf(ET_EXEC, []), elf(ET_EXEC, [(PT_LOAD, 0, gnu())]),
     elf(ET_EXEC, [(PT_NOTE, 0, note(b"GNU\0", 1, BUILD_ID))])],
)  # fmt: skip
def test_no_build_id(tmp_path: Path, content: bytes) -> None:
    assert build_id(file(tmp_path, content)) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_missing_bytes_are_what_lies_behind_the_end(tmp_path: Path, order: str) -> None:
    content = elf(
        ET_CORE, [(PT_NOTE, 0, b"n" * 8), (PT_LOAD, 0, bytes(100)), (PT_LOAD, 0, bytes(50))], order
    )
    assert missing_bytes(file(tmp_path, content)) == 0
    for cut, missing in ((1, 1), (49, 49), (50, 50), (51, 51), (150, 150), (155, 150)):
        assert missing_bytes(file(tmp_path, content[:-cut])) == missing


@pytest.mark.parametrize("content", [b"", b"KDUMP   " + bytes(100), b"text" * 40])
def test_formats_that_do_not_tell_miss_nothing(tmp_path: Path, content: bytes) -> None:
    assert missing_bytes(file(tmp_path, content)) == 0


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_elf_file_is_no_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(data.draw(st.sampled_from([VMLINUX, vmcore(), elf(2, [], ">", 22)])))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(4, min(len(content), 300) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    path = file(tmp_path_factory.getbasetemp(), bytes(content), "damaged")
    found = build_id(path)
    assert found is None or int(found or "0", 16) >= 0
    assert missing_bytes(path) >= 0


def test_a_kdump_that_ends_before_it_says_which_pages_it_has_is_not_opened(tmp_path: Path) -> None:
    """libkdumpfile would map what is not there, and the process end by SIGBUS."""
    whole = kdump([(16_500, 100)])
    for size in (8192 + 24, 8193 + 4096, 16_383):
        assert "was cut short before it says which pages it has" in refusal(
            file(tmp_path, whole[:size])
        )
    assert not ends_before_pages(file(tmp_path, whole))


@pytest.mark.parametrize("offset", [32, 48])
@pytest.mark.parametrize("place", [(1 << 63, 8), ((1 << 64) - 1, 8), (0, 1 << 63), (20_000, 5000)])
def test_a_kdump_whose_sub_header_leads_nowhere_is_refused(
    tmp_path: Path, offset: int, place: tuple[int, int]
) -> None:
    """libkdumpfile would read there, and the process end by SIGSEGV."""
    whole = bytearray(kdump([(16_500, 100)]))
    struct.pack_into("<QQ", whole, 4096 + offset, *place)
    assert not damaged_header(file(tmp_path, bytes(whole)))  # no header that old has them
    struct.pack_into("<I", whole, 8, 6)
    assert f"{place[1]:,} bytes of {'VMCOREINFO' if offset == 32 else 'notes'} at" in refusal(
        file(tmp_path, bytes(whole))
    )


def test_what_was_erased_may_lie_behind_the_end(tmp_path: Path) -> None:
    whole = bytearray(kdump([(16_500, 100)]))
    struct.pack_into("<I", whole, 8, 6)
    struct.pack_into("<QQ", whole, 4096 + 64, 100_000, 100)
    assert not damaged_header(file(tmp_path, bytes(whole)))


def test_a_page_that_is_larger_than_a_page_is_missing(tmp_path: Path) -> None:
    sizes = (100, 4096, 4097, (1 << 32) - 1)
    whole = kdump([(17_000, size) for size in sizes])
    assert frames(file(tmp_path, whole + bytes(5000))) == [2, 3]


def test_pages_whose_descriptors_never_came_are_missing(tmp_path: Path) -> None:
    """Zeros are in their place, where a flattened dump that was cut short is rebuilt."""
    assert missing_bytes(file(tmp_path, kdump([(17_000, 100), (17_100, 100)]))) == 0
    assert missing_bytes(file(tmp_path, kdump([(17_000, 100), (0, 0), (0, 0)]))) == 2 * 4096


def frames(path: Path) -> list[int] | None:
    missing = missing_frames(path)
    return (
        None
        if missing is None
        else np.flatnonzero(np.unpackbits(missing, bitorder="little")).tolist()
    )


def test_which_page_frames_are_missing_is_said_by_their_descriptors(tmp_path: Path) -> None:
    # Frames 1, 2, 4, 7 and 9: the second and the fourth share a page of zeros.
    pages = [(17_000, 100), (16_900, 100), (17_100, 200), (16_900, 100), (17_300, 50)]
    bitmap = sum(1 << frame for frame in (1, 2, 4, 7, 9)).to_bytes(4096, "little")
    whole = kdump(pages)
    whole = whole[:8192] + 2 * bitmap + whole[16_384:17_350]
    cut = {17_350: None, 17_349: [9], 17_300: [9], 17_299: [4, 9], 17_050: [1, 4, 9]}
    cut |= {16_999: [1, 2, 4, 7, 9], 16_384 + 3 * 24: [1, 2, 4, 7, 9]}
    for size, missing in cut.items():
        path = file(tmp_path, whole[:size])
        assert frames(path) == missing
        assert missing_bytes(path) == 4096 * len(missing or [])
    unsaid = whole[: 16_384 + 4 * 24] + bytes(24) + whole[16_384 + 5 * 24 :]
    assert frames(file(tmp_path, unsaid)) == [9]


def test_missing_page_frames_far_apart_are_each_told(tmp_path: Path) -> None:
    """In the first, in one of the middle and in the last stretch of a bitmap."""
    size = 5 * 4096
    present = np.zeros(size * 8, bool)
    present[[3, 70_000, 70_001, size * 8 - 1]] = True
    bitmap = np.packbits(present, bitorder="little").tobytes()
    head = bytearray(kdump([])[:8192])
    struct.pack_into("<I", head, 428 + 8, 2 * 5)
    begin = 8192 + 2 * size
    places = [(0, 0), (begin + 96, 10), (1 << 60, 10), (begin + 106, 10)]
    described = b"".join(struct.pack("<QIIQ", *place, 0, 0) for place in places)
    path = file(tmp_path, bytes(head) + 2 * bitmap + described + bytes(15))
    assert frames(path) == [3, 70_001, size * 8 - 1]
    assert missing_bytes(path) == 3 * 4096
