# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope kernel``: what would be read of a kernel, by a file with its types."""

import json
from pathlib import Path

import pytest
from btf_blobs import BtfBlob

from mmscope.drgn.opening.foretold import Asked, known
from mmscope.reports.commands import kernel_command
from mmscope.reports.commands.command import main

# Of a kernel that has nothing but this.
HEADER = "#ifndef __VMLINUX_H__\n#define __VMLINUX_H__\n\nstruct page {\n\tlong int flags;\n};\n"


@pytest.fixture
def header(tmp_path: Path) -> Path:
    file = tmp_path / "vmlinux.h"
    file.write_text(HEADER)
    return file


def test_every_section_has_a_line_and_their_sum_is_said(
    header: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernel", str(header)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert [name for name in known().asked if not any(name in line for line in table)] == []
    assert sum(int(part.split()[0]) for part in last.split(", ")) == len(known().asked)
    (zones,) = (line for line in table if line.split()[0] == "zones")
    assert "unknown" in zones and "has no " in zones and "more" in zones


def test_json_has_all_that_is_otherwise(header: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", str(header), "--json"]) == 0
    said = {each["section"]: each for each in json.loads(capsys.readouterr().out)}
    assert said["zones"]["status"] == "unknown"
    assert "has no struct zone.name" in said["zones"]["why"]
    assert said.keys() == known().asked.keys()


def test_a_member_of_no_known_type_makes_its_sections_partial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kernel of which one thing is asked, a name of its zones, which is a number here."""
    of = BtfBlob()
    of.struct("zone", 8, {"name": (of.integer("long", 8), 0)})
    file = tmp_path / "vmlinux"
    file.write_bytes(of.blob())
    asked = Asked(
        ["7.3"],
        {"struct zone.name": "+"},
        {"zones": {"7.3": {"struct zone.name"}}, "swap": {"7.3": set()}},
        {"zones": {"7.3": [("ok", "")]}, "swap": {"7.3": [("ok", "")]}},
    )
    monkeypatch.setattr(kernel_command, "known", lambda: asked)
    assert main(["kernel", str(file), "--json"]) == 0
    said = {each["section"]: each for each in json.loads(capsys.readouterr().out)}
    assert (said["zones"]["status"], said["swap"]["status"]) == ("partial", "ok")
    (why,) = said["zones"]["why"]
    assert why.startswith("struct zone.name is int64 by this kernel's BTF, and int8 * on all known")


@pytest.mark.parametrize("data", [b"words", b"\x9f\xeb\x01\x00", b"\x7fELF"])
def test_another_file_is_one_line_that_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    assert main(["kernel", str(file)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mmscope: {file}: ")


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "/nowhere/vmlinux"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "mmscope: /nowhere/vmlinux: No such file or directory"
