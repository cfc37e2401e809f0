# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO out of a file: lines, or the ELF note that has them."""

from pathlib import Path

import pytest
from drgn import Architecture, Platform, Program
from elf_files import ET_CORE, PT_LOAD, elf, note

from mmscope.drgn.opening import TargetError
from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.opening.vmcoreinfo_file import read_vmcoreinfo

LINES = b"OSRELEASE=7.2.12-test\nPAGESIZE=4096\nKERNELOFFSET=0\nNUMBER(phys_base)=0\n"
LINES += b"SYMBOL(init_uts_ns)=ffffffff82000000\nSYMBOL(swapper_pg_dir)=ffffffff82001000\n"


@pytest.mark.parametrize(
    "data",
    [
        LINES,
        LINES + bytes(5),
        note(b"VMCOREINFO\0", 0, LINES),
        note(b"CORE\0", 1, bytes(336)) + note(b"VMCOREINFO\0", 0, LINES) + note(b"QEMU\0", 0, b"x"),
        note(b"VMCOREINFO\0", 0, LINES, ">"),
    ],
)
def test_lines_and_notes_are_read(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "info"
    file.write_bytes(data)
    assert read_vmcoreinfo(file) == LINES


@pytest.mark.parametrize(
    "data", [b"", b"hello\n", bytes(4096), note(b"VMCOREINFO\0", 0, b"A=1"), LINES[:20] + b"\0x"]
)
def test_anything_else_is_refused_in_a_line(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "info"
    file.write_bytes(data)
    with pytest.raises(TargetError, match="has no VMCOREINFO: neither its lines") as caught:
        read_vmcoreinfo(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No such file"):
        read_vmcoreinfo(tmp_path / "none")


def test_a_dump_without_a_note_is_opened_by_it(tmp_path: Path) -> None:
    core, info = tmp_path / "core", tmp_path / "info"
    core.write_bytes(elf(ET_CORE, [(PT_LOAD, 0, bytes(4096))]))
    info.write_bytes(LINES)
    with pytest.raises(TargetError, match=r"no debug symbols for kernel 7\.2\.12-test"):
        open_target(core, vmcoreinfo_file=info)


def test_it_is_of_a_vmcore(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="give --core as well"):
        open_target(vmcoreinfo_file=tmp_path / "info")


def test_addresses_of_the_kernel_begin_with_another_byte_on_ppc64() -> None:
    assert kernel_byte(Program(Platform(Architecture.PPC64))) == 0xC0
    assert kernel_byte(Program(Platform(Architecture.AARCH64))) == 0xFF
