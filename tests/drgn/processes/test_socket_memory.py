# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory of sockets, of this host's own: what the kernel says of those that a test fills."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmscope.drgn.processes import socket_memory as tested
from mmscope.drgn.processes.socket_memory import FAMILIES

UNIX = FAMILIES[0]


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    """Inode of a socket whose other end reads nothing, and what was sent."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += ours.send(bytes(4096))
    yield os.fstat(ours.fileno()).st_ino, sent
    ours.close()
    theirs.close()


def ask_or_skip() -> dict[int, int]:
    try:
        return tested._ask(UNIX)
    except OSError as error:
        pytest.skip(f"this kernel has no unix_diag: {error}")


def test_a_socket_has_what_was_sent_and_not_read_and_is_of_its_process(
    full: tuple[int, int],
) -> None:
    inode, sent = full
    sizes = ask_or_skip()
    assert sizes[inode] >= sent > 0
    owner, pid = tested._owners("/proc", sizes)[inode]
    assert pid == os.getpid() and owner == Path("/proc/self/comm").read_text().strip()


def test_they_are_told_by_process_or_as_one_where_they_are_small(
    full: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_or_skip()
    monkeypatch.setattr(tested, "_modules", lambda _: {"unix_diag"})
    by_process = {owner: (size, number) for owner, size, number in tested.socket_memory("/", 1)}
    ours = next(each for (_, pid), each in by_process.items() if pid == os.getpid())
    assert ours[0] >= full[1] and ours[1] >= 2
    ((owner, size, _),) = tested.socket_memory("/", 1 << 50)
    assert owner == ("all", None) and size >= full[1]


def test_no_module_is_loaded_for_it(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/sockstat").write_text("sockets: used 12\nTCP: inuse 1 orphan 0\n")
    (tmp_path / "proc/modules").write_text("ext4 1 1 - Live 0x0\n")
    with pytest.raises(ValueError, match="are not loaded; 'ss -xtu' loads them"):
        list(tested.socket_memory(str(tmp_path), 1))
    (tmp_path / "proc/modules").write_text("unix_diag 16384 0 - Live 0x0\n")
    assert tested._modules(str(tmp_path)) == {"unix_diag"}
    (tmp_path / "proc/net/sockstat").write_text("sockets: used 60000\n")
    with pytest.raises(ValueError, match="60,000 sockets are more than are read"):
        list(tested.socket_memory(str(tmp_path), 1))


def test_tcp_counts_what_is_queued_and_not_its_copies() -> None:
    """net/ipv4/inet_diag.c: a message of 72 bytes, then SK_MEMINFO as attribute 7."""
    memory = struct.pack("=9I", 100, 0, 70, 0, 30, 500, 0, 0, 0)
    message = bytearray(72)
    struct.pack_into("=I", message, 68, 4711)
    message += struct.pack("=HH", 4 + len(memory), 7) + memory
    assert tested._socket(FAMILIES[1], bytes(message)) == (4711, 100 + 30 + 500)
