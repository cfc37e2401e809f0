# SPDX-License-Identifier: LGPL-2.1-or-later
"""Vmcores that are cut short, and symbols that do not fit: one clear line, and nothing invented."""

import contextlib
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from capture import capture
from command_line import run
from conftest import Lab
from drgn import FaultError, Program
from dump_formats import segments, vmcoreinfo_note

from mmscope.drgn.dumps.core_file import build_id
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.bundle import Bundle

pytestmark = pytest.mark.any_kernel

HEAD = 1 << 20  # bytes, in which the headers and the notes are


def test_what_lies_behind_the_end_of_an_elf_file_is_an_error(lab: Lab, tmp_path: Path) -> None:
    _, offset, _, begin, size, _, _ = max(loads(lab.capture.vmcore), key=lambda part: part[4])
    end = offset + size // 2 // 4096 * 4096 + 1000  # within a page
    cut = tmp_path / "vmcore"
    with lab.capture.vmcore.open("rb") as whole, cut.open("wb") as file:
        for start, stop in ((0, HEAD), (end - 2 * 4096, end)):  # what is read here of it
            whole.seek(start)
            file.seek(start)
            file.write(whole.read(stop - start))
    prog = Program()
    prog.set_core_dump(cut)
    last = begin + end - offset
    assert prog.read(last - 4096, 4096, True) == lab.prog.read(last - 4096, 4096, True)
    for address in (last - 1, last, last + 3096, begin + size - 4096):
        with pytest.raises(FaultError):
            prog.read(address, 4096, True)


def loads(core: Path) -> list[list[int]]:
    """p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz and p_align of what is loaded."""
    with core.open("rb") as file:
        _, parts = segments(file)
    return [part[1:] for part in parts if part[0] == 1]


@pytest.fixture(scope="module")
def copied(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the vmcore: some tests damage its VMCOREINFO, and the last ones cut it."""
    path = tmp_path_factory.mktemp("copied") / "vmcore"
    children.run(["cp", lab.capture.vmcore, path], check=True)  # with its holes
    yield path
    path.unlink()


@contextlib.contextmanager
def damaged(lab: Lab, copied: Path, damage: Callable[[bytes], bytes]) -> Iterator[None]:
    """The copy with another VMCOREINFO."""
    with lab.capture.vmcore.open("rb") as whole:
        head = whole.read(HEAD)
    begin, size = vmcoreinfo_note(head)
    text = head[begin : begin + size]
    other = damage(text)
    assert other != text
    with copied.open("r+b", buffering=0) as file:
        file.seek(begin)
        file.write(other[:size].ljust(size, b"\0"))
        yield
        file.seek(begin)
        file.write(text)


def line(key: str, value: str) -> Callable[[bytes], bytes]:
    pattern = rf"^{re.escape(key)}=.*$".encode()
    return lambda text: re.sub(pattern, f"{key}={value}".encode(), text, flags=re.MULTILINE)


def half(text: bytes) -> bytes:
    return text[: len(text) // 2]


def of_x86(damage: Callable[[bytes], bytes], words: str) -> Any:
    """Of what only x86's VMCOREINFO has, or where its half breaks off."""
    return pytest.param(damage, words, marks=pytest.mark.x86)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (line("KERNELOFFSET", "0"), "the kernel is not where its VMCOREINFO says"),
        of_x86(line("NUMBER(phys_base)", "12345"), "the kernel is not where its VMCOREINFO says"),
        (line("SYMBOL(swapper_pg_dir)", "ffffffff00000000"), "the kernel is not where its VMC"),
        of_x86(half, "the kernel is not where its VMCOREINFO says"),
        (half, "VMCOREINFO"),  # arm64's may break off before the bits of an address
        of_x86(
            line("PAGESIZE", "65536"), "PAGESIZE is 65,536, but a page of x86-64 has 4,096 bytes"
        ),
        (line("PAGESIZE", "8192"), "PAGESIZE is 8,192, but a page of "),
        (line("PAGESIZE", "0"), "does not contain valid PAGESIZE"),
        of_x86(line("NUMBER(phys_base)", "none"), "number in VMCOREINFO is invalid"),
    ],
)
def test_a_vmcoreinfo_that_leads_nowhere_is_one_line(
    lab: Lab, copied: Path, tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    with damaged(lab, copied, damage):
        result = run(
            "collect", "--core", copied, "--symbols", lab.capture.vmlinux, "-o", tmp_path / "bundle"
        )
    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
    assert "VMCOREINFO" in result.stderr
    assert "copy the dump again" in result.stderr
    assert not (tmp_path / "bundle").exists()


def test_a_vmcoreinfo_of_another_release_is_told_of_and_the_kernel_believed(
    lab: Lab, copied: Path, tmp_path: Path
) -> None:
    with damaged(lab, copied, line("OSRELEASE", "9.9.9-other")):
        result = run(
            *("collect", "--core", copied, "--symbols", lab.capture.vmlinux, "--no-findings"),
            *("--only", "zones", "-o", tmp_path / "bundle"),
        )
    assert result.returncode == 1
    assert "it says that the release is '9.9.9-other', the kernel says" in result.stderr
    target = Bundle(tmp_path / "bundle").target
    assert target["release"] == lab.capture.release
    assert "9.9.9-other" in str(target["vmcoreinfo"])


@pytest.mark.parametrize("share", [0.97, 0.8, 0.5, 0.0001])
def test_a_vmcore_that_was_cut_short_is_read_as_far_as_it_goes(
    lab: Lab, copied: Path, tmp_path: Path, share: float
) -> None:
    whole = lab.capture.vmcore.stat().st_size
    os.truncate(copied, int(whole * share))
    result = run(
        "collect", "--core", copied, "--symbols", lab.capture.vmlinux, "-o", tmp_path / "bundle"
    )
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert "the dump was cut short" in result.stderr
    bundle = Bundle(tmp_path / "bundle")
    assert "cut short" in str(bundle.target["truncated"])
    missing = int(whole * (1 - share))
    assert f"{missing:,}"[:3] == str(bundle.target["truncated"])[:3]
    for section in bundle.sections:
        absent = section.status == "absent" and SECTIONS[section.section].optional
        assert absent or section.status in ("ok", "partial", "failed")
        if section.status != "ok":
            assert section.message
            assert absent or f"{section.section}: {section.status}" in result.stderr
    # What is there is what the whole core has; nothing appears that was not read.
    true = {row.name: row.value for row in _counters(lab)}
    if "vm_counters" in bundle.tables:
        assert {row["name"]: row["value"] for row in bundle.rows("vm_counters")} == true
    if "free_blocks" in bundle.tables:
        free = sum(row["pages"] for row in bundle.rows("free_blocks"))
        assert free <= sum(row.pages for row in lab.free.lists.blocks)


def _counters(lab: Lab) -> list:  # type: ignore[type-arg]
    from mmscope.drgn.machine.vm_counters import vm_counters

    return vm_counters(lab.prog)


def test_a_vmlinux_of_another_build_is_refused_with_both_build_ids(
    lab: Lab, tmp_path: Path
) -> None:
    wrong = tmp_path / "vmlinux"
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,
        62,
        1,
        0,
        64,
        0,
        0,
        64,
        56,
        1,
        0,
        0,
        0,
    )
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    wrong.write_bytes(header + segment + note)
    result = run(
        "collect", "--core", lab.capture.vmcore, "--symbols", wrong, "-o", tmp_path / "bundle"
    )
    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
    assert bytes(range(20)).hex() in result.stderr
    assert str(build_id(lab.capture.vmlinux)) in result.stderr
    assert not (tmp_path / "bundle").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["vmlinux"]


@pytest.mark.owner_kernel
def test_a_vmcore_without_symbols_or_btf_says_what_is_needed(
    say: Callable[[str], None], tmp_path: Path
) -> None:
    core = capture("owner", "owner", say=say).vmcore
    result = run("collect", "--core", core, "-o", tmp_path / "bundle")
    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
    assert "give --symbols VMLINUX" in result.stderr and "BTF" in result.stderr
    assert not list(tmp_path.iterdir())
