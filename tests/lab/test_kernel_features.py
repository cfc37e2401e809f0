# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What kernels do where they differ: the traces that tell, held against what is known of each kernel.

The expected values are read in the sources of these kernels, not by the traces.
"""

from pathlib import Path

import children
import drgn
import pytest
from capture import capture
from conftest import KERNELS
from drgn import Program

from mmscope.drgn.free.zones import caps_by_hundredth, highatomic_cap_pages
from mmscope.drgn.machine.kernel_features import FEATURES, kernel_features, read_kernel_features
from mmscope.drgn.opening.target import open_target

# Of each kernel the features that it has; it has none of the others.
HAS = {
    "5.10": set(),
    "6.1": {"per_cpu_orders"},
    "6.12": {
        "per_cpu_orders",
        "highatomic_free_counted",
        "free_lists_by_pageblock",
        "ksm_by_process",
    },
    "7.2": FEATURES.keys() - {"highatomic_fast_path", "ksm_page_offset"},
    "7.3": FEATURES.keys(),
}
HAS["owner"] = HAS["7.2"]
# Nothing shows that a kernel does not have it.
NOT_SHOWN = {"page_owner_file_safe"}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_shows_what_it_does(kernel: str) -> None:
    taken = capture(kernel, "fragment", say=print)
    prog = Program()
    prog.set_core_dump(taken.vmcore)
    prog.load_debug_info([taken.vmlinux])
    assert {row.feature: row.present for row in kernel_features(prog)} == {
        name: name in HAS[taken.series] or (None if name in NOT_SHOWN else False)
        for name in FEATURES
    }
    assert caps_by_hundredth(prog) is (taken.series not in ("5.10", "6.1"))


@pytest.mark.btf
@pytest.mark.parametrize("kernel", KERNELS)
def test_without_debug_info_less_is_known_and_nothing_else(kernel: str) -> None:
    taken = capture(kernel, "fragment", say=print)
    prog = open_target(taken.vmcore)
    shown = {row.feature: row.present for row in kernel_features(prog)}
    assert {
        name: name in HAS[taken.series] for name, known in shown.items() if known is not None
    } == {name: known for name, known in shown.items() if known is not None}
    assert {name for name, known in shown.items() if known is None} <= {
        "highatomic_buddy_only",
        "highatomic_fast_path",
        "free_lists_by_pageblock",
        *NOT_SHOWN,
    }
    assert caps_by_hundredth(prog) is (kernel not in ("5.10", "6.1"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_files_say_the_same_or_nothing(kernel: str) -> None:
    taken = capture(kernel, "fragment", say=print)
    truth = taken.truth_a
    for row in read_kernel_features(lambda path: (truth / path).read_text()):
        assert row.present in (None, row.feature in HAS[taken.series]), row.feature


# No kernel of these versions can be had here: debug info of the same shape, made by the compiler,
# with the function's parameters, the member and the variable that their sources have.
PARAMETERS = {
    "5.10": "struct page *page, struct zone *zone, unsigned int alloc_order",
    "6.6": "struct page *page, struct zone *zone",
    "6.7": "struct page *page, struct zone *zone",
    "6.8": "struct page *page, struct zone *zone",
    "6.9": "struct page *page, struct zone *zone",
    "6.10": "struct page *page, int order, struct zone *zone",
}


def debug_info(folder: Path, kernel: str, function: bool) -> Program:
    """A program with the debug info that :func:`caps_by_hundredth` goes by."""
    minor = int(kernel.partition(".")[2]) if kernel.startswith("6.") else -1
    source = folder / f"{kernel}.c"
    source.write_text(
        "struct page { int x; };\n"
        f"struct per_cpu_pages {{ int {'free_count' if minor >= 7 else 'free_factor'}; }} pcp;\n"
        "struct zone { long nr_reserved_highatomic; } zone;\n"
        + ("unsigned long huge_anon_orders_always;\n" if minor >= 8 else "")
        + (f"void reserve_highatomic_pageblock({PARAMETERS[kernel]}) {{}}\n" if function else "")
    )
    shared = source.with_suffix(".so")
    children.run(["gcc", "-g", "-shared", "-fPIC", "-o", shared, source], check=True)
    prog = Program(drgn.host_platform)
    module = prog.extra_module(kernel, create=True)
    module = module[0] if isinstance(module, tuple) else module
    module.try_file(shared, force=True)
    module.address_range = (0, 1 << 20)
    return prog


@pytest.mark.parametrize(
    ("kernel", "function", "by_hundredth"),
    [
        ("5.10", True, False),
        ("6.6", True, False),
        ("6.7", True, None),
        ("6.8", True, True),
        ("6.9", True, True),
        ("6.10", True, True),
        ("6.6", False, False),
        ("6.10", False, True),
    ],
)
def test_the_rule_of_the_cap_is_told_by_its_neighbours(
    tmp_path: Path, kernel: str, function: bool, by_hundredth: bool | None
) -> None:
    assert caps_by_hundredth(debug_info(tmp_path, kernel, function)) is by_hundredth


@pytest.mark.parametrize(
    ("managed", "old", "new"),
    [(40_000, 1024, 0), (51_200, 1024, 512), (51_300, 1536, 1024), (1_000_000, 10_752, 10_240)],
)
def test_the_cap_is_whole_pageblocks(managed: int, old: int, new: int) -> None:
    assert highatomic_cap_pages(managed, 512, by_hundredth=False) == old
    assert highatomic_cap_pages(managed, 512, by_hundredth=True) == new
