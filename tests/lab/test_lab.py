# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab itself: does a capture hold what its workload promises, and are failures told in words.
Costs a boot (about 25 s) for every kernel whose capture is not in the cache yet, and three short
boots that fail on purpose. ``MMSCOPE_LAB_KERNELS`` names the kernels, as rows or roles of
``kernels.toml``.

What is read off the core here is read with drgn's own helpers only, so that these tests say
something about the lab and nothing about our probes.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import children
import kernels
import machine
import own_kernel
import pytest
from archive import LabError
from capture import Capture, capture
from conftest import KERNELS
from drgn import Program
from drgn.helpers.linux.mmzone import for_each_online_pgdat
from drgn.helpers.linux.pid import for_each_task

COMPLETE = [
    "dmesg",
    "proc/buddyinfo",
    "proc/cmdline",
    "proc/iomem",
    "proc/meminfo",
    "proc/pagetypeinfo",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/watermark_scale_factor",
    "proc/version",
    "proc/vmstat",
    "proc/zoneinfo",
    "sys/devices/system/node/online",
    "sys/kernel/debug/extfrag/extfrag_index",
    "sys/kernel/debug/extfrag/unusable_index",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages",
    "sys/kernel/mm/transparent_hugepage/defrag",
    "sys/kernel/mm/transparent_hugepage/enabled",
]


@pytest.fixture(scope="module", params=KERNELS)
def taken(request: pytest.FixtureRequest) -> Capture:
    return capture(request.param, "fragment", say=print)


@pytest.fixture(scope="module")
def prog(taken: Capture) -> Program:
    program = Program()
    program.set_core_dump(taken.vmcore)
    program.load_debug_info([taken.vmlinux])
    return program


def _numbers(truth: Path, path: str) -> dict[str, int]:
    """A file of "name value" lines."""
    found = re.findall(r"^(\w+):? +(\d+)", (truth / path).read_text(), re.MULTILINE)
    return {name: int(value) for name, value in found}


def _free_blocks(truth: Path) -> dict[tuple[int, str, str], list[int]]:
    """Free blocks by order, of each node, zone and migratetype."""
    return {
        (int(node), zone, migratetype): [int(count) for count in counts.split()]
        for node, zone, migratetype, counts in re.findall(
            r"^Node +(\d+), zone +(\w+), type +(\w+) ([ \d]+)$",
            (truth / "proc/pagetypeinfo").read_text(),
            re.MULTILINE,
        )
    }


def _pageblocks(taken: Capture) -> dict[int, Counter[str]]:
    """Pageblocks by migratetype, of each node."""
    text = (taken.truth_b / "proc/pagetypeinfo").read_text()
    (names,) = {names for names in re.findall(r"^Number of blocks type (.*)$", text, re.MULTILINE)}
    census: dict[int, Counter[str]] = defaultdict(Counter)
    for node, counts in re.findall(r"^Node (\d), zone +\w+ ([ \d]+)$", text, re.MULTILINE):
        census[int(node)].update(dict(zip(names.split(), map(int, counts.split()), strict=True)))
    return census


def _zones(prog: Program) -> dict[tuple[int, str], list[int]]:
    """What buddyinfo would say: free blocks by order of each zone that has memory."""
    return {
        (pgdat.node_id.value_(), zone.name.string_().decode()): [
            area.nr_free.value_() for area in zone.free_area
        ]
        for pgdat in for_each_online_pgdat(prog)
        for zone in pgdat.node_zones
        if zone.present_pages
    }


@pytest.mark.parametrize("reading", ["truth_a", "truth_b"])
def test_truth_is_complete(taken: Capture, reading: str) -> None:
    truth = getattr(taken, reading)
    empty = [path for path in COMPLETE if not (truth / path).read_text().strip()]
    assert not empty
    assert taken.release in (truth / "proc/version").read_text()
    assert "reserved_highatomic:" in (truth / "dmesg").read_text()  # show_mem()


def test_core_is_the_kernel_that_was_booted(taken: Capture, prog: Program) -> None:
    assert prog["UTS_RELEASE"].string_().decode() == taken.release


def test_core_is_as_small_as_the_guest(taken: Capture) -> None:
    assert taken.vmcore.stat().st_size < (1536 + 2) << 20


def test_nothing_moved_between_the_readings_and_the_core(taken: Capture, prog: Program) -> None:
    """If this fails, something in the guest was still at work; see `settle` in guest/init.c."""

    def buddyinfo(truth: Path) -> dict[tuple[int, str], list[int]]:
        return {
            (int(node), zone): [int(count) for count in counts.split()]
            for node, zone, counts in re.findall(
                r"Node (\d+), zone +(\w+) (.*)", (truth / "proc/buddyinfo").read_text()
            )
        }

    assert buddyinfo(taken.truth_a) == buddyinfo(taken.truth_b) == _zones(prog)


def test_reserve_holds_the_large_blocks(taken: Capture) -> None:
    zone = taken.architecture.zones[1]
    reserved = _pageblocks(taken)[1]["HighAtomic"]
    managed = re.search(
        rf"Node 1, zone +{zone}\n(?:(?!Node).*\n)*? +managed +([1-9]\d*)",
        (taken.truth_b / "proc/zoneinfo").read_text(),
    )
    assert managed
    # In pageblocks, as reserve_highatomic_pageblock() has it: of 6.1 one more. How near it comes
    # is up to what the guest's CPUs did meanwhile.
    cap = -(-int(managed[1]) // 100 // 512)
    assert 1 <= reserved <= cap + 1
    assert sum(_free_blocks(taken.truth_b)[1, zone, "HighAtomic"][9:]) >= 1


def test_movable_is_fragmented_though_much_is_free(taken: Capture) -> None:
    blocks = _free_blocks(taken.truth_b)
    movable = blocks[1, taken.architecture.zones[1], "Movable"]
    assert all(movable[:9])
    assert (
        sum(sum(b[9:]) for (*_, migratetype), b in blocks.items() if migratetype == "Movable") < 3
    )
    memory = _numbers(taken.truth_b, "proc/meminfo")
    assert 0.3 < memory["MemFree"] / memory["MemTotal"] < 0.5


def test_all_kinds_of_pageblocks_exist(taken: Capture) -> None:
    # Which node has a block of inodes in use is up to what the guest's CPUs did meanwhile.
    census = _pageblocks(taken)
    everywhere = sum(census.values(), Counter())
    assert all(everywhere[name] for name in ("Unmovable", "Movable", "Reclaimable", "HighAtomic"))
    assert all(census[1][name] for name in ("Unmovable", "Movable", "HighAtomic"))
    blocks = _free_blocks(taken.truth_b)
    assert all(
        sum(blocks[1, taken.architecture.zones[1], name])
        for name in ("Unmovable", "Movable", "HighAtomic")
    )


def test_huge_faults_and_compaction_mostly_fail(taken: Capture) -> None:
    vmstat = _numbers(taken.truth_b, "proc/vmstat")
    allocated, fell_back = vmstat["thp_fault_alloc"], vmstat["thp_fault_fallback"]
    assert 0 < allocated < 0.2 * (allocated + fell_back)
    succeeded, failed = vmstat["compact_success"], vmstat["compact_fail"]
    assert failed and succeeded < 0.2 * (succeeded + failed)
    assert vmstat["oom_kill"] == 0


def test_hugetlb_pages_are_free_used_and_reserved(taken: Capture) -> None:
    folder = taken.truth_b / "sys/kernel/mm/hugepages/hugepages-2048kB"
    counts = {path.name: int(path.read_text()) for path in folder.iterdir()}
    assert counts["nr_hugepages"] == 24
    assert counts["free_hugepages"] == 17
    assert counts["resv_hugepages"] == 3


def test_both_cpus_hold_free_pages(taken: Capture) -> None:
    text = (taken.truth_b / "proc/zoneinfo").read_text()
    held: dict[str, int] = {}
    for cpu, count in re.findall(r"cpu: (\d+)\n +count: +(\d+)", text):
        held[cpu] = held.get(cpu, 0) + int(count)
    assert sorted(held) == ["0", "1"]
    assert all(held.values())


def test_a_hostile_name_lives(prog: Program) -> None:
    assert b'<img src=x>;"' in [task.comm.string_() for task in for_each_task(prog)]


def test_capture_and_kernel_come_from_the_cache(
    taken: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no apt, no QEMU
    assert capture(taken.kernel, taken.workload) == taken


def test_guest_without_init_is_an_error_with_the_console(tmp_path: Path) -> None:
    kernel = kernels.get(KERNELS[0], print)
    with pytest.raises(LabError, match="the guest died during boot") as failure:
        machine.run(kernel, "idle", tmp_path, print, init=None)
    assert "Kernel panic - not syncing" in str(failure.value)
    assert not (tmp_path / "vmcore").exists()


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine.build_init(tmp_path_factory.mktemp("init"))


def test_step_that_takes_too_long_is_an_error(init: Path, tmp_path: Path) -> None:
    kernel = kernels.get(KERNELS[0], print)
    with pytest.raises(LabError, match=r"boot is not done after 0\.5 s; the console's last lines"):
        machine.run(kernel, "idle", tmp_path, print, init=init, boot_seconds=0.5)


def test_unknown_workload_is_an_error(init: Path, tmp_path: Path) -> None:
    kernel = kernels.get(KERNELS[0], print)
    with pytest.raises(LabError, match="no workload is called 'nonesuch'"):
        machine.run(kernel, "nonesuch", tmp_path, print, init=init)


def test_of_two_fragments_of_a_configuration_the_last_word_on_an_option_counts() -> None:
    first = "# Memory.\nCONFIG_SWAP=y\nCONFIG_NUMA=y\n# CONFIG_KASAN is not set\n"
    merged = own_kernel.merged([first, "# CONFIG_SWAP is not set\nCONFIG_KASAN=y\n"])
    assert own_kernel.enabled(merged) == {"NUMA", "KASAN"}
    assert "# CONFIG_SWAP is not set" in merged and "CONFIG_SWAP=y" not in merged
    assert own_kernel.not_kept(merged, "CONFIG_NUMA=y\nCONFIG_KASAN=y\n") == []
    assert own_kernel.not_kept(merged, "CONFIG_NUMA=y\nCONFIG_SWAP=y\n") == [
        "# CONFIG_SWAP is not set",
        "CONFIG_KASAN=y",
    ]
    assert own_kernel.merged([first]) == first


def test_an_option_has_the_name_that_its_source_gives_it(tmp_path: Path) -> None:
    wanted = "CONFIG_PROC_SYSCTL=y\nCONFIG_SYSCTL_EXCEPTION_TRACE=y\n"
    kconfig = tmp_path / "fs/proc/Kconfig"
    kconfig.parent.mkdir(parents=True)
    kconfig.write_text("config PROC_FS\n\nconfig PROC_SYSCTL\n\tbool\n\tselect SYSCTL\n")
    assert own_kernel.named_as_there(tmp_path, wanted) == wanted
    kconfig.write_text("config PROC_FS\n\nconfig SYSCTL\n\tbool\n")
    assert own_kernel.named_as_there(tmp_path, wanted) == wanted.replace("PROC_SYSCTL", "SYSCTL")


def test_unknown_kernel_is_an_error() -> None:
    with pytest.raises(LabError, match=r"no kernel is called nonesuch: kernels\.toml has 5\.10, "):
        kernels.get("nonesuch")


def test_broken_recording_is_an_error(tmp_path: Path) -> None:
    header = b"FILE A /proc/version 5".ljust(255) + b"\n"
    machine.unpack_truth(header + b"Linux" + b"END\n", tmp_path)
    assert (tmp_path / "A/proc/version").read_text() == "Linux"
    with pytest.raises(LabError, match="breaks off after 261 bytes"):
        machine.unpack_truth(header + b"Linux", tmp_path)


def test_newest_complete_release_is_chosen() -> None:
    def package(name: str, version: str) -> kernels._Package:
        return kernels._Package(name, version, 0)

    archive = {
        each.name: each
        for each in [
            package("linux-image-7.2.9-cloud-amd64-dbg", "9"),
            package("linux-image-7.2.9-cloud-amd64", "9"),
            package("linux-image-7.2.10-cloud-amd64-dbg", "10"),
            package("linux-image-7.2.10-cloud-amd64", "9"),  # signed lags behind: another build
            package("linux-image-7.2.10-cloud-amd64-unsigned", "10"),
            package("linux-image-7.2.11-cloud-amd64", "11"),  # without debug info
        ]
    }
    table = kernels.table()
    pattern = table["kernels"]["7.2"]["release"]
    chosen = kernels._choose(archive, pattern, table["debug"], table["images"])
    assert chosen is not None
    release, packages = chosen
    assert release == "7.2.10-cloud-amd64"
    assert [each.name for each in packages] == [
        "linux-image-7.2.10-cloud-amd64-unsigned",
        "linux-image-7.2.10-cloud-amd64-dbg",
    ]


RELEASE = "7.2.1-cloud-amd64"
ARCHIVE = {
    f"linux-binary-{RELEASE}": [f"boot/vmlinuz-{RELEASE}"],
    f"linux-modules-{RELEASE}": ["lib/modules/first.ko", "lib/modules/second.ko"],
    f"linux-image-{RELEASE}-dbg": [f"usr/lib/debug/boot/vmlinux-{RELEASE}"],
}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """
    Fetches a kernel with modules, out of an archive of packages made here, into a cache made here;
    returns the packages that it took.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def fetch(*modules: str) -> list[str]:
        taken = []

        def download(*words: str, cwd: Path) -> None:
            name = words[-1].partition("=")[0]
            tree = tmp_path / "tree"
            for path in ["DEBIAN/control", *ARCHIVE[name]]:
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_text(f"{path} of a fetch of {modules}")
            control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x\n"
            (tree / "DEBIAN/control").write_text(f"{control}Description: x\n")
            command = ["dpkg-deb", "--build", str(tree), str(cwd / f"{name}.deb")]
            children.run(command, check=True, capture_output=True)
            shutil.rmtree(tree)
            taken.append(name)

        monkeypatch.setattr(kernels, "run", download)
        packages = [kernels._Package(name, "1", 0) for name in ARCHIVE]
        kernels._fetch(RELEASE, packages, [], modules, lambda line: None)
        return taken

    return fetch


def kept(tmp_path: Path) -> dict[str, tuple[int, str]]:
    """Inode and text of what is in the cache."""
    (folder,) = (tmp_path / "cache/mmscope/lab/kernels").iterdir()
    return {path.name: (path.stat().st_ino, path.read_text()) for path in folder.iterdir()}


def test_a_cached_kernel_that_lacks_a_module_is_added_to(
    tmp_path: Path, fetched: Callable[..., list[str]]
) -> None:
    assert fetched("first") == list(ARCHIVE)
    before = kept(tmp_path)
    assert before.keys() == {"vmlinuz", "vmlinux", "first.ko"}
    # Its debug info, most of it, is not fetched again; somebody may have the others open.
    assert fetched("first", "second") == list(ARCHIVE)[:2]
    after = kept(tmp_path)
    assert after.keys() == before.keys() | {"second.ko"}
    assert {name: after[name] for name in before} == before
    assert fetched("second") == []


def test_a_cached_kernel_outlives_a_fetch_that_fails(
    tmp_path: Path, fetched: Callable[..., list[str]]
) -> None:
    fetched("first")
    before = kept(tmp_path)
    with pytest.raises(LabError, match=r"have no third\.ko"):
        fetched("first", "third")
    assert kept(tmp_path) == before
    assert kernels._cached("7.2", RELEASE, ["first"]) is not None
