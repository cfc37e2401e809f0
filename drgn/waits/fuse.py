# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Requests that a FUSE server has not answered (``struct fuse_req``), by connection.

A super block of FUSE has a ``struct fuse_mount``, and with it the ``struct fuse_conn``, on whose
lists each request is until it is answered: until the server reads it, and until it replies to what
it read (fs/fuse/dev.c). Who serves is known by the tasks that wait for the next request, and else
by who has the device open, which is looked up only where a task waits for an answer: that is a walk
over the open files of all processes. Costs a read for each request, and 4 KiB for each open device.

Cannot know: requests that are in rings of io_uring (since v6.14), which are counted and no more;
which thread of a server has a request in hand; virtiofs' server, which is outside of the machine.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from drgn import Object, Program, offsetof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.filesystems.super_blocks import SuperBlocks
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.kernel_names import disk_numbers
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import MOMENT, table
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS

TYPES = ("fuse", "fuseblk", "virtiofs")
MAX_REQUESTS = 1 << 14
HASHES = 256  # FUSE_PQ_HASH_SIZE (fs/fuse/fuse_dev_i.h)
# enum fuse_opcode (include/uapi/linux/fuse.h), from 1 on
OPCODES = (
    *("LOOKUP", "FORGET", "GETATTR", "SETATTR", "READLINK", "SYMLINK", "7", "MKNOD", "MKDIR"),
    *("UNLINK", "RMDIR", "RENAME", "LINK", "OPEN", "READ", "WRITE", "STATFS", "RELEASE", "19"),
    *("FSYNC", "SETXATTR", "GETXATTR", "LISTXATTR", "REMOVEXATTR", "FLUSH", "INIT", "OPENDIR"),
    *("READDIR", "RELEASEDIR", "FSYNCDIR", "GETLK", "SETLK", "SETLKW", "ACCESS", "CREATE"),
    *("INTERRUPT", "BMAP", "DESTROY", "IOCTL", "POLL", "NOTIFY_REPLY", "BATCH_FORGET"),
    *("FALLOCATE", "READDIRPLUS", "RENAME2", "LSEEK", "COPY_FILE_RANGE", "SETUPMAPPING"),
    *("REMOVEMAPPING", "SYNCFS", "TMPFILE", "STATX"),
)
SERVER = "FUSE server"
# pid and comm of a server, its state, and what it does.
Server = tuple[int | None, str | None, str | None, str | None]


@table(
    "fuse_connections",
    "FUSE servers with unanswered requests",
    measure="waiting",
    empty="No FUSE file system had an unanswered request.",
    not_compared=MOMENT,
)
class FuseConnection:
    """A FUSE file system with requests that its server has not answered."""

    device: str = column(
        holds="kernel",
        key=True,
        help="major:minor; in /sys/fs/fuse/connections: major * 1048576 + minor",
    )
    file_system: str = column(holds="file", help="type, from where, and where mounted")
    waiting: int = column(
        unit="requests", high=MOST, help="unanswered: 'waiting' in that directory"
    )
    unread: int = column(unit="requests", help="not yet read by the server")
    in_hand: int = column(unit="requests", help="read, unanswered")
    requests: str = column(holds="words", help="by opcode, most first")
    server_pid: int | None = column(
        high=MOST_PIDS,
        help="process that serves; empty: unknown",
    )
    server_comm: str | None = column(holds="comm", help="name of the server")
    server_state: str | None = column(
        holds="words", help="of its first thread: R, S, D, T: stopped, X: dead"
    )
    server_doing: str | None = column(holds="words", help="its part of memory management")
    tasks: int = column(unit="tasks", help="that wait for an answer or a page")
    longest_seconds: float | None = column(
        unit="seconds", high=MOST_SECONDS, help="longest wait among them"
    )


@dataclass(frozen=True, slots=True)
class Request:
    """
    A request without an answer.

    :ivar pid: of the thread that asks, in the namespace of who mounted; 0: the kernel's own.
    :ivar pages: of the file, that READ and WRITE are about: in bytes.
    """

    opcode: str
    node: int
    pid: int
    read: bool  # by the server
    pages: range


@dataclass(frozen=True, slots=True)
class Connection:
    """
    A connection with requests.

    :ivar place: of its super block among all; :ivar devices: ``struct fuse_dev`` of it.
    :ivar idle: tasks that wait to read a request.
    """

    conn: Object
    place: int
    waiting: int
    requests: list[Request]
    devices: set[int]
    idle: list[int]


def connections(prog: Program, supers: SuperBlocks) -> tuple[dict[int, Connection], int]:
    """
    Connections with unanswered requests, by the address of their ``struct fuse_conn``, and how many
    file systems' could not be read.

    :raises LookupError: the kernel's layout is unknown.
    """
    found: dict[int, Connection] = {}
    unread = 0
    for at in [at for at, type_ in enumerate(supers.types) if type_ in TYPES]:
        try:
            sb = Object(prog, "struct super_block", address=int(supers.address[at]))
            conn = Object(prog, "struct fuse_mount *", sb.s_fs_info.value_()).fc.read_()
            if conn.value_() not in found and (waiting := _channel(conn).num_waiting.counter):
                found[conn.value_()] = _connection(prog, conn, at, waiting.value_())
        except TORN:
            unread += 1
    return found, unread


def _channel(conn: Object) -> Object:
    """Owner of the lists: in 7.2 a ``struct fuse_chan``, before the connection itself."""
    return conn.chan if hasattr(conn, "chan") else conn


def _connection(prog: Program, conn: Object, at: int, waiting: int) -> Connection:
    channel = _channel(conn)
    unread = [channel.iq.pending, channel.bg_queue]
    devices = list(
        itertools.islice(
            list_for_each_entry("struct fuse_dev", channel.devices.address_of_(), "entry"), HASHES
        )
    )
    in_hand = [head for device in devices for head in _lists(prog, device.pq)]
    requests = [
        *(_request(request, read=False) for request in _entries(unread)),
        *(_request(request, read=True) for request in _entries(in_hand)),
    ]
    queue = channel.iq.waitq.head.address_of_()
    waiters = list_for_each_entry("struct wait_queue_entry", queue, "entry")
    idle = [each.private.value_() for each in itertools.islice(waiters, MAX_REQUESTS)]
    return Connection(conn, at, waiting, requests, {each.value_() for each in devices}, idle)


def _lists(prog: Program, queue: Object) -> Iterator[Object]:
    """The lists of a ``struct fuse_pqueue`` that are not empty."""
    yield queue.io
    heads, start = queue.processing.read_(), queue.processing.value_()
    words = np.frombuffer(prog.read(start, HASHES * 16), "<u8")[::2]
    own = np.uint64(start) + np.arange(HASHES, dtype=np.uint64) * np.uint64(16)
    for at in np.flatnonzero(words != own).tolist():
        yield heads[at]


def _entries(heads: Iterable[Object]) -> Iterator[Object]:
    every = itertools.chain.from_iterable(
        list_for_each_entry("struct fuse_req", head.address_of_(), "list") for head in heads
    )
    return itertools.islice(every, MAX_REQUESTS)


def _request(request: Object, *, read: bool) -> Request:
    head = getattr(request, "in").h
    number = head.opcode.value_()
    opcode = OPCODES[number - 1] if 0 < number <= len(OPCODES) else str(number)
    return Request(opcode, head.nodeid.value_(), head.pid.value_(), read, _bytes(request, opcode))


def _bytes(request: Object, opcode: str) -> range:
    """Bytes that READ and WRITE are about: their arguments begin with fh, offset, size."""
    if opcode in ("READ", "WRITE"):
        with contextlib.suppress(*TORN):
            prog, argument = request.prog_, request.args.in_args[0]
            at = argument.value.value_()
            offset = prog.read_u64(at + 8)
            return range(offset, offset + prog.read_u32(at + 16))
    return range(0)


def owes(connection: Connection, inode: Object, opcode: str, pages: range | None) -> bool:
    """
    True if a server owes an answer about a ``struct inode`` of FUSE.

    :param pages: of the file, in bytes; None: any.
    """
    node = Object(
        inode.prog_,
        "struct fuse_inode",
        address=inode.address_ - offsetof(inode.prog_.type("struct fuse_inode"), "inode"),
    ).nodeid.value_()
    about = [
        request.pages
        for request in connection.requests
        if (request.node, request.opcode) == (node, opcode)
    ]
    if pages is None:
        return bool(about)
    return any(pages.start < each.stop and each.start < pages.stop for each in about)


def conn_of(request: int, prog: Program) -> int:
    """Address of the ``struct fuse_conn`` of a ``struct fuse_req``."""
    found = Object(prog, "struct fuse_req", address=request)
    conn = found.chan.conn if hasattr(found, "chan") else found.fm.fc
    return int(conn.value_())


def connection_row(
    connection: Connection,
    supers: SuperBlocks,
    file_system: str,
    server: Server,
    tasks: int,
    longest: float | None,
) -> FuseConnection:
    """Row of a connection."""
    requests, number = connection.requests, int(supers.columns["dev"][connection.place])
    kinds = Counter(request.opcode for request in requests).most_common()
    return FuseConnection(
        disk_numbers(number),
        file_system,
        connection.waiting,
        sum(not request.read for request in requests),
        sum(request.read for request in requests),
        ", ".join(f"{number} {opcode}" for opcode, number in kinds),
        *server,
        tasks,
        longest,
    )


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
