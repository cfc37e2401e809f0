# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The same machine in every format a vmcore comes in: the same tables, cell by cell. What makedumpfile
leaves out is said, and costs no number as long as it is not the kernel's own data.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import children
import numpy as np
import pytest
from bundle_files import contents
from conftest import Lab
from cut_dump import PAGE, about, cut_across, frames_in
from drgn import FaultError, Program
from dump_formats import makedumpfile, plain_elf

from mmscope.drgn.dumps import cut_short
from mmscope.drgn.dumps.core_file import left_out, missing_bytes, missing_frames, read_kdump
from mmscope.drgn.dumps.wrapped import rebuild
from mmscope.reports.bundle.bundle import Bundle

# makedumpfile reads dumps of the architecture that it is built for.
pytestmark = [pytest.mark.any_kernel, pytest.mark.x86]

ROOT = Path(__file__).resolve().parents[2]
# zlib, lzo, ELF; with everything, without zero pages, without all that can be left out.
FORMATS = {
    "zlib": ["-c", "-d", "0"],
    "lzo-1": ["-l", "-d", "1"],
    "zlib-31": ["-c", "-d", "31"],
    "elf-31": ["-E", "-d", "31"],
}

CHUNK = 1 << 20
FREE_MEMORY = ("zones", "free_lists", "accounting", "pcp_lists", "pageblocks", "vm_counters")


def collect(lab: Lab, core: Path, bundle: Path, *only: str) -> subprocess.CompletedProcess[str]:
    return children.run(
        [
            *(sys.executable, "-m", "mmscope", "collect", "--no-findings"),
            *("--core", core, "--symbols", lab.capture.vmlinux, "-o", bundle, *only),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("formats")
    yield path
    shutil.rmtree(path)  # gigabytes


@pytest.fixture(scope="module")
def elf(lab: Lab, folder: Path) -> Path:
    return plain_elf(lab.capture.vmcore, folder / "elf")


@pytest.fixture(scope="module")
def filtered(elf: Path, folder: Path) -> Path:
    """Without all that can be left out."""
    makedumpfile(*FORMATS["zlib-31"], elf, folder / "zlib-31")
    return folder / "zlib-31"


@pytest.fixture(scope="module")
def tables(lab: Lab, folder: Path) -> dict[str, bytes]:
    """What the vmcore as QEMU wrote it gives."""
    result = collect(lab, lab.capture.vmcore, folder / "bundle")
    assert result.returncode == 0, result.stderr
    return contents(folder / "bundle")


def of_a_candidate(lab: Lab) -> bool:
    """Whether it is a release candidate, of whose kdump files libkdumpfile reads nothing."""
    return not re.match(r"\d+\.\d+\.\d+", lab.capture.release)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_tables(
    lab: Lab, elf: Path, filtered: Path, folder: Path, tables: dict[str, bytes], name: str
) -> None:
    core = folder / name
    if core != filtered:
        makedumpfile(*FORMATS[name], elf, core)
    result = collect(lab, core, folder / f"bundle-{name}")
    assert "Traceback" not in result.stderr
    if read_kdump(core) is not None and of_a_candidate(lab):
        assert result.returncode == 3 and "does not understand the kernel's" in result.stderr
        assert not (folder / f"bundle-{name}").exists()
        return
    bundle = Bundle(folder / f"bundle-{name}")
    found = contents(folder / f"bundle-{name}")
    whole = {section.section: section.status for section in Bundle(folder / "bundle").sections}
    assert whole.keys() == {section.section for section in bundle.sections}
    kdump = read_kdump(core)
    for section in bundle.sections:
        if section.status != whole[section.section]:
            # makedumpfile 1.7.2 does not know a tail page of 7.2, whose mapping is 0xffffffff, and
            # leaves it out as a user's: the tail pages of slabs, with what is in them. Nor does it
            # know slabs since they have a page type (6.10), and leaves out those that look like
            # a user's pages. An ELF file does not say what was left out.
            status = section.status
            assert section.section not in FREE_MEMORY
            assert status in ("partial", "failed") and int(FORMATS[name][-1]) & 8
            assert status == "partial" or re.search("Excluded page|left out", section.message)
            assert f"{section.section}: {status}: {section.message}" in result.stderr
            continue
        for table in bundle.tables.values():
            if table.section == section.section:
                assert found[f"{table.name}.csv"] == tables[f"{table.name}.csv"], table.name
    assert (result.returncode == 0) == (found == tables)
    if kdump is None:
        assert name == "elf-31"
    else:
        assert (kdump.dump_level, kdump.split) == (int(FORMATS[name][-1]), False)
        assert missing_bytes(core) == 0
        assert bundle.target.get("left_out") == left_out(core)
        assert ("left_out" in bundle.target) == (kdump.dump_level == 31)


def test_a_dump_that_was_cut_short_says_by_how_much(lab: Lab, filtered: Path, folder: Path) -> None:
    core = folder / "cut"
    shutil.copy(filtered, core)
    size = core.stat().st_size
    missing = [0]
    for share in (0.99, 0.7, 0.2):
        os.truncate(core, int(size * share))
        missing.append(missing_bytes(core))
    assert missing == sorted(set(missing))
    result = collect(lab, core, folder / "bundle-cut")
    if of_a_candidate(lab):
        assert result.returncode == 3 and "does not understand the kernel's" in result.stderr
        return
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"{missing[-1]:,} bytes of the machine's memory lie behind the end" in result.stderr
    assert str(Bundle(folder / "bundle-cut").target["truncated"]).startswith(f"{missing[-1]:,}")


@pytest.mark.parametrize("level", ["0", "1"])
def test_a_dump_that_is_not_compressed_and_was_cut_short_has_no_table_of_zeros(
    lab: Lab, elf: Path, folder: Path, tables: dict[str, bytes], level: str
) -> None:
    """A section that says nothing of what is missing has the tables of the whole."""
    makedumpfile("-d", level, elf, folder / "raw")
    frames = frames_in(folder / "raw")
    cut, _ = cut_across(folder / "raw", folder, frames, len(frames) * 3 // 4)
    (folder / "raw").unlink()
    result = collect(lab, cut, folder / "bundle-raw")
    said = f"{missing_bytes(cut):,} bytes of the machine's memory lie behind the end of the file"
    cut.unlink()
    if of_a_candidate(lab):
        assert result.returncode == 3 and "does not understand the kernel's" in result.stderr
        return
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.count(said) == 1
    bundle, whole = Bundle(folder / "bundle-raw"), Bundle(folder / "bundle")
    found = contents(folder / "bundle-raw")
    sections = {section.section: section for section in bundle.sections}
    assert sections.keys() == {section.section for section in whole.sections}
    for name, section in sections.items():
        if section.status in ("partial", "failed"):
            assert f"{name}: {section.status}: {section.message}" in result.stderr
        for table in whole.tables.values() if section.status == "ok" else ():
            if table.section == name:
                assert found[f"{table.name}.csv"] == tables[f"{table.name}.csv"], table.name
    failed = [section for section in sections.values() if section.status == "failed"]
    assert failed and all(re.search("cannot be read", str(each.message)) for each in failed)
    shutil.rmtree(folder / "bundle-raw")


def test_what_has_to_be_unpacked_first_names_the_command(lab: Lab, elf: Path, folder: Path) -> None:
    parts = [folder / "part-1", folder / "part-2"]
    makedumpfile("--split", "-c", "-d", "31", elf, *parts)
    with (folder / "flat").open("wb") as flat:
        children.run(
            ["makedumpfile", "-F", "-c", "-d", "31", elf], stdout=flat, stderr=-3, check=True
        )
    (folder / "core.gz").write_bytes(gzip.compress(parts[1].read_bytes()[:CHUNK]))
    for path, command in (
        (parts[0], "makedumpfile --reassemble"),
        (folder / "flat", "makedumpfile -R"),
        (folder / "core.gz", "gunzip"),
    ):
        result = collect(lab, path, folder / "none")
        assert result.returncode == 3
        assert len(result.stderr.splitlines()) == 1 and command in result.stderr
        assert not (folder / "none").exists()
    # Both do what they are said to.
    makedumpfile("--reassemble", *parts, folder / "joined")
    assert read_kdump(folder / "joined") and missing_bytes(folder / "joined") == 0
    with (folder / "flat").open("rb") as flat:
        children.run(["makedumpfile", "-R", folder / "rebuilt"], stdin=flat, check=True)
    assert missing_bytes(folder / "rebuilt") == 0


def test_of_a_flattened_dump_that_was_cut_short_nothing_is_read_that_never_came(
    lab: Lab, elf: Path, folder: Path
) -> None:
    """Rebuilt it has zeros in the place of descriptors."""
    flat, rebuilt = folder / "flat-cut", folder / "rebuilt-cut"
    with flat.open("wb") as file:
        children.run(["makedumpfile", "-F", "-d", "1", elf], stdout=file, stderr=-3, check=True)
    makedumpfile("-d", "1", elf, folder / "raw")
    os.truncate(flat, flat.stat().st_size * 3 // 4)
    assert "is cut short" in str(rebuild(flat, rebuilt))
    flat.unlink()
    progs = []
    for path in (rebuilt, folder / "raw"):
        progs.append(Program())
        progs[-1].set_core_dump(path)
    missing = missing_frames(rebuilt)
    assert missing is not None and cut_short.attach(progs[0], rebuilt, missing)
    lost = set(np.flatnonzero(np.unpackbits(missing, bitorder="little")).tolist())
    assert len(lost) * PAGE == missing_bytes(rebuilt) > 0
    frames = frames_in(folder / "raw")
    for number in about(frames.index(min(lost)), len(frames)):
        frame = frames[number]
        if frame in lost:
            with pytest.raises(FaultError):
                progs[0].read(frame * PAGE, PAGE, True)
        else:
            data = progs[0].read(frame * PAGE, PAGE, True)
            assert data == progs[1].read(frame * PAGE, PAGE, True)
    rebuilt.unlink()
    (folder / "raw").unlink()
