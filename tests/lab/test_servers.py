# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that wait for what no task of the machine holds: an NFS server that does not answer, a device
that is suspended, a VMA with a reference that was lost; in a frozen guest, against what its program
planted and /proc said of each.
"""

import re
from collections.abc import Callable

import machine
import pytest
from conftest import KERNELS
from drgn import Object
from drgn.helpers.linux.list import list_for_each_entry
from holders_lab import holders_capture
from waits_lab import WaitsLab

from mmscope.drgn.ledger.page_holders import page_holders_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.processes.kernel_stacks import function_names, kernel_frames
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.all_tasks import all_tasks
from mmscope.drgn.waits.task_stacks import RUNNING
from mmscope.drgn.waits.wait_tables import WaitRoot
from mmscope.drgn.waits.writeback import Limits, WritebackDevice, share_of_limit

pytestmark = [pytest.mark.any_config, pytest.mark.btf]

# programs/servers.c
OF_SERVER = ("n-sync", "n-truncate", "n-write", "n-look", "n-read")
OF_DEVICE = ("d-sync", "d-truncate", "d-write")
FIRST, LAST = ("dm-mod", "grace", "sunrpc", "lockd", "nfs_acl"), ("nfs", "nfsv3")
BETWEEN = {
    "5.10": ("fscache",),
    "6.1": ("netfs", "fscache"),
    "rt-6.12": ("crc16", "crc32c_generic", "mbcache", "jbd2", "ext4", "netfs"),
}
# VMAs are counted references to since 6.15; a module is built for x86 alone.
REFERENCES = {"7.2", "7.3"}
PAGES = 16  # that are dirty
NOT_WRITTEN = "pages on their way to it are not written yet"


class Servers(WaitsLab):
    """With roots by how they begin."""

    def root(self, begin: str) -> WaitRoot:
        (root,) = (each for name, each in self.roots.items() if name.startswith(begin))
        return root


@pytest.fixture(scope="module", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Servers:
    modules = (*FIRST, *BETWEEN.get(request.param, ("netfs",)), *LAST)
    built = machine.GUEST / "reference" if request.param in REFERENCES else None
    taken = holders_capture(request.param, say, "servers", modules, built)
    return Servers.of(taken, "servers")


def test_every_task_is_there_with_its_stack(lab: Servers) -> None:
    assert not lab.found.notes
    planted = [*OF_SERVER, *OF_DEVICE, *(["v-unmap"] if lab.capture.kernel in REFERENCES else [])]
    for comm in planted:
        row = lab.rows[comm]
        assert (row.pid, row.state) == (lab.numbers[comm], "D")
    lab.assert_stacks_as_printed(planted)


def test_a_process_that_ended_holds_no_page(lab: Servers) -> None:
    """The server that forked the one that stopped: its last block of fragments is free again."""
    found = page_holders_from_memory(Memory(open_target(lab.capture.vmcore, [])))
    assert not found.notes


def test_the_stack_of_every_task_is_that_of_proc(lab: Servers) -> None:
    """Of those that did not run since it was printed, without what the kernel leaves out."""
    prog = open_target(lab.capture.vmcore, [])
    left_out = [
        range(*(prog.symbol(f"__{name}_text_{end}").address for end in ("start", "end")))
        for name in ("sched", "lock")  # in_sched_functions() (kernel/sched/core.c)
    ]
    compared, tasks = 0, all_tasks(prog, Gaps())
    for at, address in enumerate(tasks.addresses.tolist()):
        task = Object(prog, "struct task_struct", address=address).address_of_()
        folders = lab.capture.truth_b.glob(f"proc/*/task/{task.pid.value_()}")
        if (folder := next(folders, None)) is None:
            continue  # it began since
        switches = re.findall(r"ctxt_switches:\t(\d+)", (folder / "status").read_text())
        if [*map(int, switches)] != [task.nvcsw.value_(), task.nivcsw.value_()]:
            continue  # it ran
        if task.exit_state or tasks.columns["state"][at] == RUNNING:
            continue  # of what has ended the kernel prints none; who printed runs
        printed = re.findall(r"\] ([\w.]+)\+0x", (folder / "stack").read_text())
        frames = kernel_frames(prog, task)
        inner = [not any(frame.pc in code for code in left_out) for frame in frames]
        assert [
            name for name, told in zip(function_names(frames), inner, strict=True) if told
        ] == printed
        compared += 1
    assert compared >= 0.9 * len(tasks.addresses)


def test_all_that_an_nfs_server_keeps_waiting_end_at_it(lab: Servers) -> None:
    rows, server = lab.rows, "nfs of labserver:/data at /tmp/nfs"
    for comm in ("n-sync", "n-truncate"):
        assert (rows[comm].kind, rows[comm].target) == ("writeback", "page 0 of /tmp/nfs/data")
    for comm in ("n-write", "n-read"):
        assert rows[comm].target == "i_rwsem of /tmp/nfs/data"
        assert rows[comm].holder_pid == lab.numbers["n-truncate"]
    assert (rows["n-look"].kind, rows["n-look"].target) == ("RPC", server)
    root = lab.root(server)
    assert (root.kind, root.waiters, root.circle) == ("device or server", len(OF_SERVER), False)
    assert root.why == f"requests to it are unanswered; {NOT_WRITTEN}"


def test_all_that_a_suspended_device_keeps_waiting_end_at_it(lab: Servers) -> None:
    rows = lab.rows
    for comm in ("d-sync", "d-truncate"):
        assert rows[comm].kind == "writeback"
        assert re.fullmatch(r"page \d+ of /tmp/slow/data", rows[comm].target or "")
    assert rows["d-write"].target == "i_rwsem of /tmp/slow/data"
    assert rows["d-write"].holder_pid == lab.numbers["d-truncate"]
    root = lab.root("ext4 of /tmp/dm at /tmp/slow")
    assert (root.kind, root.waiters) == ("device or server", len(OF_DEVICE))
    # 5.10 does not keep the types of modules.
    suspended = "" if lab.capture.kernel == "5.10" else "it is suspended, by the device mapper; "
    assert root.why == suspended + NOT_WRITTEN


def test_what_they_are_written_is_counted(lab: Servers) -> None:
    rows: list[WritebackDevice] = lab.found.by_name["writeback_devices"]
    server, device = ("nfs of labserver:/data", "ext4 of /tmp/dm")
    counts = {
        row.file_systems.partition(" at ")[0]: (row.writeback_pages, row.oldest_seconds or 0)
        for row in rows
    }
    for name, comm in ((server, "n-sync"), (device, "d-sync")):
        pages, oldest = counts[name]
        assert pages == PAGES
        waited, mounted = (lab.rows[each].seconds or 0 for each in (comm, "n-sync"))
        # It is of the file's first page that it waits, which it made dirty itself. The device has a
        # journal, too, and is mounted later than the server.
        assert waited - 2 < oldest < mounted + 2


def test_the_dirty_limit_is_what_vmstat_has(lab: Servers) -> None:
    rows: list[WritebackDevice] = lab.found.by_name["writeback_devices"]
    text = (lab.capture.truth_a / "proc/vmstat").read_text()
    printed = int(re.findall(r"nr_dirty_threshold (\d+)", text)[0])
    # It was printed a moment before the guest was frozen.
    assert all(row.limit_pages == pytest.approx(printed, rel=0.05) for row in rows)


def test_a_devices_share_of_it_is_what_debugfs_has(lab: Servers) -> None:
    """Of each whose part in what was written is of the current period, where kernels agree."""
    prog = open_target(lab.capture.vmcore, [])
    period, known = prog["global_wb_domain"].completions.period, {}
    for bdi in list_for_each_entry(
        "struct backing_dev_info", prog["bdi_list"].address_of_(), "bdi_list"
    ):
        name = bdi.dev_name.string_().decode()
        path = lab.capture.truth_b / f"sys/kernel/debug/bdi/{name}/stats"
        text = path.read_text() if path.exists() else ""
        if not text:
            continue  # it was made after the others were recorded
        page = prog["PAGE_SIZE"].value_() >> 10
        said = {key: int(kb) // page for key, kb in re.findall(r"(\w+): +(\d+) kB\n", text)}
        dirty = said["BdiReclaimable"] + said["BdiWriteback"]
        share = share_of_limit(bdi.wb.address_of_(), Limits(said["DirtyThresh"], dirty))
        if share is not None:
            assert share == said["BdiDirtyThresh"], text
            known[name] = share
    device = f"253:{lab.numbers['dm']}"
    (row,) = (each for each in lab.found.by_name["writeback_devices"] if each.device == device)
    # Unless a period has begun since.
    if row.share_pages is not None:
        assert known[device] > 0
    else:
        assert period.value_() and device not in known


def test_a_reference_that_was_lost_has_no_holder(lab: Servers) -> None:
    if lab.capture.kernel not in REFERENCES:
        assert not any(root.no_holder for root in lab.roots.values())
        return
    unmaps, maps = lab.rows["v-unmap"], lab.rows["v-map"]
    pid = lab.numbers["v-unmap"]
    assert unmaps.kind == "VMA lock, to write"
    assert re.fullmatch(rf"VMA 0x\w+-0x\w+ of v-unmap \({pid}\)", unmaps.target or "")
    assert (maps.target, maps.holder_pid) == (f"mmap_lock of v-unmap ({pid})", pid)
    (root,) = (each for each in lab.roots.values() if each.no_holder)
    assert (root.root, root.waiters) == (unmaps.target, 2)
    assert re.fullmatch(
        r"1 reference, and none of \d+ tasks has the VMA on its stack: lost, or kept by what is no "
        "task",
        root.why or "",
    )
