# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every file of a running host that is read has its price declared, and what is dear is left out there
unless --all asks for it. Of a copied tree everything is read.

The trees are made of a guest's files; that one is a running host's is said by a patch, as nobody
can mount a /proc of his own making.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import TESTS
from command_line import ROOT, run
from watched_host import KSM, PRESSURE

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.sections import files as text_files
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.prices import LONGEST_WALK, PRICES, TO_READ_IT, price_of, why_left_out
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.proc_text import parse_zoneinfo
from mmscope.drgn.waits import writeback
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.commands.doctor import TEXT_SOURCES
from mmscope.reports.watch import samples
from mmscope.reports.watch.samples import Sampler

DATA = TESTS / "data" / "7.2"
TRACES = (TESTS / "corpus/alloc_traces/nsproxy").read_text()
# What sections read of a running host alone, and not by Files.
LIVE_ALONE = {
    "process_memory": {
        *(prices.MEMINFO, prices.NAMES, prices.LINKS, prices.SOCKETS, prices.CGROUPS),
    },
    "task_waits": {prices.SCHED},
}
BDI = "".join(f"{name}: {at} kB\n" for at, name in enumerate(writeback.NAMES, 4))
MAPS = "55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0 [heap]\n"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with something for every section."""
    root = tmp_path / "root"
    shutil.copytree(DATA, root)
    put(root, "proc/1/maps", MAPS)
    put(root, "proc/1/comm", "init\n")
    status = (root / "proc/1/status").read_text().replace("Threads:\t1\n", "Threads:\t2\n")
    put(root, "proc/1/status", status)
    put(root, "proc/1/task/2/stat", "2 (init) D 1\n")
    put(root, "proc/1/task/2/wchan", "do_exit")
    put(root, "sys/kernel/debug/bdi/8:0/stats", BDI)
    put(root, "proc/sys/vm/max_map_count", "65530\n")
    put(root, "proc/pressure/memory", PRESSURE)
    put(root, "proc/cmdline", "quiet\n")
    put(root, "proc/iomem", "00001000-0009fbff : System RAM\n00100000-5fffffff : System RAM\n")
    for name, value in (("start", "0x0"), ("end", "0x9fbff"), ("type", "System RAM")):
        put(root, f"sys/firmware/memmap/0/{name}", f"{value}\n")
    put(root, "sys/devices/system/node/node0/memory_failure/total", "0\n")
    for name, value in KSM.items():
        put(root, f"sys/kernel/mm/ksm/{name}", f"{value}\n")
    for pool in ("kernel/mm", "devices/system/node/node0"):
        for name in ("nr", "free", "surplus", "resv"):
            put(root, f"sys/{pool}/hugepages/hugepages-2048kB/{name}_hugepages", "4\n")
    put(root, "sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/split", "4\n")
    for name, text in (("start", "0x0"), ("end", "0x3fffffff"), ("type", "System RAM")):
        put(root, f"sys/firmware/memmap/0/{name}", f"{text}\n")
    put(root, "sys/devices/system/node/node0/memory_failure/total", "0\n")
    put(root, "sys/fs/cgroup/system.slice/memory.current", "4096\n")
    put(root, "dmesg", "[    1.000000] Linux version 7.2\n")
    put(root, "proc/swaps", f"Filename\n/dev/zram0{' ' * 30}partition\t8192\t\t0\t\t100\n")
    put(root, "sys/block/zram0/mm_stat", "0 0 0 0 0 0 0 0 0\n")
    put(root, "proc/allocinfo", "allocinfo - version: 2.0\n")
    put(root, "proc/sys/vm/mem_profiling", "1\n")
    put(root, "proc/vmallocinfo", "0x1-0x2 8192 bpf_map_area_alloc+0x2/0x9 pages=1 vmalloc\n")
    put(root, "sys/kernel/slab/nsproxy/object_size", "72\n")
    put(root, "sys/kernel/slab/nsproxy/partial", "3 N0=1 N1=2\n")
    put(root, "sys/kernel/debug/slab/nsproxy/alloc_traces", TRACES)
    return root


@pytest.fixture
def live(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, taken for a running host's."""
    for module in (prices, samples):
        monkeypatch.setattr(module, "is_live", lambda root: True)
    return root


def grow(root: Path, blocks: int) -> None:
    """Let zone DMA32 span so many pageblocks."""
    text = (root / "proc/zoneinfo").read_text()
    zone = next(zone for zone in parse_zoneinfo(text) if zone.zone == "DMA32")
    old = f"spanned  {zone.fields['spanned']}\n"
    assert text.count(old) == 1
    put(root, "proc/zoneinfo", text.replace(old, f"spanned  {blocks * 512}\n"))


# Declarations


def opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """What each section opens of a tree, as the kernel names it."""
    read: set[str] = set()
    plain = Files._plain

    def watched(files: Files, path: str) -> Path:
        read.add(f"/{path}")
        return plain(files, path)

    monkeypatch.setattr(Files, "_plain", watched)
    monkeypatch.setattr(Files, "page_size", lambda files: 4096)  # as of a running host
    found = {}
    for name, spec in SECTIONS.items():
        read.clear()
        run_section(spec, Files(root))
        found[name] = set(read)
    return found


def test_every_section_declares_the_price_of_what_it_opens(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: dict[str, set[str]] = {name: set() for name in SECTIONS}
    older = root.with_name("older")
    shutil.copytree(root, older)
    # As 6.1 has it, where the reserve is in pagetypeinfo; and one without pagetypeinfo.
    shutil.copy(DATA.parent / "6.1/zoneinfo", older / "proc/zoneinfo")
    without = root.with_name("without")
    shutil.copytree(root, without)
    (without / "proc/pagetypeinfo").unlink()
    (without / "proc/meminfo").unlink()
    shutil.rmtree(without / "sys/kernel/mm/hugepages")
    for tree in (root, older, without):
        for name, paths in opened(tree, monkeypatch).items():
            for path in paths:
                price = price_of(path)
                assert price is not None, f"{name} opens {path}, whose price is not declared"
                assert price.files in SECTIONS[name].reads, f"{name} does not declare {path}"
                met[name].add(price.files)
    for name, files in LIVE_ALONE.items():
        assert not met[name] & files
        met[name] |= files
    assert met == {name: set(spec.reads) for name, spec in SECTIONS.items()}


def test_what_a_sample_and_a_description_open_has_a_price(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    plain = Sampler._text
    monkeypatch.setattr(Sampler, "_text", lambda s, path: read.append(path) or plain(s, path))
    Sampler(str(root), 9).take()
    monkeypatch.setattr(Files, "open", lambda files, path: read.append(path) or "1 (2) 3")
    describe_files(Files(Path("/")))
    assert len(read) > 10 and [path for path in read if price_of(f"/{path}") is None] == []


def test_what_doctor_looks_at_has_a_price() -> None:
    assert [path for path, _ in TEXT_SOURCES if price_of(path) is None] == []


def test_what_is_left_out_says_so_where_it_is_declared() -> None:
    assert {files for files, price in PRICES.items() if "left out" in price.careful} == set(
        prices.DEAR
    )


def test_the_page_of_prices_has_them_all() -> None:
    text = (ROOT / "docs/prices.md").read_text()
    for price in PRICES.values():
        assert f"\n{' '.join(f'`{files}`' for files in price.files.split())}|" in text
        for words in (price.locks, price.interrupts_off, price.grows_with):
            assert words is None or words in text


# What is dear


def test_this_machine_is_live_and_a_copy_is_not(root: Path) -> None:
    assert prices.is_live("/")
    assert not prices.is_live(str(root)) and not prices.is_live(str(root / "nowhere"))


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (lambda root: None, "pagetypeinfo", None),
        (lambda root: put(root, "sys/kernel/debug/page_owner", ""), "pagetypeinfo",
         "page_owner is on: it would drain the per-CPU lists and look at every page"),
        # With debugfs mounted its word counts.
        (lambda root: put(root, "proc/cmdline", "page_owner=on\n"), "pagetypeinfo", None),
        (lambda root: grow(root, LONGEST_WALK), "pagetypeinfo", None),
        (lambda root: grow(root, LONGEST_WALK + 1), "pagetypeinfo",
         "the kernel would count 100,001 pageblocks of zone DMA32 with interrupts off"),
        (lambda root: put(root, "proc/zoneinfo", ""), "pagetypeinfo",
         "the number of pageblocks cannot be read from /proc/zoneinfo"),
        (lambda root: None, "slabinfo", None),
        (lambda root: put(root, "sys/kernel/slab/dentry/partial", "100001 N0=100001\n"),
         "slabinfo", "the kernel would count 100,001 partial slabs of dentry with interrupts off"),
        (lambda root: put(root, "sys/kernel/slab/dentry/partial", "100000 N0=100000\n"),
         "slabinfo", None),
        (lambda root: put(root, "proc/meminfo", "VmallocUsed:      400000 kB\n"),
         "vmallocinfo", None),
        (lambda root: put(root, "proc/meminfo", "VmallocUsed:      400004 kB\n"), "vmallocinfo",
         "the kernel would look at 100,001 pages of vmalloc under a spinlock"),
        (lambda root: put(root, "proc/meminfo", ""), "vmallocinfo",
         "the size of vmalloc memory cannot be read from /proc/meminfo"),
        (lambda root: shutil.rmtree(root / "sys/kernel/slab"), "slabinfo",
         "how many partial slabs the kernel would count cannot be read from /sys/kernel/slab"),
    ],
)  # fmt: skip
def test_what_is_dear(root: Path, change: Callable[[Path], None], path: str, words: str) -> None:
    change(root)
    why = why_left_out(str(root), f"proc/{path}")
    assert why == (f"left out, as {words}; {TO_READ_IT}" if words else None)


def test_a_kernel_that_counts_long_lists_in_part_is_read(root: Path) -> None:
    put(root, "sys/kernel/slab/dentry/partial", "1000000 N0=1000000\n")
    assert why_left_out(str(root), "proc/slabinfo") is not None
    put(root, "proc/kallsyms", "0000000000000000 t count_partial_free_approx\n")
    assert why_left_out(str(root), "proc/slabinfo") is None


@pytest.mark.parametrize(
    ("words", "on"),
    [("quiet page_owner=on", "on"), ("page_owner=1", "1"), ("page_owner=Y", "Y"),
     ("page_owner=off", None), ("page_owner=on page_owner=0", None), ("nopage_owner=on", None),
     ("page_owner=off page_owner=enable", "enable"), ("", None)],
)  # fmt: skip
def test_without_debugfs_the_command_line_tells_of_page_owner(
    root: Path, words: str, on: str | None
) -> None:
    shutil.rmtree(root / "sys/kernel/debug")
    put(root, "proc/cmdline", f"{words}\n")
    why = f"the kernel was booted with page_owner={on}" if on else None
    assert prices.page_owner_on(str(root)) == why


# Careful, and all


def dear(root: Path) -> None:
    put(root, "sys/kernel/debug/page_owner", "")
    put(root, "sys/kernel/slab/dentry/partial", "100001 N0=100001\n")


def statuses(root: Path, *options: str) -> tuple[Any, dict[str, str], Bundle]:
    bundle = root.with_name("bundle")
    result = run("collect", "--proc-root", root, "-o", bundle, "--force", *options)
    found = Bundle(bundle)
    return result, {section.section: section.status for section in found.sections}, found


@pytest.mark.parametrize("options", [(), ("--careful",)])
def test_a_running_host_is_spared_and_that_is_said(live: Path, options: tuple[str, ...]) -> None:
    dear(live)
    result, status, bundle = statuses(live, *options)
    assert result.returncode == 1
    assert (status["free_lists"], status["pageblocks"]) == ("partial", "absent")
    assert (status["slab_caches"], status["slab_owner"]) == ("absent", "absent")
    messages = {section.section: str(section.message) for section in bundle.sections}
    for name in ("free_lists", "pageblocks", "slab_caches", "slab_owner"):
        assert "left out, as " in messages[name] and TO_READ_IT in messages[name]
        assert f"{name}: " in result.stderr
    assert "alloc_traces (1 cache): left out" in messages["slab_owner"]
    assert {row["migratetype"] for row in bundle.rows("free_blocks")} == {None}
    assert (status["zones"], status["anon_vmas"], status["ksm"]) == ("ok", "ok", "ok")


def test_all_takes_it(live: Path) -> None:
    dear(live)
    _, status, bundle = statuses(live, "--all")
    for name in ("free_lists", "pageblocks", "slab_caches", "slab_owner"):
        assert status[name] == "ok", name
    assert not any(TO_READ_IT in str(section.message) for section in bundle.sections)


def test_of_a_copied_tree_everything_is_read(root: Path) -> None:
    dear(root)
    for options in ((), ("--careful",), ("--all",)):
        _, status, _ = statuses(root, *options)
        assert status["free_lists"] == status["slab_owner"] == status["slab_caches"] == "ok"


def test_what_is_dear_is_read_once(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where three sections need it, as on 6.1."""
    shutil.copy(DATA.parent / "6.1/zoneinfo", live / "proc/zoneinfo")
    read = []
    plain = text_files.read_plain
    monkeypatch.setattr(
        text_files, "read_plain", lambda path: read.append(path.name) or plain(path)
    )
    files = Files(live)
    for name in ("zones", "free_lists", "pageblocks"):
        assert run_section(SECTIONS[name], files)[0].status == "ok"
    assert read.count("pagetypeinfo") == 1


def test_show_is_as_careful(live: Path) -> None:
    dear(live)
    result = run("show", "pageblocks", "--proc-root", live)
    assert result.returncode == 1 and "left out, as page_owner is on" in result.stderr
    result = run("show", "pageblocks", "--proc-root", live, "--all")
    assert result.returncode == 0 and "Movable" in result.stdout


def test_careful_and_all_do_not_go_together(root: Path) -> None:
    result = run("collect", "--proc-root", root, "--all", "--careful", "-o", root / "b")
    assert result.returncode == 2 and "not allowed with" in result.stderr


def test_what_this_user_may_not_read_is_not_left_out_for_its_price(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear(live)
    path = live / "proc/pagetypeinfo"
    # Made: these tests run as root, who may read everything.
    monkeypatch.setattr("os.access", lambda file, mode: str(file) != str(path))
    assert Files(live).open("proc/pagetypeinfo").startswith("Page block order")
    assert Sampler(str(live), 9).take()["unread"] == {}


def test_a_careful_sample_has_free_blocks_without_migratetypes(live: Path) -> None:
    dear(live)
    sampler = Sampler(str(live), 9)
    for sample in (sampler.take(), sampler.take()):
        assert {name for _, _, name, _, _ in sample["thp_free"]} == {None}
        assert sample["unread"].keys() == {"pagetypeinfo"}
        assert "left out, as page_owner is on" in sample["unread"]["pagetypeinfo"]
    sample = Sampler(str(live), 9, everything=True).take()
    assert sample["unread"] == {}
    assert {name for _, _, name, _, _ in sample["thp_free"]} >= {"Movable"}


def test_what_is_only_a_trial_does_not_read_it(live: Path) -> None:
    sample = Sampler(str(live), 9, everything=True).take(trial=True)
    assert "vmstat" in sample and "thp_free" not in sample and sample["unread"] == {}


@pytest.mark.parametrize(("options", "read"), [((), False), (("--all",), True)])
def test_watch_is_careful(live: Path, options: tuple[str, ...], read: bool) -> None:
    dear(live)
    bundle = live.with_name("watched")
    result = run("watch", "--interval", "0.01", "--count", "2", "--proc-root", live,
                 "--debugfs", live / "sys/kernel/debug", "-o", bundle, *options)  # fmt: skip
    (section,) = (s for s in Bundle(bundle).sections if s.section == "watch")
    assert (TO_READ_IT not in str(section.message)) == read
    assert result.returncode == (0 if read else 1)
    (cost,) = Bundle(bundle).rows("watch_overhead")
    assert bool(cost["pagetypeinfo_readings"]) == read
