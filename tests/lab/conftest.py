# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Real vmcores for tests: booted once, then taken from the cache.

``MMSCOPE_LAB_KERNELS`` names the kernels (rows or roles of ``kernels.toml``, or a series) to run
the lab tests on; then those run that depend on the kernel, and no others. A kernel that cannot be
had fails the tests that need it; it is never skipped. One with a ``?`` behind its name, which the
archive may not have at the moment, is left out then, and the summary says why. Tests of a series
that has no row may fail: nobody has seen it, and what they say of it is in the summary.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kernels
import pytest
from archive import LabError
from capture import Capture, capture
from drgn import Program
from dump_formats import with_vmcoreinfo
from machine import X86_WORKLOADS
from roles import resolve
from shared_guest import InGuest, of_program, run_programs

from mmscope.drgn.free.free_memory import FreeMemory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.owners.page_owner_scan import PageOwner, scan_page_owner
from mmscope.drgn.owners.slab_caches import SlabFinder, SlabScan
from mmscope.drgn.owners.slab_owner import SlabOwners, tracks_have_stacks
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.stack_depot import StackDepot, stack_depot
from mmscope.drgn.rmap.ksm import Ksm, KsmVisits, ksm_visits, read_ksm
from mmscope.drgn.rmap.reverse_maps import ReverseMaps, read_reverse_maps
from mmscope.drgn.struct_pages.struct_page_cost import StructPageCost, scan_struct_page_cost

SAID: list[str] = []
LEFT_OUT: dict[str, str] = {}


def _row(name: str) -> str | None:
    try:
        return resolve(name, SAID.append)
    except LabError as error:
        LEFT_OUT[name] = str(error)
        return None


def _kernels(names: str) -> list[str]:
    """The rows that are meant, each once."""
    wanted = []
    for word in names.split(","):
        name = word.removesuffix("?")
        row = _row(name)
        if name != word:
            if row is None:
                continue
            try:
                kernels.get(row)
            except LabError as error:
                LEFT_OUT[name] = str(error)
                continue
        wanted.append(row or name)
    return list(dict.fromkeys(wanted))


# What tests that are about no kernel in particular stand on.
STANDS_ON = _row("stable") or "stable"
# The same for those on a kernel that runs; `make live-arm64` asks for another.
LIVES_ON = os.environ.get("MMSCOPE_LAB_LIVE", STANDS_ON)
KERNELS = _kernels(os.environ.get("MMSCOPE_LAB_KERNELS", STANDS_ON))


# Built without CONFIG_KALLSYMS_ALL: they can be read with debug info alone.
FUNCTIONS_ONLY = {"arm64-6.1"}
# Built without BTF: so can they.
WITHOUT_BTF = {"small", "handover", "owner", "owner-5.10", "owner-6.1"}
# Those that kernels with larger pages run, whose machine is too small for the others.
ANY_PAGE_WORKLOADS = {"fragment", "tables", "sizes", "slab", "rmap"}
# Those that ask for transparent huge pages, of the tests that need none.
THP_WORKLOADS = {"fragment", "tables"}
# Of workloads that only x86 can run; see machine.py.
X86_FIXTURES = {"vmemmap_lab", "dax_lab", "leak_lab"}
# The workloads of those fixtures that tests marked brief have.
BRIEF_FIXTURES = {
    "lab": "fragment",
    "lab_of_tables": "tables",
    "sizes_lab": "sizes",
    "dax_lab": "dax",
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "live: in a guest that runs, of which no vmcore can be kept")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "in_guest" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.live)
        unseen = _named(item).difference(kernels.names())
        if unseen:
            why = f"no test has seen {', '.join(unseen)}: kernels.toml has no row of it"
            item.add_marker(pytest.mark.xfail(reason=why, strict=False))
    if "MMSCOPE_LAB_KERNELS" in os.environ:
        others = [item for item in items if not _of_a_kernel(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _of_a_kernel(item)]
    # On a machine that has to build it first, the others need not wait for it.
    items.sort(key=lambda item: item.get_closest_marker("owner_kernel") is not None)


def _words(item: pytest.Item) -> set[str]:
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {value for value in params if isinstance(value, str)}


def _named(item: pytest.Item) -> set[str]:
    """The kernels that it is run on."""
    return _words(item).intersection(KERNELS)


def _of_a_kernel(item: pytest.Item) -> bool:
    words, named = _words(item), _named(item)
    fixtures = set(getattr(item, "fixturenames", ()))
    if any(kernels.architecture(name).name != "amd64" for name in named) and (
        item.get_closest_marker("x86") or words & X86_WORKLOADS or fixtures & X86_FIXTURES
    ):
        return False
    if any(kernels.page_bytes(name) != kernels.PAGE_BYTES for name in named) and not (
        item.get_closest_marker("any_page") or words & ANY_PAGE_WORKLOADS
    ):
        return False
    if not all(map(kernels.has_thp, named)) and (
        not item.get_closest_marker("any_config") or words & THP_WORKLOADS
    ):
        return False
    if item.get_closest_marker("btf") and named & (WITHOUT_BTF | FUNCTIONS_ONLY):
        return False
    if any(not _able(item, fixtures, kernels.workloads(name)) for name in named):
        return False
    return bool(named)


def _able(item: pytest.Item, fixtures: set[str], workloads: list[str]) -> bool:
    """Whether it can be run on a kernel whose guest can run these workloads, if not all."""
    asked = {workload for name, workload in BRIEF_FIXTURES.items() if name in fixtures}
    if "fragment" in asked and workloads:
        asked.remove("fragment")  # which any other replaces
    brief = item.get_closest_marker("brief") and not item.get_closest_marker("odd_machine")
    return not workloads or bool(brief and asked.issubset(workloads))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """That none could be had of those that may be left out is no failure; the summary says why."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not KERNELS:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in SAID:
        if line.startswith("the kernel "):
            terminalreporter.line(line)
    for name, why in LEFT_OUT.items():
        terminalreporter.line(f"kernel {name} was not tested: {why}", yellow=True)


@dataclass(frozen=True)
class Lab:
    """A frozen guest: its memory, and what it said of itself right before, twice."""

    capture: Capture
    prog: Program
    free: FreeMemory

    def said(self, path: str) -> tuple[str, str]:
        """The two readings of a file, earlier and later."""
        return (
            (self.capture.truth_a / path).read_text(),
            (self.capture.truth_b / path).read_text(),
        )


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Progress of a boot, past pytest's capturing."""
    manager = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with manager.global_and_fixture_disabled():
            print(f"  lab: {text}", file=sys.stderr, flush=True)

    return say


@pytest.fixture(scope="session")
def in_guest(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    say: Callable[[str], None],
) -> Callable[[InGuest], Path]:
    """
    The folder of what a test file's program wrote in a live guest, which it shares with those of
    the other files that are tested.
    """
    modules = {item.getparent(pytest.Module).obj for item in request.session.items}  # type: ignore[union-attr]
    programs = [module.IN_GUEST for module in modules if hasattr(module, "IN_GUEST")]
    ran: dict[str, Path | LabError] = {}

    def of(asked: InGuest) -> Path:
        if asked.kernel not in ran:
            folder = tmp_path_factory.mktemp(f"guest-{asked.kernel}")
            try:
                ran[asked.kernel] = run_programs(programs, asked.kernel, folder, say)
            except LabError as error:
                ran[asked.kernel] = error
        out = ran[asked.kernel]
        if isinstance(out, LabError):
            raise out
        return of_program(out, asked)

    return of


def fragment_lab(kernel: str, say: Callable[[str], None]) -> Lab:
    """The ``fragment`` workload on a kernel, or the first of those that its guest can run."""
    workload = [*kernels.workloads(kernel), "fragment"][0]
    taken = with_vmcoreinfo(capture(kernel, workload, say=say))
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return Lab(taken, prog, FreeMemory(prog))


@pytest.fixture(scope="session", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Lab:
    """The ``fragment`` workload on a kernel."""
    return fragment_lab(request.param, say)


@dataclass(frozen=True)
class SlabLab:
    """A frozen guest whose slab objects remember who allocated them."""

    capture: Capture
    prog: Program
    depot: StackDepot | None  # none where the objects have the stacks themselves
    owners: SlabOwners


def slab_owners(
    prog: Program, depot: StackDepot | None, found: tuple[SlabFinder, Gaps] | None = None
) -> SlabOwners:
    """The allocated objects of every cache by their allocation track."""
    owners = SlabOwners(prog, SlabScan(prog, found), depot)
    for slabs in owners.scan:
        owners.take(slabs)
    return owners


@pytest.fixture(scope="session", params=KERNELS)
def slab_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> SlabLab:
    """The ``slab`` workload on a kernel."""
    taken = capture(request.param, "slab", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    depot = None if tracks_have_stacks(prog) else stack_depot(prog)
    return SlabLab(taken, prog, depot, slab_owners(prog, depot))


@dataclass(frozen=True)
class OwnerLab:
    """A frozen guest that knows who allocated each page."""

    capture: Capture
    prog: Program
    depot: StackDepot
    owners: PageOwner

    def said(self, path: str) -> tuple[str, str]:
        """The two readings of a file, earlier and later."""
        return (
            (self.capture.truth_a / path).read_text(),
            (self.capture.truth_b / path).read_text(),
        )


@pytest.fixture(scope="session")
def owner_lab(say: Callable[[str], None]) -> OwnerLab:
    """The ``owner`` workload on the kernel that has PAGE_OWNER."""
    taken = capture("owner", "owner", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return OwnerLab(taken, prog, stack_depot(prog), scan_page_owner(prog))


@dataclass(frozen=True)
class StructPagesLab:
    """A frozen guest whose huge pages and devices save struct pages, and what it said at stages."""

    capture: Capture
    prog: Program
    cost: StructPageCost

    def said(self, path: str) -> str:
        """The later reading of a file, or what was noted earlier under a name."""
        later = self.capture.truth_b / path
        return (later if later.exists() else self.capture.truth_a / path).read_text()


def struct_pages_lab(kernel: str, workload: str, say: Callable[[str], None]) -> StructPagesLab:
    taken = with_vmcoreinfo(capture(kernel, workload, say=say))
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return StructPagesLab(taken, prog, scan_struct_page_cost(prog))


@pytest.fixture(scope="session", params=KERNELS)
def vmemmap_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StructPagesLab:
    """The ``vmemmap`` workload on a kernel: HVO switched on while it runs, DAX, a DIMM."""
    return struct_pages_lab(request.param, "vmemmap", say)


@pytest.fixture(scope="session", params=KERNELS)
def dax_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StructPagesLab:
    """The ``dax`` workload on a kernel: NVDIMMs as fsdax and device-dax, of each kind."""
    return struct_pages_lab(request.param, "dax", say)


@pytest.fixture(scope="session", params=KERNELS)
def hvo_boot_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StructPagesLab:
    """The ``vmemmap_boot`` workload: pools of 2 MiB and 1 GiB filled at boot, with HVO on."""
    return struct_pages_lab(request.param, "vmemmap_boot", say)


@dataclass(frozen=True)
class RmapLab:
    """A frozen guest with expensive reverse maps."""

    capture: Capture
    prog: Program
    maps: ReverseMaps
    ksm: Ksm
    visits: KsmVisits


def _rmap_lab(taken: Capture) -> RmapLab:
    prog = open_target(taken.vmcore, [taken.vmlinux])
    maps = read_reverse_maps(prog)
    ksm = read_ksm(prog, maps.slots["stable_node"], maps.slots["rmap_item"])
    visits = ksm_visits(maps, ksm, prog["PAGE_SHIFT"].value_())
    return RmapLab(taken, prog, maps, ksm, visits)


@pytest.fixture(scope="session", params=KERNELS)
def rmap_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> RmapLab:
    """The ``rmap`` workload on a kernel."""
    return _rmap_lab(capture(request.param, "rmap", say=say))


@pytest.fixture(scope="session")
def stalled_lab(say: Callable[[str], None]) -> RmapLab:
    """The ``rmap_stall`` workload: frozen while tasks queue on an anon_vma's lock."""
    return _rmap_lab(capture(STANDS_ON, "rmap_stall", say=say))
