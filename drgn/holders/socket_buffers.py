# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of the network stack for the sockets that processes have open: ``struct sk_buff`` on the
queues of a ``struct sock``, and the rings of packet sockets.

A buffer's data is its head (``skb->head`` up to ``skb->end``), and the fragments that
``skb_shared_info``, which lies behind it, has. Heads of up to two pages are objects of slab caches,
which have an owner; larger ones are large allocations of kmalloc(), and those with ``head_frag``
are cut out of a block of pages, as fragments mostly are: a block is the first one's that has a part
of it. A socket and a task keep the block that they cut the next fragment from (``sk_frag``,
``task_frag``).

Queues are followed side by side: receive, write and error queues, the backlog; of TCP the trees of
what is sent or out of order, of UDP the second queue of its readers.

Cannot know: sockets that no process has open (of the kernel itself, not accepted yet, closed with
data to be sent); what is on queues of devices and of protocols' own. Fragments that are pages of
files, of page pools or of user space are counted in their class.
"""

from collections.abc import Iterator

import numpy as np
from drgn import Program, offsetof, sizeof
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.holders.holdings import Holder, Holdings, by_holder, pointers
from mmscope.drgn.processes.open_files import SOCKETS, OpenFiles
from mmscope.drgn.reading.cpus import possible_cpus
from mmscope.drgn.reading.kernel_arrays import Gaps, S64s, U64s, bit_field, distinct
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered

# include/linux/socket.h, include/linux/net.h, include/uapi/linux/in.h: macros.
FAMILIES = {1: "unix", 2: "inet", 10: "inet6", 16: "netlink", 17: "packet", 40: "vsock"}
INET, PACKET, STREAM, DATAGRAM, TCP, UDP = (2, 10), 17, 1, 2, 6, 17
MOST_ROUNDS = 1 << 16  # buffers of one queue
MOST_DEPTH = 128  # of a red-black tree
MOST_BLOCKS = 1 << 20  # of a packet ring
# Addresses, and the position of the socket of each.
Whose = tuple[U64s, S64s]


class Sockets:
    """
    Sockets that processes have open.

    :ivar socks: addresses of their ``struct sock``, each once; *holders*: whose they are.
    """

    def __init__(self, prog: Program, files: OpenFiles, gaps: Gaps) -> None:
        sockets, who = files.of_kind(prog, SOCKETS)
        columns = {"sk": "sk"}
        found, read = read_members(prog, sockets, prog.type("struct socket"), columns, gaps)
        socks, first = np.unique(found["sk"], return_index=True)
        here = (socks != 0) & read[first]
        socks, first = socks[here], first[here]
        sock = prog.type("struct sock")
        names = {"family": "__sk_common.skc_family", "type": "sk_type", "protocol": "sk_protocol"}
        queues = {
            "receive": "sk_receive_queue.next",
            "write": "sk_write_queue.next",
            "error": "sk_error_queue.next",
            "backlog": "sk_backlog.head",
            "sent": "tcp_rtx_queue.rb_node",
            "frag": "sk_frag.page",
        }
        members, read = read_members(prog, socks, sock, names | queues, gaps)
        self.socks, self.members = socks[read], members[read]
        whose = [who[at] for at in first[read].tolist()]
        self.holders = [
            Holder("socket", _name(family, kind, protocol), process)
            for process, (family, kind, protocol, *_) in zip(
                whose, self.members.tolist(), strict=True
            )
        ]

    def of(self, families: tuple[int, ...], protocol: int = -1) -> S64s:
        """Positions of the sockets of a kind."""
        ours = np.isin(self.members["family"], families)
        if protocol >= 0:
            ours &= self.members["protocol"] == protocol
        return np.flatnonzero(ours)


def _name(family: int, kind: int, protocol: int) -> str:
    """As /proc/net names its files."""
    if family in INET and protocol in (TCP, UDP):
        return {TCP: "tcp", UDP: "udp"}[protocol]
    named = FAMILIES.get(family, f"family {family}")
    return f"{named} stream" if family == 1 and kind == STREAM else named


def add_sockets(prog: Program, files: OpenFiles, found: Holdings, kind: int, large: int) -> None:
    """
    The buffers on the queues of sockets, and the rings of packet sockets.

    :param large: the kind of a head that is a large allocation of kmalloc().
    """
    sockets = Sockets(prog, files, found.gaps)
    if not len(sockets.socks):
        return
    buffers, of = _queued(prog, sockets, found.gaps)
    heads, pages, rest, small = _data(prog, buffers, of, found.gaps)
    parts = [(large, True, *heads), (kind, True, *rest), (kind, False, *pages)]
    every = np.arange(len(sockets.socks))
    parts.append((kind, False, sockets.members["frag"], every))
    for kind_of, direct, addresses, whose in parts:
        add = found.memory if direct else found.pages
        for holder, here in by_holder([sockets.holders[at] for at in whose.tolist()]):
            add(holder, kind_of, addresses[here], objects=0)
    of_small, sizes = small
    for holder, here in by_holder([sockets.holders[at] for at in of_small.tolist()]):
        found.objects_of(holder, int(sizes[here].sum()))
    used = distinct(np.concatenate([whose for *_, whose in parts[:3]]))
    for holder, here in by_holder([sockets.holders[at] for at in used.tolist()]):
        found.count(holder, len(here))
    _add_packet_rings(prog, sockets, found, kind)


def _queued(prog: Program, sockets: Sockets, gaps: Gaps) -> Whose:
    """Addresses of all buffers on queues, and the position of the socket of each."""
    sock, tcp = prog.type("struct sock"), prog.type("struct tcp_sock")
    every, members = np.arange(len(sockets.socks)), sockets.members
    parts = list[Whose]()
    for name in ("receive", "write", "error"):
        head = sockets.socks + np.uint64(offsetof(sock, f"sk_{name}_queue"))
        parts += list(_list(prog, members[name], head, every, gaps))
    parts += list(_list(prog, members["backlog"], np.zeros_like(members["backlog"]), every, gaps))
    stream = sockets.of(INET, TCP)
    more, read = read_members(
        prog, sockets.socks[stream], tcp, {"late": "out_of_order_queue.rb_node"}, gaps
    )
    parts += list(_tree(prog, members["sent"][stream], stream, gaps))
    parts += list(_tree(prog, more["late"][read], stream[read], gaps))
    datagram = sockets.of(INET, UDP)
    udp = prog.type("struct udp_sock")
    more, read = read_members(
        prog, sockets.socks[datagram], udp, {"next": "reader_queue.next"}, gaps
    )
    head = sockets.socks[datagram] + np.uint64(offsetof(udp, "reader_queue"))
    parts += list(_list(prog, more["next"][read], head[read], datagram[read], gaps))
    return _joined(parts)


def _list(prog: Program, links: U64s, heads: U64s, of: S64s, gaps: Gaps) -> Iterator[Whose]:
    """
    The buffers of lists, side by side: addresses, and of which list.

    :param heads: that a list comes back to; 0: it ends in NULL.
    """
    buffer = prog.type("struct sk_buff")
    for _ in range(MOST_ROUNDS):
        on = (links != 0) & (links != heads)
        links, heads, of = links[on], heads[on], of[on]
        if not len(links):
            return
        yield links, of
        members, read = read_members(prog, links, buffer, {"next": "next"}, gaps)
        links, heads, of = members["next"][read], heads[read], of[read]


def _tree(prog: Program, nodes: U64s, of: S64s, gaps: Gaps) -> Iterator[Whose]:
    """The buffers of red-black trees, level by level."""
    buffer = prog.type("struct sk_buff")
    offset = np.uint64(offsetof(buffer, "rbnode"))
    columns = {"left": "rbnode.rb_left", "right": "rbnode.rb_right"}
    for _ in range(MOST_DEPTH):
        nodes, first = np.unique(nodes, return_index=True)
        of = of[first]
        nodes, of = nodes[nodes != 0], of[nodes != 0]
        if not len(nodes) or len(nodes) > MOST_BLOCKS:
            return
        yield nodes - offset, of
        members, read = read_members(prog, nodes - offset, buffer, columns, gaps)
        nodes = np.concatenate([members["left"][read], members["right"][read]])
        of = np.tile(of[read], 2)


def _data(
    prog: Program, buffers: U64s, of: S64s, gaps: Gaps
) -> tuple[Whose, Whose, Whose, tuple[S64s, S64s]]:
    """
    Addresses of what buffers hold, with the socket of each: heads that are large allocations;
    struct pages of fragments; heads that are cut out of pages. And the sockets of all buffers, with
    the bytes of each that are objects of slabs.
    """
    buffer, info = prog.type("struct sk_buff"), prog.type("struct skb_shared_info")
    bit, _ = bit_field(buffer, "head_frag")
    frags = info.member("frags").type
    stride, most = sizeof(frags.type) // 8, frags.length or 1
    dtype = np.dtype(
        {
            "names": ["frags", "number", "list"],
            "formats": [("<u8", (most * stride,)), "<u1", "<u8"],
            "offsets": [offsetof(info, name) for name in ("frags", "nr_frags", "frag_list")],
            "itemsize": sizeof(info),
        }
    )
    largest = np.uint64(2 * int(prog["PAGE_SIZE"].value_()))  # KMALLOC_MAX_CACHE_SIZE of SLUB
    large, cuts, pages = list[Whose](), list[Whose](), list[Whose]()
    small_of, small = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _ in range(MOST_DEPTH):  # a fragment may be a list of buffers
        buffers, first = np.unique(buffers, return_index=True)
        of = of[first]
        members, read = read_members(prog, buffers, buffer, {"head": "head", "end": "end"}, gaps)
        flags, known = read_scattered(prog, buffers + np.uint64(bit // 8), np.dtype("<u1"), gaps)
        read &= known
        head, end, of = members["head"][read], members["end"][read].astype(np.uint64), of[read]
        cut = (flags[read] >> np.uint8(bit % 8) & 1) != 0
        is_large = ~cut & (end + np.uint64(sizeof(info)) > largest)
        large.append((head[is_large], of[is_large]))
        cuts.append((head[cut], of[cut]))
        size = end.astype(np.int64) + sizeof(info)  # kmalloc() rounds up to a power of two
        room = np.int64(1) << np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64)
        small_of.append(of)
        small.append(sizeof(buffer) + np.where(cut | is_large, 0, room))
        shared, read = read_scattered(prog, head + end, dtype, gaps)
        shared, of = shared[read], of[read]
        for at in range(most):
            here = shared["number"] > at
            if not here.any():
                break
            page = shared["frags"][here, at * stride]
            plain = (page & np.uint64(1)) == 0  # else a net_iov, of a device's memory
            pages.append((page[plain], of[here][plain]))
        here = shared["list"] != 0
        lists = list(
            _list(prog, shared["list"][here], np.zeros(int(here.sum()), np.uint64), of[here], gaps)
        )
        if not lists:
            break
        buffers, of = (np.concatenate(column) for column in zip(*lists, strict=True))
    in_slabs = np.concatenate(small_of), np.concatenate(small)
    return _joined(large), _joined(pages), _joined(cuts), in_slabs


def _joined(parts: list[Whose]) -> Whose:
    addresses, of = zip((np.empty(0, np.uint64), np.empty(0, np.int64)), *parts, strict=True)
    return np.concatenate(addresses), np.concatenate(of)


def add_fragments(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """
    The blocks that the next fragments are cut from: ``task_frag`` of the first thread of each
    process, and ``netdev_alloc_cache`` and ``napi_alloc_cache`` of each CPU.
    """
    task = prog.type("struct task_struct")
    columns = {"page": "task_frag.page", "exit_state": "exit_state"}
    members, read = read_members(prog, files.tasks, task, columns, found.gaps)
    # do_exit() (kernel/exit.c) gives the block back, and leaves the zombie its address.
    here = np.flatnonzero(read & (members["page"] != 0) & (members["exit_state"] == 0))
    for holder, at in by_holder(
        [Holder("task_frag", "", files.processes[n]) for n in here.tolist()]
    ):
        found.pages(holder, kind, members["page"][here[at]], len(at))
    blocks: list[int] = []
    for name in ("netdev_alloc_cache", "napi_alloc_cache"):
        if name not in prog:
            continue
        for cpu in possible_cpus(prog):
            cache = per_cpu(prog[name], cpu)
            cache = getattr(cache, "page", cache)
            # "mm: page_frag: reuse existing space for 'size' and 'pfmemalloc'" (in v6.13): the
            # order is in the low bits.
            encoded = hasattr(cache, "encoded_page")
            blocks.append(int((cache.encoded_page if encoded else cache.va).value_()))
    pages: list[int] = []
    for name in ("ipv4_icmp_sk", "ipv6_icmp_sk"):  # that answer to pings
        for cpu in possible_cpus(prog) if name in prog else ():
            if sock := per_cpu(prog[name], cpu):
                pages.append(int(sock.sk_frag.page.value_()))
    found.pages(Holder("fragments of CPUs"), kind, np.array(pages, np.uint64), len(pages))
    page = int(prog["PAGE_SIZE"].value_())
    starts = np.array([each // page * page for each in blocks], np.uint64)
    found.memory(Holder("fragments of CPUs"), kind, starts, objects=int((starts != 0).sum()))


def _add_packet_rings(prog: Program, sockets: Sockets, found: Holdings, kind: int) -> None:
    """``packet_sock.rx_ring`` and ``tx_ring``: blocks of pages, or of vmalloc memory."""
    ours = sockets.of((PACKET,))
    if not len(ours):
        return
    columns = {
        f"{ring} {name}": f"{ring}.{name}"
        for ring in ("rx_ring", "tx_ring")
        for name in ("pg_vec", "pg_vec_len")
    }
    rows, read = read_members(
        prog, sockets.socks[ours], prog.type("struct packet_sock"), columns, found.gaps
    )
    for at, row in zip(ours[read].tolist(), rows[read], strict=True):
        for ring in ("rx_ring", "tx_ring"):
            address, length = int(row[f"{ring} pg_vec"]), int(row[f"{ring} pg_vec_len"])
            if address:
                blocks = pointers(prog, address, min(length, MOST_BLOCKS), found.gaps)
                holder = sockets.holders[at]._replace(kind="packet ring", name="")
                found.memory(holder, kind, blocks)
