# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who waits for whom: on a running kernel, where a page that nobody fills in keeps a writer in its
file's lock and another in its pipe's, and others queue behind them; where a fault on a file of a
frozen file system keeps its VMA, or its mmap_lock, from those that unmap; and in a vmcore, on an
anon_vma's lock.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import LIVES_ON, RmapLab
from drgn import Object
from shared_guest import InGuest

from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.rmap import anon_vmas
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits import no_holder
from mmscope.drgn.waits.no_holder import NoHolder
from mmscope.drgn.waits.stacks import Shared, stack_from
from mmscope.drgn.waits.task_stacks import TaskStacks
from mmscope.drgn.waits.task_waits import from_memory
from mmscope.drgn.waits.wait_chains import Waits
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.drgn.waits.waiters import Awaited, awaited
from mmscope.reports.bundle.bundle import Bundle

# Every task's stack is read behind the command, as a task in D state does not move.
PROGRAM = """
import ctypes, fcntl, json, mmap, os, shutil, struct, sys, tempfile, threading, time
from pathlib import Path
from mmscope.reports.commands.command import main

libc = ctypes.CDLL(None, use_errno=True)
USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
# What is written while the disk's file system is frozen; a folder in what is mounted, as mkdir() of
# one that is there waits for the file system above it.
MOUNTED, SHM = "/tmp/shm", "/tmp/shm/out"
sys.dont_write_bytecode = True
tempfile.tempdir = SHM
Path(MOUNTED).mkdir()
assert libc.mount(b"shm", MOUNTED.encode(), b"tmpfs", 0, None) == 0
Path(SHM).mkdir()


def never_filled():
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(fd, UFFDIO_API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    at = libc.mmap(None, 65536, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fcntl.ioctl(fd, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", at, 65536, 1, 0)))
    return at


def child(name, work):
    pid = os.fork()
    if not pid:
        Path("/proc/self/comm").write_text(name)
        try:
            work()
        finally:
            os._exit(1)
    return pid


def writes(fd, filled):
    at = ctypes.addressof(ctypes.create_string_buffer(4096)) if filled else never_filled()
    assert libc.write(fd, at, 4096) > 0


def in_turn(names, works):
    # A process whose threads do their work one after the other, when a byte comes.
    ends = [os.pipe() for _ in works]

    def one(name, work, end):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        os.read(end, 1)
        work()

    def all_of_them():
        for name, work, (end, _) in zip(names, works, ends):
            threading.Thread(target=one, args=(name, work, end)).start()
        while True:
            time.sleep(1)

    pid = child("mapper", all_of_them)
    return pid, [end for _, end in ends]


mapped = os.open("/tmp/mapped", os.O_RDWR | os.O_CREAT)
os.pwrite(mapped, bytes(65536), 0)
os.fsync(mapped)
area = libc.mmap(None, 65536, 3, mmap.MAP_SHARED, mapped, 0)
ctypes.string_at(area, 65536)  # read, so that the write is a fault on a page that is there
names = ["faulter", "unmapper", "third", "fourth"]
pid, turns = in_turn(
    names,
    [
        lambda: libc.memset(area, 1, 1),
        lambda: libc.munmap(area, 65536),
        lambda: libc.mmap(None, 65536, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0),
        lambda: libc.mmap(None, 65536, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0),
    ],
)
threads = {}
while len(threads) < 4:
    for path in Path(f"/proc/{pid}/task").iterdir():
        if (comm := (path / "comm").read_text().strip()) in names:
            threads[comm] = int(path.name)
    time.sleep(0.1)
_, pipe = os.pipe()
known = {"file": [], "pipe": []}
root = os.open("/", os.O_RDONLY)
fcntl.ioctl(root, FIFREEZE, 0)
# Should anything here write to it after all, the programs behind this one go on.
thaw = threading.Timer(600, fcntl.ioctl, (root, FITHAW, 0))
thaw.daemon = True
thaw.start()
try:
    for turn in turns:
        os.write(turn, b"x")
        time.sleep(1)
    for name in known:
        for number in range(4):
            # An open file each: who shares one waits for its position.
            fd = os.open(f"{SHM}/wanted", os.O_RDWR | os.O_CREAT) if name == "file" else pipe
            known[name].append(child(f"{name}{number}", lambda: writes(fd, number)))
            time.sleep(1)
    code = main(["collect", "--only", "task_waits", "-o", f"{SHM}/bundle"])
    stacks = {}
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/stack"):
        try:
            stacks[path.parent.name] = path.read_text()
        except OSError:
            pass
finally:
    thaw.cancel()
    fcntl.ioctl(root, FITHAW, 0)
shutil.copytree(f"{SHM}/bundle", "/out/waits/bundle")
# The disk is unmounted behind this program.
assert libc.umount2(MOUNTED.encode(), 2) == 0
Path("/out/waits/known.json").write_text(json.dumps(known | {"mapper": pid, "threads": threads}))
Path("/out/waits/code").write_text(str(code))
Path("/out/waits/stacks.json").write_text(json.dumps(stacks))
"""

IN_GUEST = InGuest("waits", LIVES_ON, 8, PROGRAM)
# What /proc/PID/stack leaves out: functions of the scheduler's section (__sched), locks' included.
SCHEDULER = re.compile(
    r"^(__|preempt_|io_)?schedule(_\w+)?$|^__mutex_lock|^rwsem_down|^down_|^(__)?percpu_"
)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def waits(out: Path) -> dict[int, TaskWait]:
    """The rows by pid."""
    assert (out / "code").read_text() == "0", Bundle(out / "bundle").sections
    rows = Bundle(out / "bundle").rows("task_waits")
    return {row["pid"]: TaskWait(**row) for row in rows}


def test_those_that_queue_have_the_one_that_holds(out: Path, waits: dict[int, TaskWait]) -> None:
    known = json.loads((out / "known.json").read_text())
    for name, kind, does in (
        ("file", "rwsem, to write", None),
        ("pipe", "mutex", None),
    ):
        first, *others = known[name]
        for place, pid in enumerate(others, 1):
            row = waits[pid]
            assert (row.comm, row.state, row.kind) == (f"{name}{place}", "D", kind)
            assert (row.holder_pid, row.holder_comm) == (first, f"{name}0")
            assert row.doing is does
        # They began a second apart, the first of these when the one that holds it had waited.
        times = [waits[pid].seconds or 0 for pid in others]
        assert times == sorted(times, reverse=True) and min(times) > 0.5


def test_what_is_waited_for_has_its_name(out: Path, waits: dict[int, TaskWait]) -> None:
    known = json.loads((out / "known.json").read_text())
    targets = {waits[pid].target for pid in known["file"][1:]}
    (target,) = targets
    assert re.fullmatch(r"i_rwsem of .*/shm/out/wanted", target or "")
    assert len({waits[pid].target for pid in known["pipe"][1:]}) == 1


def test_the_chains_end_at_those_that_hold(out: Path) -> None:
    known = json.loads((out / "known.json").read_text())
    roots = {row["pid"]: WaitRoot(**row) for row in Bundle(out / "bundle").rows("wait_roots")}
    for name in ("file", "pipe"):
        root = roots[known[name][0]]
        assert root.root == f"{name}0 ({root.pid})"
        assert (root.waiters, root.circle) == (3, False)
        assert root.doing == "waits for a page of userfaultfd"
        assert "handle_userfault" in (root.stack or "")


def test_a_fault_that_holds_its_vma_or_mmap_lock_is_at_the_end(
    out: Path, waits: dict[int, TaskWait]
) -> None:
    known = json.loads((out / "known.json").read_text())
    threads = {comm: waits[pid] for comm, pid in known["threads"].items() if pid in waits}
    mm = f"mmap_lock of mapper ({known['mapper']})"
    faulter, unmapper = threads["faulter"], threads["unmapper"]
    assert faulter.kind == "percpu rwsem" and re.search("ext4 .*, frozen", faulter.target or "")
    assert (unmapper.holder_pid, unmapper.holder_is) == (faulter.pid, "reader, in a fault")
    own = re.fullmatch(r"VMA 0x\w+-0x\w+ of mapper \(\d+\)", unmapper.target or "")
    assert own or unmapper.target == mm
    # VMAs have locks of their own since 6.4. Before, a thread whose turn it is may fault, and wait
    # to read, before it maps; and the next then waits for Python's own lock, which that one has.
    others = [threads[comm] for comm in ("third", "fourth") if own or comm in threads]
    assert others
    for each in others:
        assert each.target == mm
        assert each.kind == "rwsem, to write" or (not own and each.kind == "rwsem, to read")
        holder = (unmapper.pid, "writer") if own else (faulter.pid, "reader, in a fault")
        assert (each.holder_pid, each.holder_is) == holder


def test_the_frozen_file_system_is_what_they_wait_for(
    out: Path, waits: dict[int, TaskWait]
) -> None:
    known = json.loads((out / "known.json").read_text())
    rows = Bundle(out / "bundle").rows("wait_roots")
    (root,) = (WaitRoot(**row) for row in rows if row["kind"] == "percpu rwsem")
    assert root.root.endswith(", frozen") and root.pid == known["threads"]["faulter"]
    queued = len(waits.keys() & set(known["threads"].values()))
    assert (root.waiters, root.circle, root.no_holder) == (queued, False, False)
    assert root.lock == f"mmap_lock of mapper ({known['mapper']})" and root.lock_waiters >= 2


def test_stacks_are_those_of_proc(out: Path, waits: dict[int, TaskWait]) -> None:
    printed = json.loads((out / "stacks.json").read_text())
    compared = 0
    for pid, row in waits.items():
        if row.state != "D" or str(pid) not in printed or row.stack is None:
            continue
        names = re.findall(r"\] ([\w.]+)\+0x", printed[str(pid)])
        own = [name for name in row.stack.split(";")[::-1] if not SCHEDULER.match(name)]
        told = [name for name in names if not SCHEDULER.match(name)]
        assert own == told, (row.comm, printed[str(pid)])
        compared += 1
    assert compared >= 6


def test_no_healthy_task_is_a_root(out: Path) -> None:
    known = json.loads((out / "known.json").read_text())
    holders = {known[name][0] for name in ("file", "pipe")}
    for row in Bundle(out / "bundle").rows("wait_roots"):
        assert row["pid"] in holders or not row["circle"]


def test_who_is_queued_in_a_vmcore(stalled_lab: RmapLab) -> None:
    """As the lock's own list has it."""
    found = from_memory(Memory(stalled_lab.prog))
    assert found.notes == []
    rows = {row.pid: row for row in found.by_name["task_waits"]}
    locks, queued, _ = anon_vmas.anon_vma_locks(stalled_lab.prog, stalled_lab.maps)
    asleep = [waiter for waiter in queued if waiter.pid in rows and rows[waiter.pid].state == "D"]
    assert asleep
    for waiter in asleep:
        row = rows[waiter.pid]
        (lock,) = (each for each in locks if each.root == waiter.root)
        assert row.kind == f"rwsem, to {waiter.wants}" and row.doing == "changes mappings"
        assert row.target == f"anon_vma {waiter.root}"
        assert (row.holder_pid, row.holder_is) == (lock.owner_pid, lock.owner_is)
        assert row.stack == waiter.stack
    walker = next(row for row in rows.values() if row.comm == "walker")
    assert walker.doing == "migrates pages"


def test_a_damaged_css_set_costs_a_name_and_no_row(stalled_lab: RmapLab) -> None:
    whole, _ = Waits(Memory(stalled_lab.prog), Gaps()).rows()
    damaged = Waits(Memory(stalled_lab.prog), Gaps())
    lost = whole[0].pid
    assert whole[0].cgroup
    columns = damaged.stacks.tasks.columns
    columns["cgroups"][columns["pid"] == lost] = 0xDEAD << 48
    rows, _ = damaged.rows()
    assert [replace(row, cgroup=None) for row in rows] == [replace(r, cgroup=None) for r in whole]
    assert [row.pid for row in rows if row.cgroup is None] == [lost]


def test_a_free_lock_has_no_holder_only_where_all_was_looked_at(stalled_lab: RmapLab) -> None:
    stacks = TaskStacks(Memory(stalled_lab.prog), Gaps())
    no_holder, state = NoHolder(stacks), stacks.tasks.columns["state"]
    asleep = frozenset(stacks.tasks.addresses[state != 0][:2].tolist())
    runs = int(stacks.tasks.addresses[state == 0][0])
    lock = Awaited("mutex", 8, is_free=True, queue=asleep)
    assert no_holder.why(lock, asleep, []) == (
        "free, though the 2 tasks in its queue sleep: one should have been woken",
        True,
    )
    (_, none) = no_holder.why(lock, {min(asleep)}, [])
    assert not none  # the other was woken, or is not known
    stacks.frames[runs] = ["mutex_unlock", "vfs_write"]
    handed_over = ("free by now: a task may be handing it over", False)
    assert no_holder.why(lock, asleep, []) == handed_over
    stacks.frames[runs] = ["vfs_write"]
    assert no_holder.why(lock, asleep, [])[1]
    stacks.left_out = 1
    assert not no_holder.why(lock, asleep, [])[1]


def test_on_a_live_kernel_what_has_no_holder_is_looked_at_twice(
    stalled_lab: RmapLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_holder, "AGAIN_SECONDS", 0.0)
    waits = Waits(Memory(stalled_lab.prog), Gaps())
    stacks, lasts = waits.stacks, waits.no_holder.lasts
    known = {row.pid for row in waits.rows()[0] if (row.kind or "").startswith("rwsem")}
    task = next(each for each in stacks.places if stacks.named(each)[0] in known)
    pointer = stacks.pointers[task]
    stack = stack_from(Object(stalled_lab.prog, "struct task_struct *", task), pointer, Shared())
    assert stack
    found = awaited(stack, stacks.frames[task])
    assert found and found.queue and lasts(found)
    assert not lasts(replace(found, is_free=not found.is_free))
    assert not lasts(replace(found, readers=found.readers + 1))
    stacks.tasks.columns["switches"][stacks.places[task]] -= 1
    assert not lasts(found)


def test_a_reference_is_lost_only_where_no_stack_has_the_vma(stalled_lab: RmapLab) -> None:
    stacks = TaskStacks(Memory(stalled_lab.prog), Gaps())
    why = NoHolder(stacks).why
    for place in stacks.places:
        stacks.stack_of(place)
        task = Object(stalled_lab.prog, "struct task_struct", address=place).address_of_()
        # One that an interrupt had stopped is on another stack than its own.
        if stack := stack_from(task, stacks.pointers.get(place, 0), Shared()):
            walker = place
            break
    assert stack
    word = next(int(each) for each in stack.words if each >> 56 == 0xFF)
    (words, lost) = why(Awaited("VMA lock, to write", word, readers=1), [], [])
    assert not lost and "1 reference; on the stack of" in words
    (words, lost) = why(Awaited("VMA lock, to write", 0xFF << 56 | 7, readers=2), [], [])
    assert lost and words.startswith("2 references, and none of ")
    stacks.tasks.columns["state"][stacks.places[walker]] = 0
    stacks.frames[walker] = []
    assert "is not known" in why(Awaited("VMA lock, to write", 1, readers=2), [], [])[0]
