# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files are what their beginning shows, whatever they are called."""

import struct
from pathlib import Path

import pytest
from checkout import TESTS
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.owners.slab_caches import read_slabinfo
from mmscope.reports.inputs.recognise import (
    HEAD_BYTES,
    LOG,
    named,
    pasted,
    recognise,
    unwrapped,
    without_cut_line,
)

DATA = Path(__file__).parents[2] / "data"
MAPS = b"55d0c5a4f000-55d0c5a51000 r--p 00000000 fe:00 1048 /usr/bin/cat\n"

KNOWN = {
    "ELF core": (b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<H", 4), "vmcore"),
    "kdump": (b"KDUMP   " + bytes(600), "vmcore"),
    "flattened": (b"makedumpfile\0\0\0\0" + bytes(600), "vmcore"),
    "perf.data": (b"PERFILE2" + bytes(100), "perf.data"),
    "perf.data of the other byte order": (b"2ELIFREP" + bytes(100), "perf.data"),
    "perf.data of old": (b"PERFFILE" + bytes(100), "perf.data"),
    "zip": (b"PK\3\4" + bytes(100), "zip"),
    "tar": (bytes(257).replace(b"\0", b"x") + b"ustar\0" + bytes(300), "tar"),
    "dmesg": (b"[    0.000000] Linux version 6.1.0\n", "log"),
    "dmesg -T": (b"[Sat Nov 28 00:00:01 2026] x invoked oom-killer: gfp_mask=0x0\n", "log"),
    "syslog": (b"Nov 28 00:00:01 host kernel: Linux version 6.1.0\n", "log"),
    "syslog without a kernel": (b"Nov 28 00:00:01 host sshd[7]: x\n" * 9, "log"),
    "a journal's ISO times": (b"2026-11-28T00:00:01+0100 host systemd[1]: x\n" * 3, "log"),
    "a journal as JSON": (b'{"__CURSOR":"s","MESSAGE":"x"}\n', "log"),
    "a journal's export": (b"__CURSOR=s\n__REALTIME_TIMESTAMP=1\nMESSAGE=x\n\n", "log"),
    "a pasted kill": (b"> Out of memory: Killed process 7 (x) total-vm:4kB\n", "log"),
    "perf script": (b"x 7/7 [001] 1.000000: 1 cycles: \n\tffffffff81 f ([kernel])\n", "perf text"),
    "perf script without pid": (b"x 7 1.000000: cycles: \n\t    7f12 main (/bin/x)\n", "perf text"),
    "page_owner": (b"Page allocated via order 0, mask 0x0(), pid 1\n", "page_owner"),
    "smaps": (MAPS + b"Size:                  8 kB\nRss: 4 kB\n", "tree"),
    "memory.stat": (b"anon 4096\nfile 0\nkernel 7\n", "tree"),
    "memory.events": (b"low 0\nhigh 12\nmax 300\noom 4\noom_kill 3\n", "tree"),
    "meminfo with tabs": (b"MemTotal:\t4096 kB\nMemFree:\t5 kB\n", "tree"),
    "memory.stat of v1": (b"cache 4096\nrss 0\nrss_huge 7\n", "tree"),
    "slabinfo without its version": (b"# name            <active_objs> <num_objs>\nx 1\n", "tree"),
    "a status whose tabs are lost": (b"Name: bash\nUmask: 0022\nState: S (sleeping)\n", "tree"),
    "pressure": (b"some avg10=0.10 avg60=2.00 avg300=3.85 total=15\nfull avg10=0.0\n", "tree"),
    "sysctl -a": (b"abi.vsyscall32 = 1\nvm.swappiness = 60\n", "tree"),
    "pasted sysctl": (b"$ sysctl -a | grep vm\n> vm.swappiness = 60\n", "pasted"),
    "settings of something else": (b"user.name = bob\nnet.timeout = 30\n", ""),
    "events": (b'{"items": [{"reason": "Pulled", "message": "Container image"}]}', "log"),
    "a query of Loki": (b'{"data":{"result":[{"values":[["1715259158000000007","x"]]}]}}', "log"),
    "other JSON": (b'[{"Id": "7", "LogPath": "/var/lib/x-json.log", "State": {}}]', ""),
    "earlyoom": (b'earlyoom 1.7\nsending SIGTERM to process 7 uid 0 "x": badness 9\n', "log"),
    "kmemleak": (b"unreferenced object 0xffff88007658a9e0 (size 944):\n", "log"),
    "arcstats": (b"13 1 0x01 9 99 52 282\nname type data\nhits 4 1\nc_max 4 82\n", "tree"),
    "version": (b"Linux version 6.1.0 (a@b) (gcc 12) #1 SMP PREEMPT_DYNAMIC\n", "tree"),
    "another kstat": (b"13 1 0x01 9 99 52 282\nname type data\nhits 4 1\n", ""),
    "allocinfo": (b"allocinfo - version: 1.0\n#     <size>\n", "tree"),
}  # fmt: skip


@pytest.mark.parametrize(("head", "name"), KNOWN.values(), ids=KNOWN)
def test_it_is_known(head: bytes, name: str) -> None:
    assert recognise(head).name == name


@pytest.mark.parametrize(
    "name",
    ["meminfo", "vmstat", "zoneinfo", "buddyinfo", "pagetypeinfo", "slabinfo", "iomem"],
)
def test_a_file_of_proc_has_its_place(name: str) -> None:
    kind = recognise((DATA / "7.2/proc" / name).read_bytes()[:HEAD_BYTES])
    assert (kind.words, kind.place) == (f"/proc/{name}", f"proc/{name}")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "an empty file"),
        (bytes(99) + b"\n", "nothing but zeros and spaces"),
        (b"\x89PNG\r\n", "a picture: bring the text"),
        (b"\x7fELF\2\1\1" + bytes(9) + b"\2\0", "no dump of a kernel"),
        (b"LPKSHHRH", "unpack it before"),
        (b"               total        used        free\n", "bring /proc/meminfo"),
        (b"swapper;start;idle 7\n", "folded stacks"),
        (b"--procs-- -----memory-----\n", "of vmstat: bring /proc/vmstat"),
        (b"--time-- procs -----memory-----\n", "of vmstat: bring /proc/vmstat"),
        (b"$ vmstat -s\n      4020152 K total memory\n", "of vmstat: bring /proc/vmstat"),
        (b"so:\n```top - 09:20:17 up 18 min\n", "of top: bring /proc/meminfo"),
        (b"UID    PID  PPID  C STIME TTY\n", "of ps: bring /proc/meminfo"),
        (b"7f2a10c93000 default anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n", "bring its smaps"),
        (b"Linux 5.14.0 (x)\n\n12:00:01  pgpgin/s pgpgout/s   fault/s\n", "of sar: bring"),
        (
            b"Name: web-1\n    Last State:     Terminated\n      Reason:       OOMKilled\n",
            "bring the node's kernel log, which says which: journalctl -k",
        ),
        (b"NAME    CPU(cores)   MEMORY(bytes)\nweb-1   5m   90Mi\n", "kubectl top's output"),
        (b"CONTAINER ID   NAME   CPU %     MEM USAGE / LIMIT\n", "of the container's cgroup"),
        (b"7z\xbc\xaf\x27", "unpack it before"),
        (b"Node 0 MemTotal:  5 kB\n", "of a NUMA node: bring /proc/meminfo"),
        (
            b"so:\n Active / Total Objects (% used) : 5 / 5\n",
            "without its rows: bring /proc/slabinfo",
        ),
        (b"1 root 20 0 0 0 S oom_reaper\n", "a text that mmscope does not know"),
        (b"$ grep Slab:\nSlab:       181700 kB\n", "some lines of a meminfo: bring"),
        (b"  pages free     7226\n        min      10136\n", "without the name of its zone"),
        (b"# sort\n   2.8M    226 fs/dir.c:615 func:f\n", "after numfmt, whose sizes are rounded"),
        (b"LOST 1 events!\n  3711.661 a/7 exceptions:page_fault_user(address: 0)\n", "perf trace"),
        (b"slab_unreclaimable 7\nslab 7\n", "a part of a cgroup's memory.stat"),
        (b"crash> kmem -s\nCACHE             OBJSIZE  ALLOCATED     TOTAL\n", "kmem -s: bring"),
        (b"# Overhead  Command\n", "perf top's output: bring perf script's text"),
        (b"so:\n```\n    2.26%  [kernel]       [k] _raw_spin_lock\n", "bring perf script's text"),
        (b"Dry Run: no\nSwap Used Limit: 90.00%\n", "oomctl's output: bring the journal"),
        (b"<!DOCTYPE html><p>x", "a web page"),
        (b"\1\2\3\0\0\0\0\0", "something binary, which begins with 01 02 03"),
        (b"Dear all,\nour machine is slow.\n", "does not know: 'Dear all, our machine is slow.'"),
        (b"\x1b[2Jx\n", r"\x1b"),
        ("[    1.0] x".encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
        ("[    1.0] x".encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8"),
    ],
)
def test_what_is_not_known_is_said_to_look_like_something(head: bytes, words: str) -> None:
    kind = recognise(head)
    assert kind.name == ""
    assert words in kind.words
    assert kind.words.isprintable()


@pytest.mark.parametrize(
    "lines",
    [
        [b"Node 0, zone Normal", *[b" a" + b" " * 20_000] * 3],
        [b"slabinfo - version: " + b" " * 30_000, b"#" + b" " * 30_000],
    ],
)
def test_blanks_behind_the_lines_of_a_pasted_file_take_no_time(lines: list[bytes]) -> None:
    assert recognise(b"\n".join([b"Dear all", *lines, b"Bye"])).name == ""


def test_a_text_in_utf_16_is_nothing_binary() -> None:
    assert recognise("KDUMP   ".encode("utf-16")).name == ""


@given(st.binary(max_size=4000))
def test_any_bytes_are_something(head: bytes) -> None:
    assert recognise(head).words


def wrapped(text: bytes, width: int, *, blanks: bool) -> bytes:
    """A text as a mail has it: lines are broken at blanks, which some keep."""
    lines = list[bytes]()
    for line in text.split(b"\n"):
        while len(line) > width and (at := line.rfind(b" ", 1, width)) > 0:
            lines.append(line[:at].rstrip())
            line = line[at:] if blanks else line[at:].lstrip()
        lines.append(line)
    return b"\n".join(lines)


@pytest.mark.parametrize("name", ["pagetypeinfo", "buddyinfo"])
@pytest.mark.parametrize("width", [60, 72, 78])
@pytest.mark.parametrize("blanks", [True, False])
def test_tables_that_a_mail_has_wrapped_are_whole(name: str, width: int, blanks: bool) -> None:
    text = (DATA / "7.2/proc" / name).read_bytes()
    broken = wrapped(text, width, blanks=blanks)
    place = f"proc/{name}"
    assert recognise(broken).place == place

    def words(text: bytes) -> list[list[bytes]]:
        return [line.split() for line in text.strip().split(b"\n")]

    assert words(unwrapped(place, broken)) == words(text)
    quoted = b"Hello,\n\n" + b"".join(b"> %b\n" % line for line in broken.split(b"\n"))
    assert [(where, words(found)) for where, found in pasted(quoted)] == [(place, words(text))]


def test_the_vmstat_of_a_node_is_not_that_of_the_machine() -> None:
    text = (DATA / "7.2/proc/vmstat").read_bytes()
    of_node = text.partition(b"nr_dirty_threshold ")[0]
    assert recognise(text).place == "proc/vmstat"
    assert "the vmstat of a NUMA node" in recognise(of_node).words
    assert not pasted(b"so:\n" + of_node) and pasted(b"so:\n" + text)


SLABINFO = (DATA / "7.2/proc/slabinfo").read_bytes()
ALLOCINFO = (TESTS / "corpus/allocinfo/7.2").read_bytes()


@pytest.mark.parametrize("width", [50, 60, 72, 78])
@pytest.mark.parametrize("blanks", [True, False])
def test_a_slabinfo_that_a_mail_has_wrapped_is_whole(width: int, blanks: bool) -> None:
    broken = wrapped(SLABINFO, width, blanks=blanks)
    whole = [line.split() for line in SLABINFO.splitlines()]
    for before, mark in ((b"", b""), (b"Hello,\n\n", b"> ")):
        text = before + b"".join(mark + line + b"\n" for line in broken.splitlines())
        ((place, found),) = pasted(text)
        assert place == "proc/slabinfo" and [line.split() for line in found.splitlines()] == whole
    assert recognise(broken).place == "proc/slabinfo"
    assert [line.split() for line in unwrapped("proc/slabinfo", broken).splitlines()] == whole


@pytest.mark.parametrize(
    ("place", "text"), [("proc/slabinfo", SLABINFO), ("proc/allocinfo", ALLOCINFO)]
)
@pytest.mark.parametrize("around", [(b"", b""), (b"so:\n```\n# sort -n | tail\n", b"```\nBye\n")])
def test_lines_without_the_first_ones_are_known(
    place: str, text: bytes, around: tuple[bytes, bytes]
) -> None:
    lines = text.splitlines(keepends=True)[2:22]
    given = around[0] + b"".join(lines) + lines[0][:40] + b"\n" + around[1]
    assert pasted(given) == [(place, b"".join(line.rstrip() + b"\n" for line in lines))]
    kind = recognise(given)
    assert f"/{place}" in kind.words and kind.name


def test_sums_of_a_processs_maps_among_words_are_its_own() -> None:
    text = b"12c00000-7fd14f2000 ---p 00000000 00:00 0   [rollup]\nRss:  55656 kB\nPss:  7071 kB\n"
    ((place, found),) = pasted(b"a52q:/ # cat smaps_rollup\n" + text + b"---\n")
    assert (named(place), found) == ("a process's smaps_rollup", text)
    assert recognise(b"so:\n" + text).name == "pasted"


def test_a_cgroups_counters_among_words_are_its_own_and_those_of_a_kill_are_not() -> None:
    text = b"anon 663552\nfile 10313728\nkernel_stack 49152\nslab 7\n"
    for before in (b"cat memory.stat:\n", b"```\n", b"so:\n"):
        ((place, found),) = pasted(before + text + b"```\n")
        assert (named(place), found) == ("a cgroup's memory.stat", text)
    assert not pasted(b"Memory cgroup stats for /a:\n" + text)


def test_a_table_whose_last_row_is_cut_has_the_others() -> None:
    rows = (DATA / "7.2/proc/buddyinfo").read_bytes()
    assert without_cut_line("proc/buddyinfo", rows) == rows
    cut = rows.rstrip()[:-8] + b"\n"
    assert without_cut_line("proc/buddyinfo", cut).splitlines() == rows.splitlines()[:-1]


@pytest.mark.parametrize(
    "text",
    [
        b"``` [Mon Dec  8 17:51:31 2025] x\n[Mon Dec  8 17:51:31 2025] 63159 pages reserved\n" * 2,
        b"so:\n[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents adj name\n",
        b"so:\nTasks state (memory values in pages):\n",
        b"=====\nBUG kmalloc-64 (Not tainted): Poison overwritten\n-----\n",
        b"Unable to handle kernel paging request at virtual address 00000009\n",
        b"WARNING: at mm/page_alloc.c:2204 f+0x1/0x2()\n",
    ],
)
def test_parts_of_a_log_are_known(text: bytes) -> None:
    assert recognise(text.removeprefix(b"``` ")).name == LOG


@pytest.mark.parametrize("quote", [b"", b"> "])
def test_slabtop_has_the_rows_of_slabinfo(quote: bytes) -> None:
    rows = [
        b"OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME",
        b"229166 228585  99%    1.10K  16369       14    261904K ext4_inode_cache        ",
        b" 42784  26988  63%    0.12K   1337       32      5348K kmalloc-128",
    ]
    text = b"it grows:\n" + b"".join(quote + row + b"\n" for row in rows) + b"Bye\n"
    assert recognise(text).words == "a text with slabtop's output in it"
    ((place, table),) = pasted(text)
    assert place == "proc/slabinfo"
    assert [row.cache for row in read_slabinfo(table.decode())] == [
        "ext4_inode_cache",
        "kmalloc-128",
    ]
