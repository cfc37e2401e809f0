# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of sockets on a running host: what each has in its buffers (truesize), by the process that
has it open; from the kernel's sock_diag (net/core/sock_diag.c), as ``ss -m`` reads it.

A dump holds a lock of a few sockets at a time (unix_diag_dump(), inet_diag_dump_icsk()). The
kernel would load a module to answer; a family whose module is not there already is not asked.

Cannot know: sockets of other network namespaces; packets that a device or a queue still has.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mmscope.drgn.text.plain_file import read_text

MOST_SOCKETS, MOST_LINKS = 50_000, 50_000
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
ALL_STATES, UDIAG_SHOW_MEMINFO, INET_DIAG_SKMEMINFO = 0xFFFF_FFFF, 0x20, 7
# Of SK_MEMINFO_*: what is received and not read, what is sent and not taken, kept for more, and of
# TCP what is queued to be sent, of which wmem_alloc has copies.
RMEM_ALLOC, WMEM_ALLOC, FWD_ALLOC, WMEM_QUEUED = 0, 2, 4, 5
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_USED = re.compile(r"^sockets: used ([0-9]{1,12})$", re.M)
_LINK = re.compile(r"socket:\[([0-9]{1,20})\]")


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of sockets, and what an answer about one of them looks like."""

    module: str
    request: bytes
    inode_at: int
    attributes_at: int
    meminfo: int
    counted: tuple[int, ...]


def _inet(family: int, protocol: int, module: str, counted: tuple[int, ...]) -> Family:
    begin = struct.pack("=BBBBI", family, protocol, 1 << INET_DIAG_SKMEMINFO - 1, 0, ALL_STATES)
    return Family(module, begin + bytes(48), 68, 72, INET_DIAG_SKMEMINFO, counted)


_TCP, _UDP = (RMEM_ALLOC, FWD_ALLOC, WMEM_QUEUED), (RMEM_ALLOC, WMEM_ALLOC, FWD_ALLOC)
FAMILIES = (
    Family(
        "unix_diag",
        struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, ALL_STATES, 0, UDIAG_SHOW_MEMINFO, 0, 0),
        *(4, 16, 5, (RMEM_ALLOC, WMEM_ALLOC)),
    ),
    *(_inet(family, socket.IPPROTO_TCP, "tcp_diag", _TCP) for family in (2, 10)),
    *(_inet(family, socket.IPPROTO_UDP, "udp_diag", _UDP) for family in (2, 10)),
)


def socket_memory(root: str, least: int) -> Iterator[tuple[tuple[str, int | None], int, int]]:
    """
    ((name, pid) of a process, bytes in the buffers of its sockets, how many sockets); all as one
    where they have less than *least*.

    :raises ValueError: there are more than are read, or the kernel's modules are not there.
    :raises OSError: the kernel refused.
    """
    used = _USED.search(read_text(os.path.join(root, "proc/net/sockstat")))
    if used and int(used[1]) > MOST_SOCKETS:
        raise ValueError(f"{int(used[1]):,} sockets are more than are read")
    there = _modules(root)
    asked = [family for family in FAMILIES if family.module in there]
    if not asked:
        raise ValueError("unix_diag, tcp_diag and udp_diag are not loaded; 'ss -xtu' loads them")
    sizes: dict[int, int] = {}
    for family in asked:
        sizes |= _ask(family)
    if sum(sizes.values()) < least:
        yield ("all", None), sum(sizes.values()), len(sizes)
        return
    totals, numbers = Counter[tuple[str, int | None]](), Counter[tuple[str, int | None]]()
    owners = _owners(os.path.join(root, "proc"), sizes)
    for inode, size in sizes.items():
        owner = owners.get(inode, ("no process", None))
        totals[owner] += size
        numbers[owner] += 1
    for owner, size in totals.items():
        yield owner, size, numbers[owner]


def _modules(root: str) -> set[str]:
    """Modules that are loaded or built in, of those that answer."""
    wanted = {family.module for family in FAMILIES}
    found = set[str]()
    for path in ("proc/modules", f"lib/modules/{os.uname().release}/modules.builtin"):
        with contextlib.suppress(OSError):
            text = read_text(os.path.join(root, path))
            words = re.findall(r"^(?:\S*/)?(\w+)(?:\.ko)?\b", text, re.M)
            found |= wanted.intersection(words)
    return found


def _ask(family: Family) -> dict[int, int]:
    """Bytes of the sockets of a family, by inode."""
    sizes: dict[int, int] = {}
    length = _HEADER.size + len(family.request)
    header = _HEADER.pack(length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(2)
        link.send(header + family.request)
        while True:
            data = link.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(data):
                size, kind, *_ = _HEADER.unpack_from(data, at)
                message = data[at + _HEADER.size : at + size]
                if kind == NLMSG_DONE:
                    return sizes
                if kind == NLMSG_ERROR:
                    (number,) = struct.unpack_from("=i", message)
                    raise OSError(-number, os.strerror(-number))
                inode, held = _socket(family, message)
                sizes[inode] = sizes.get(inode, 0) + held
                at += max(size + 3 & ~3, _HEADER.size)


def _socket(family: Family, message: bytes) -> tuple[int, int]:
    """Inode and bytes of one socket."""
    (inode,) = struct.unpack_from("=I", message, family.inode_at)
    at = family.attributes_at
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == family.meminfo:
            values = struct.unpack_from(f"={(size - _ATTRIBUTE.size) // 4}I", message, at + 4)
            return inode, sum(values[index] for index in family.counted)
        at += max(size + 3 & ~3, _ATTRIBUTE.size)
    return inode, 0


def _owners(proc: str, inodes: dict[int, int]) -> dict[int, tuple[str, int | None]]:
    """The first process that has a socket open, by inode."""
    found: dict[int, tuple[str, int | None]] = {}
    links = 0
    for pid in sorted(filter(str.isdecimal, os.listdir(proc)), key=int):
        with contextlib.suppress(OSError):  # it has exited, or only root may look
            comm = read_text(os.path.join(proc, pid, "comm")).rstrip("\n")
            for each in os.listdir(os.path.join(proc, pid, "fd")):
                links += 1
                if links > MOST_LINKS:
                    raise ValueError(f"more than {MOST_LINKS:,} open files")
                with contextlib.suppress(OSError):
                    match = _LINK.fullmatch(os.readlink(os.path.join(proc, pid, "fd", each)))
                    if match and int(match[1]) in inodes:
                        found.setdefault(int(match[1]), (comm, int(pid)))
    return found
