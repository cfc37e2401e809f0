# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trees that lack files, are of old kernels, or of a container: each file is read for itself."""

from pathlib import Path

import pytest
from odd_trees import OLD, PAGES, ZONE, meminfo

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.proc_text import parse_zoneinfo
from mmscope.reports.collect.run_section import run_section


def tree(root: Path, **texts: str) -> Files:
    for name, text in texts.items():
        path = root / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Files(root)


def read(files: Files, section: str) -> tuple[str, dict[str, list[object]], str]:
    result, found = run_section(SECTIONS[section], files)
    return result.status, found.by_name, result.message or ""


def test_vmstat_of_3_10_has_its_kinds() -> None:
    kinds = {row.name: row.kind for row in read_vmstat(OLD)}
    assert len(kinds) == OLD.count("\n")
    assert kinds["nr_free_pages"] == kinds["nr_free_cma"] == "zone"
    # Counted since boot where nodes have it now.
    assert kinds["nr_dirtied"] == kinds["nr_anon_pages"] == kinds["workingset_refault"] == "node"
    assert (kinds["numa_hit"], kinds["nr_dirty_threshold"], kinds["pgpgin"]) == (
        *("numa", "vm_stat", "event"),
    )


def test_vmstat_of_4_8_has_numa_counters_among_a_zones() -> None:
    text = (
        "nr_free_pages 1\nnr_zone_inactive_anon 1\nnuma_hit 1\nnuma_other 1\nnr_free_cma 2\n"
        "nr_inactive_anon 1\nnr_dirty_threshold 1\npgpgin 1\n"
    )
    assert {row.name: row.kind for row in read_vmstat(text)}["nr_free_cma"] == "zone"


@pytest.mark.parametrize("cut", [2, 9, 16, 18])
def test_vmstat_of_3_10_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="order"):
        read_vmstat("".join(OLD.splitlines(keepends=True)[:cut]))


def test_zones_of_a_kernel_without_managed_pages_have_those_present() -> None:
    old = ZONE.replace(f"        managed  {PAGES}\n", "")
    assert parse_zoneinfo(old)[0].fields["managed"] == PAGES


def test_meminfo_alone_is_read(tmp_path: Path) -> None:
    files = tree(tmp_path, meminfo=meminfo() + "DirectMap2M: 8000000 kB\n")
    described = describe_files(files)
    # MemTotal, where no zones say what is present.
    total = next(int(line.split()[1]) for line in meminfo().splitlines() if "MemTotal" in line)
    assert (described.page_size, described.total_pages) == (4096, total // 4)
    status, tables, _ = read(files, "memory_ledger")
    assert status == "partial"  # without vmstat, zram and balloons are in the remainder
    assert {row.part: row.bytes >> 10 for row in tables["memory_ledger"]}["free lists"] == 840_000
    assert [row.page_bytes for row in read(files, "hugetlb")[1]["hugetlb_sizes"]] == [2 << 20]


def test_without_meminfo_the_ledger_is_that_of_vmstat(tmp_path: Path) -> None:
    version = "Linux version 3.10.0-1160.el7.x86_64 (x@y)\n"
    status, tables, message = read(
        tree(tmp_path, vmstat=OLD, zoneinfo=ZONE, version=version), "memory_ledger"
    )
    assert status == "partial"
    assert "meminfo: no such file; these rows are the host's, by /proc/vmstat" in message
    assert {row.owner: row.pages for row in tables["memory_ledger"]}["anonymous"] == 82_000


def test_a_containers_meminfo_is_said_and_the_hosts_counters_are_used(tmp_path: Path) -> None:
    """lxcfs: 88 % free in the container, 10.5 % on the host."""
    files = tree(
        tmp_path,
        meminfo=meminfo(MemFree=7_080_000, AnonPages=120_000),
        vmstat=OLD,
        zoneinfo=ZONE,
        self__mounts="lxcfs /proc/meminfo fuse.lxcfs rw,nosuid,nodev,relatime 0 0\n",
    )
    status, tables, message = read(files, "memory_ledger")
    assert status == "partial"
    assert "a container's (lxcfs): 7.629 GiB, of which 6.752 GiB are free" in message
    assert {row.part: row.pages for row in tables["memory_ledger"]}["free lists"] == 210_000


def test_meminfo_of_other_memory_than_the_zones_is_said(tmp_path: Path) -> None:
    """A container's, where the mounts were not copied."""
    files = tree(tmp_path, meminfo=meminfo(MemTotal=2_000_000), vmstat=OLD, zoneinfo=ZONE,
                 version="Linux version 5.14.0-1.el9.x86_64 (x@y)\n")  # fmt: skip
    _, _, message = read(files, "memory_ledger")
    assert "not that of the zones beside it: 1.907 GiB" in message


def test_of_huge_pages_only_the_default_size_is_in_meminfo(tmp_path: Path) -> None:
    status, tables, message = read(tree(tmp_path, meminfo=meminfo(Hugetlb=1 << 20)), "hugetlb")
    assert (status, len(tables["hugetlb_sizes"])) == ("partial", 1)
    assert "pages of other sizes have 1 GiB" in message


TREE = Path(__file__).parents[2] / "data/7.2/proc"


def of_7_2(*names: str) -> dict[str, str]:
    return {name: (TREE / name).read_text() for name in names}


@pytest.mark.parametrize("lines", [3, 10, 20, 33])
def test_a_part_of_meminfo_says_nothing_of_what_it_lacks(tmp_path: Path, lines: int) -> None:
    """Neither memory in no counter, nor that the kernel is built without something."""
    texts = of_7_2("meminfo", "zoneinfo")
    texts["meminfo"] = "".join(texts["meminfo"].splitlines(keepends=True)[:lines])
    files = tree(tmp_path, **texts)
    status, tables, message = read(files, "memory_ledger")
    assert status == "partial" and "/proc/meminfo is not whole: it ends with" in message
    assert "unexplained" not in {row.owner for row in tables["memory_ledger"]}
    for section in ("poisoned_pages", "hugetlb"):
        status, _, message = read(files, section)
        assert status == "absent" and "/proc/meminfo is not whole" in message


@pytest.mark.parametrize("text", ["cat: /proc/meminfo: Permission denied\n", ""])
def test_what_a_command_said_instead_is_as_a_file_that_is_missing(
    tmp_path: Path, text: str
) -> None:
    texts = {**of_7_2("zoneinfo", "vmstat"), "version": "Linux version 7.2.0-1.x86_64 (x@y)\n"}
    without = read(tree(tmp_path / "without", **texts), "memory_ledger")[1]
    assert read(tree(tmp_path / "with", **texts, meminfo=text), "memory_ledger")[1] == without
    assert without["memory_ledger"]


def test_files_that_were_copied_with_crlf(tmp_path: Path) -> None:
    texts = of_7_2("meminfo", "zoneinfo", "vmstat", "buddyinfo", "pagetypeinfo", "slabinfo")
    as_dos = {name: text.replace("\n", "\r\n") for name, text in texts.items()}
    unix, dos = tree(tmp_path / "unix", **texts), tree(tmp_path / "dos", **as_dos)
    for section in ("memory_ledger", "zones", "vm_counters", "free_lists", "slab_caches"):
        assert read(dos, section)[:2] == read(unix, section)[:2] != ("absent", {})
