# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about tasks that wait."""

from finding_cases.case import Case
from finding_cases.cgroups import cgroup
from finding_cases.ledger import swapped

from mmscope.drgn.waits.fuse import FuseConnection
from mmscope.drgn.waits.reclaim_threads import OomVictim, ReclaimThread
from mmscope.drgn.waits.reclaiming import AS_ASKED
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.drgn.waits.writeback import WritebackDevice

STACK = "entry_SYSCALL_64_after_hwframe;do_syscall_64;ksys_write;handle_mm_fault;handle_userfault"


def _asleep(thread: int, seconds: float, where: str | None = "vm_mmap_pgoff") -> TaskWait:
    return TaskWait(thread, "java", None, "D", seconds, *[None] * 8, where, process=300)


def _root(seconds: float | None, **other: object) -> WaitRoot:
    values = {
        "root": "writer (321)",
        "kind": "task",
        "pid": 321,
        "comm": "writer",
        "circle": False,
        "by_last_reader": False,
        "waiters": 214,
        "unsure_waiters": 0,
        "longest_seconds": seconds,
        "lock": "mmap_lock of writer (321)",
        "lock_waiters": 213,
        "seconds": 48.0,
        "doing": "faults",
        "no_holder": False,
        "why": None,
        "stack": STACK,
    }
    return WaitRoot(**(values | other))


def _victim(state: str, seconds: float | None, reaped: bool | None = False) -> OomVictim:
    return OomVictim(
        *(3121, "java", "/shop", state, seconds, reaped, "exits", "rwsem, to read"),
        *("mmap_lock of java (3121)", 3122, "java", None),
    )


def _connection(longest: float = 31.0, tasks: int = 4, **other: object) -> FuseConnection:
    values = {
        "device": "0:51",
        "file_system": "fuse.sshfs of box: at /mnt (0:51)",
        "waiting": 6,
        "unread": 1,
        "in_hand": 5,
        "requests": "4 READ, 2 LOOKUP",
        "server_pid": 812,
        "server_comm": "sshfs",
        "server_state": "T",
        "server_doing": "is stopped",
        "tasks": tasks,
        "longest_seconds": longest,
    }
    return FuseConnection(**(values | other))


def _device(oldest: float | None, waiting: int = 0) -> WritebackDevice:
    name = "nfs of srv:/data at /data (0:45)"
    return WritebackDevice("0:45", None, name, 25600, 256, 90000, 64000, 10, True, oldest, waiting)


def _reclaims(
    pid: int, target: str, priority: int, freed: int, doing: str = "reclaims"
) -> TaskWait:
    own = (pid, "hog", None, "D", 0.1, doing, *(None,) * 7)
    return TaskWait(*own, STACK, target, "all", 0, priority, freed, 32)


def _kswapd(priority: int | None = None, freed: int | None = None) -> ReclaimThread:
    own = (80, "kswapd0", 0, "R", 0, 3, "reclaims", None, "all")
    return ReclaimThread(*own, priority, freed)


FOUND = {
    "a victim that waits for a lock": Case(
        "oom-victim-stays",
        [_victim("D", 48.2)],
        [
            "java (3121) was chosen by the OOM killer and is still there",
            "it has waited 48 s for mmap_lock of java (3121)",
            "java (3122) holds what it waits for. Its memory was not freed",
        ],
        severity="warning",
    ),
    "a server that takes nothing": Case(
        "dirty-files-stay",
        [_device(900.4, 12)],
        [
            "nfs of srv:/data at /data (0:45): a file has been dirty for 900 s,",
            "12 tasks are throttled",
        ],
        severity="warning",
    ),
    "a device that nobody waits for": Case(
        "dirty-files-stay", [_device(301.0)], ["100 MiB are dirty, 1 MiB under writeback"]
    ),
    "tasks that find nothing to reclaim in a cgroup": Case(
        "reclaim-gets-nowhere",
        [
            *(_reclaims(300, "/shop", 3, 2), _reclaims(301, "/shop", 0, 0), _kswapd()),
            *(_reclaims(302, "/shop", 12, 0), cgroup(cgroup="/shop", usage_bytes=64 << 20)),
        ],
        [
            "2 tasks reclaim memory of /shop and get nowhere: 2 pages freed of the 64 wanted",
            "hog (301) is at priority 0, the last: reclaim begins at 12 and counts down",
            "at memory.high a sleep of up to 2 s",
        ],
        severity="warning",
    ),
    "a task that finds nothing anywhere": Case(
        "reclaim-gets-nowhere",
        [_reclaims(300, "/", 1, 1), _kswapd(12, 0)],
        [
            "hog (300) reclaims memory and gets nowhere: 1 page freed of the 32 wanted",
            "priority 1:",
        ],
    ),
    "kswapd, before it gives up": Case(
        "reclaim-gets-nowhere",
        [_kswapd(2, 0), _reclaims(80, "/", 2, 0)],
        [
            "kswapd0 reclaims on node 0 and gets nowhere: 0 pages freed",
            "kswapd freed nothing in its last 3 runs; it gives up after 16.",
        ],
        severity="notice",
    ),
    "threads that have slept long, by text": Case(
        "tasks-stuck",
        [_asleep(301, 48.2), _asleep(302, 12.0), _asleep(303, 2.0), swapped(300, "java", 0)],
        [
            "2 tasks of java (pid 300) sleep in D state, the longest for 48 s",
            "asleep in vm_mmap_pgoff",
        ],
        severity="warning",
    ),
    "a thread that sleeps where nobody may see": Case(
        "tasks-stuck",
        [_asleep(300, 130.0, None), swapped(300, "java", 0)],
        ["1 task of java (pid 300) sleeps in D state for 2 min"],
        severity="notice",
    ),
    "a queue behind one task": Case(
        "tasks-wait-behind-one",
        [_root(48.2)],
        [
            "214 tasks wait for writer (321), which faults, 213 of them through mmap_lock of ",
            "end of the chain and faults, for 48 s at most. It waits for no task",
        ],
        severity="warning",
    ),
    "one task behind another": Case(
        "tasks-wait-behind-one",
        [_root(16.2, waiters=1, lock="cgroup_mutex", lock_waiters=1, doing=None)],
        ["1 task waits for writer (321), through cgroup_mutex, for 16 s"],
    ),
    "a queue for longer than the kernel calls hung": Case(
        "tasks-wait-behind-one", [_root(121.0)], ["for 121 s"], severity="critical"
    ),
    "a task that waits for what has no holder": Case(
        "tasks-wait-behind-one",
        [_root(48.0, root="ext4 of /dev/sdb at /data, frozen", kind="percpu rwsem")],
        [
            "213 tasks wait for mmap_lock of writer (321), behind writer (321), which has itself "
            "waited 48 s for ext4 of /dev/sdb at /data, frozen, the longest for 48 s",
            "it waits for ext4 of /dev/sdb",
        ],
    ),
    "a chain of several locks": Case(
        "tasks-wait-behind-one",
        [_root(48.0, root="nfs of srv:/data (0:45)", kind="dirty pages", lock_waiters=200)],
        [
            "213 tasks wait behind writer (321), 200 of them for mmap_lock of writer (321), which "
            "has itself waited 48 s for nfs of srv:/data (0:45), the longest for 48 s",
        ],
    ),
    "a FUSE server that is stopped": Case(
        "fuse-server-silent",
        [_connection()],
        [
            "fuse.sshfs of box: at /mnt (0:51): 4 tasks wait for its server, sshfs (812), which is "
            "stopped, the longest for 31 s",
            "6 requests have no answer: 4 READ, 2 LOOKUP; the server has read 5 and not 1",
        ],
        severity="warning",
    ),
    "a server that sleeps itself": Case(
        "fuse-server-silent",
        [_connection(server_state="D", server_doing="waits for an NFS server", longest=130.0)],
        ["It sleeps itself and takes no signal: it waits for an NFS server."],
        severity="critical",
    ),
    "a server outside of the machine": Case(
        "fuse-server-silent",
        [_connection(server_pid=None, server_comm=None, server_state=None)],
        ["4 tasks wait for its server, the longest for 31 s", "the server of virtiofs is outside"],
    ),
    "a lock that no task holds": Case(
        "lock-without-holder",
        [
            _root(
                9.0,
                root="mutex_of_a_driver",
                kind="mutex",
                pid=None,
                comm=None,
                waiters=3,
                no_holder=True,
                why="free, though the 3 tasks in its queue sleep: one should have been woken",
            )
        ],
        [
            "3 tasks wait for mutex_of_a_driver, which no task holds, the longest for 9 s",
            "(mutex) is free",
        ],
        severity="critical",
    ),
    "a lock of which no holder is noted": Case(
        "tasks-wait-behind-one",
        [
            _root(
                30.0,
                root="anon_vma 0xffff88",
                pid=None,
                comm=None,
                waiters=1,
                lock="anon_vma 0xffff88",
                lock_waiters=1,
                doing=None,
                why="1 reader",
            )
        ],
        ["1 task waits for anon_vma 0xffff88, for 30 s", "of anon_vma 0xffff88: 1 reader."],
    ),
    "a last reader, which may have gone": Case(
        "tasks-wait-behind-one",
        [_root(48.2, by_last_reader=True, unsure_waiters=214)],
        ["214 tasks wait for writer (321) or another reader", "may have released the lock."],
        severity="warning",
    ),
    "some that may wait for another reader": Case(
        "tasks-wait-behind-one",
        [_root(48.2, by_last_reader=True, unsure_waiters=2)],
        ["214 tasks wait for writer (321), which", "The chain of 2 of the waiters includes a"],
    ),
    "what is a circle if the last reader is still there": Case(
        "tasks-wait-behind-one",
        [_root(12.0, circle=True, by_last_reader=True, waiters=2, unsure_waiters=2)],
        ["if the last reader of one of the locks still has it"],
        severity="warning",
    ),
    "a circle": Case(
        "tasks-wait-behind-one",
        [_root(2.0, circle=True, waiters=2)],
        ["a deadlock"],
        severity="critical",
    ),
}
CLEAR = {
    "a parent whose child has its memory, and a disk": Case(
        "tasks-stuck",
        [
            *(_asleep(300, 900.0, "wait_for_vfork_done"), _asleep(301, 0.2, "folio_wait_bit")),
            swapped(300, "java", 0),
        ],
    ),
    "reclaim that has only begun, or frees": Case(
        "reclaim-gets-nowhere",
        [_reclaims(300, "/", 4, 0), _reclaims(301, "/", 1, 64), _kswapd(1, 32)],
    ),
    "a cgroup so small that an eighth of it is little": Case(
        "reclaim-gets-nowhere",
        [_reclaims(300, "/shop", 2, 0), cgroup(cgroup="/shop", usage_bytes=1 << 20), _kswapd()],
    ),
    "reclaim that somebody asked for": Case(
        "reclaim-gets-nowhere", [_reclaims(300, "/", 0, 0, AS_ASKED), _kswapd()]
    ),
    "victims that go": Case("oom-victim-stays", [_victim("D", 0.2), _victim("R", 60.0)]),
    "a server that answers": Case("fuse-server-silent", [_connection(longest=0.3)]),
    "files that are soon written": Case("dirty-files-stay", [_device(34.0, 3)]),
    "a moment's circle over a last reader": Case(
        "tasks-wait-behind-one",
        [_root(2.0, circle=True, by_last_reader=True, waiters=2, unsure_waiters=2)],
    ),
    "a lock that is handed over": Case(
        "lock-without-holder", [_root(9.0, why="free by now: a task may be handing it over")]
    ),
    "locks that are waited for a moment": Case("tasks-wait-behind-one", [_root(0.4)]),
}
NOT_CHECKED = {
    "threads that were not looked at": Case(
        "tasks-stuck", [swapped(300, "java", 0)], why_not="no table task_waits in this bundle"
    ),
    "text does not say whom the OOM killer chose": Case(
        "oom-victim-stays", [], why_not="no table oom_victims in this bundle"
    ),
    "text does not say what reclaim scans": Case(
        "reclaim-gets-nowhere", [], why_not="no table reclaim_threads in this bundle"
    ),
    "text does not say since when files are dirty": Case(
        "dirty-files-stay", [], why_not="no table writeback_devices in this bundle"
    ),
    "text does not say what FUSE servers owe": Case(
        "fuse-server-silent", [], why_not="no table fuse_connections in this bundle"
    ),
    "since when is not known": Case(
        "tasks-wait-behind-one",
        [_root(None)],
        why_not="wait_roots.longest_seconds is unknown in this bundle",
    ),
    "text has no locks": Case(
        "lock-without-holder", [], why_not="no table wait_roots in this bundle"
    ),
    "text does not say who waits for whom": Case(
        "tasks-wait-behind-one", [], why_not="no table wait_roots in this bundle"
    ),
}
