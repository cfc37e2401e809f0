# SPDX-License-Identifier: LGPL-2.1-or-later
"""``collect PATH…`` and ``why PATH…``: whatever is given is read, said, and made one bundle."""

import bz2
import gzip
import io
import json
import lzma
import os
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from given_inputs import LOG, OWNER, PERF, TREE, put
from odd_trees import OLD, ZONE, meminfo

from mmscope.drgn.tables.display import size
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.inputs import given


def collect(
    tmp_path: Path, *paths: str | Path, code: int = 0, options: tuple[str, ...] = ()
) -> Bundle:
    made = tmp_path / "case"
    words = ["collect", *map(str, paths), "-o", str(made), "--no-findings", *options]
    assert main(words) == code
    return Bundle(made)


def victims(bundle: Bundle) -> list[str]:
    return [row["comm"] for row in bundle.rows("oom_kills")]


def test_a_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = collect(tmp_path, put(tmp_path, "ticket-4711.txt", LOG))
    assert victims(bundle) == ["java"]
    said = capsys.readouterr().err
    assert "ticket-4711.txt: a kernel log" in said
    # What a log cannot have is not listed.
    assert "absent" not in said and "have nothing in what was given" in said


@pytest.mark.parametrize(
    "pack", [gzip.compress, lambda data: b"\xff\xfe" + data.decode().encode("utf-16-le")]
)
def test_a_log_however_it_was_saved(tmp_path: Path, pack: object) -> None:
    assert victims(collect(tmp_path, put(tmp_path, "x", pack(LOG.encode())))) == ["java"]  # type: ignore[operator]


UTF_16 = {
    "little": b"\xff\xfe" + PERF.encode("utf-16-le"),
    "big": b"\xfe\xff" + PERF.encode("utf-16-be"),
}


@pytest.mark.parametrize("begin", ["", "Memory cgroup "])
def test_a_kill_alone(tmp_path: Path, begin: str) -> None:
    """What was recognised as a log is read as one, however short."""
    line = f"{begin}{'o' if begin else 'O'}ut of memory: Killed process 7 (x) total-vm:8kB, "
    bundle = collect(tmp_path, put(tmp_path, "x", f"{line}anon-rss:4kB, file-rss:0kB\n"))
    assert victims(bundle) == ["x"]


@pytest.mark.parametrize("text", UTF_16.values(), ids=UTF_16)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_profile_in_utf_16(tmp_path: Path, text: bytes, pack: Callable[[bytes], bytes]) -> None:
    if pack is gzip.compress:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            member = tarfile.TarInfo("script.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        text = made.getvalue()
    bundle = collect(tmp_path, put(tmp_path, "x", text))
    assert [row["samples"] for row in bundle.rows("profiles")] == [1]


def test_owners_of_pages_in_utf_16(tmp_path: Path) -> None:
    bundle = collect(tmp_path, put(tmp_path, "x", OWNER.encode("utf-16")))
    assert [row["pages"] for row in bundle.rows("page_owner_stacks")] == [1]


@pytest.mark.parametrize("text", UTF_16.values(), ids=UTF_16)
def test_a_profile_in_utf_16_that_is_packed(tmp_path: Path, text: bytes) -> None:
    bundle = collect(tmp_path, put(tmp_path, "x", gzip.compress(text)))
    assert [row["samples"] for row in bundle.rows("profiles")] == [1]


@pytest.mark.parametrize("text", ["KDUMP   ", "PK\3\4"])
def test_a_text_in_utf_16_is_nothing_to_unpack(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "x", (text * 99).encode("utf-16"))
    assert main(["collect", path, "-o", str(tmp_path / "case")]) == 3
    assert "x: not recognised: it looks like a text" in capsys.readouterr().err


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that prints what is behind the first line of a journal, as journalctl reads it."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/journalctl"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "--file /dev/stdin" ] && tail -n +2 /dev/stdin\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return program


JOURNAL = b"LPKSHHRH\0\0\n" + LOG.replace("] ", "] kernel: ").encode()


@pytest.mark.usefixtures("journalctl")
@pytest.mark.parametrize("way", ["a file", "a pipe", "an archive", "a tree", "a tree's archive"])
def test_a_journals_own_file(
    tmp_path: Path, way: str, standard_input: Callable[[int], None]
) -> None:
    path = put(tmp_path, "in/var/log/journal/1/system.journal", JOURNAL)
    put(tmp_path, "in/proc/vmstat", (TREE / "proc/vmstat").read_bytes())
    if way == "a pipe":
        read, write = os.pipe()
        os.write(write, JOURNAL)
        os.close(write)
        standard_input(read)
        os.close(read)
        path = "-"
    elif way == "a tree":
        path = str(tmp_path / "in")
    elif way != "a file":
        inside = "in" if way == "a tree's archive" else "in/var/log/journal/1/system.journal"
        with tarfile.open(tmp_path / "x.tar", mode="w") as archive:
            archive.add(tmp_path / inside, "in" if way == "a tree's archive" else "x.journal")
        path = str(tmp_path / "x.tar")
    made = tmp_path / "case"
    assert main(["collect", path, "-o", str(made), "--no-findings"]) in (0, 1)
    assert victims(Bundle(made)) == ["java"]


def test_a_journals_own_file_without_journalctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["collect", put(tmp_path, "x", JOURNAL), "-o", str(tmp_path / "case")]
    assert main(words) == 3
    how = "journalctl --file FILE -q --no-pager -o short-monotonic _TRANSPORT=kernel"
    assert f"journalctl is not installed: {how}" in capsys.readouterr().err


@pytest.mark.usefixtures("journalctl")
def test_a_journal_without_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", put(tmp_path, "x", b"LPKSHHRH\0\n"), "-o", str(tmp_path / "case")]
    assert main(words) == 3
    assert "x: a journal's own file, without records of the kernel" in capsys.readouterr().err


@pytest.mark.parametrize(("ending", "mode"), [("tar", "w"), ("tgz", "w:gz")])
def test_a_dump_in_an_archive_is_said_with_the_command_that_unpacks_it(
    tmp_path: Path, ending: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "in/crash 1/vmcore", b"KDUMP   " + bytes(600))
    path = tmp_path / f"x y.{ending}"
    with tarfile.open(path, mode=mode) as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "in", ".")
    assert main(["collect", str(path), "-o", str(tmp_path / "case")]) == 3
    words = capsys.readouterr().err.partition("unpack it before: ")[2].splitlines()[0]
    assert words == f"tar --no-anchored -xf '{path}' 'crash 1/vmcore'"
    (tmp_path / "out").mkdir()
    subprocess.run(shlex.split(words), cwd=tmp_path / "out", check=True)
    assert (tmp_path / "out/crash 1/vmcore").stat().st_size == 608


@pytest.fixture
def standard_input() -> Iterator[Callable[[int], None]]:
    """Sets what standard input is."""

    def become(descriptor: int) -> None:
        os.dup2(descriptor, 0)

    before = os.dup(0)
    yield become
    os.dup2(before, 0)
    os.close(before)


def test_a_log_from_a_pipe(tmp_path: Path, standard_input: Callable[[int], None]) -> None:
    read, write = os.pipe()
    os.write(write, LOG.encode())
    os.close(write)
    standard_input(read)
    os.close(read)
    assert victims(collect(tmp_path, "-")) == ["java"]


def test_of_a_pipe_that_goes_on_it_is_said_what_was_read(
    tmp_path: Path,
    standard_input: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(given, "MOST_PIPED", len(LOG))
    with open(put(tmp_path, "log", LOG + LOG), "rb") as log:
        standard_input(log.fileno())
        assert victims(collect(tmp_path, "-", code=1)) == ["java"]
    words = f"standard input: its first {size(len(LOG))} are read, and no more"
    assert words in capsys.readouterr().err


def test_a_log_that_the_shell_opened(tmp_path: Path, standard_input: Callable[[int], None]) -> None:
    with open(put(tmp_path, "log", LOG), "rb") as log:
        standard_input(log.fileno())
        assert victims(collect(tmp_path, "-")) == ["java"]


def test_a_device_is_not_read_to_its_end(
    tmp_path: Path, standard_input: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/zero", "rb") as zero:
        standard_input(zero.fileno())
        assert main(["why", "-", "-o", str(tmp_path / "case")]) == 3
    assert "standard input: is a device" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["", "proc"])
def test_a_tree_and_a_part_of_one(tmp_path: Path, part: str) -> None:
    bundle = collect(tmp_path, TREE / part)
    assert len(list(bundle.rows("zones"))) == len(list(collect_proc(tmp_path / "p").rows("zones")))
    assert bundle.target["page_size"] == 4096


def collect_proc(folder: Path) -> Bundle:
    folder.mkdir()
    main(["collect", "--proc-root", str(TREE), "-o", str(folder / "b"), "--no-findings"])
    return Bundle(folder / "b")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("meminfo", "memory_ledger"), ("vmstat", "vm_counters"), ("zoneinfo", "zones"),
        ("buddyinfo", "free_blocks"), ("pagetypeinfo", "pageblocks"), ("slabinfo", "slab_caches"),
    ],
)  # fmt: skip
def test_a_file_of_proc_alone_has_its_table(tmp_path: Path, name: str, table: str) -> None:
    path = put(tmp_path, f"pasted-{name}.txt", (TREE / "proc" / name).read_bytes())
    made = tmp_path / "case"
    assert main(["collect", path, "-o", str(made), "--no-findings"]) in (0, 1)
    assert list(Bundle(made).rows(table))


AROUND = {
    "a prompt": ("$ cat /proc/{name}\n", "{line}\n", "$ exit\n"),
    "words": ("Dear all, my {name}:\n\n", "{line}\n", "\nWhat is wrong?\n"),
    "a quote": ("On Monday you wrote:\n", "> {line}\n", "I see.\n"),
    "markdown": ("```\n", "{line}\n", "```\n"),
    "indented": ("", "    {line}\n", ""),
    "CRLF": ("{name}\r\n", "{line}\r\n", "\r\n"),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("meminfo", "memory_ledger"), ("vmstat", "vm_counters"), ("zoneinfo", "zones"),
        ("buddyinfo", "free_blocks"), ("slabinfo", "slab_caches"),
        ("pagetypeinfo", "pageblocks"),
    ],
)  # fmt: skip
def test_a_file_of_proc_among_other_words(
    tmp_path: Path, name: str, table: str, around: str
) -> None:
    text = (TREE / "proc" / name).read_text()
    head, line, end = AROUND[around]
    lines = "".join(line.format(line=each) for each in text.splitlines())
    alone, among = put(tmp_path, "alone", text), head.format(name=name) + lines + end
    rows = []
    for number, path in enumerate((alone, put(tmp_path, "among", among))):
        made = tmp_path / f"case-{number}"
        assert main(["collect", path, "-o", str(made), "--no-findings"]) in (0, 1)
        rows.append(list(Bundle(made).rows(table)))
    assert rows[0] == rows[1] != []


def test_files_of_proc_one_behind_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("meminfo", "zoneinfo", "buddyinfo", "vmstat", "slabinfo")
    text = "".join((TREE / "proc" / name).read_text() for name in (*names, "meminfo"))
    made = tmp_path / "case"
    assert main(["collect", put(tmp_path, "x", text), "-o", str(made), "--no-findings"]) == 1
    tables = ("memory_ledger", "zones", "free_blocks", "vm_counters", "slab_caches")
    assert all(list(Bundle(made).rows(table)) for table in tables)
    assert "x: /proc/meminfo was given before, and one is read" in capsys.readouterr().err


def test_a_log_and_files_of_proc_in_one_text(tmp_path: Path) -> None:
    vmstat = (TREE / "proc/vmstat").read_text()
    bundle = collect(tmp_path, put(tmp_path, "x", f"# dmesg\n{LOG}# cat /proc/vmstat\n{vmstat}"))
    assert victims(bundle) == ["java"]
    assert list(bundle.rows("vm_counters"))


def test_smaps_alone_has_its_shares(tmp_path: Path) -> None:
    lines = ("Size", "Rss", "Pss", "Pss_Anon", "Pss_File", "Pss_Shmem", "Shared_Clean",
             "Shared_Dirty", "Private_Clean", "Private_Dirty", "SwapPss", "Locked")  # fmt: skip
    mapping = "55d0c5a4f000-55d0c5a51000 r--p 00000000 fe:00 1048      /usr/bin/cat\n"
    text = (mapping + "".join(f"{line}:        4 kB\n" for line in lines)) * 3
    bundle = collect(tmp_path, put(tmp_path, "4711/smaps", text))
    rows = [(row["pid"], row["pss_bytes"]) for row in bundle.rows("process_shares")]
    assert rows == [(4711, 12 << 10)]
    assert [row["vmas"] for row in bundle.rows("process_vmas")] == [3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("anon 4096\nfile 8192\n", ("anon", 4096)),
        ("cache 7\nrss 4096\ntotal_rss 5\n", ("cache", 7)),
    ],
)
def test_a_cgroup_s_memory_stat_alone_has_its_counters(
    tmp_path: Path, text: str, value: tuple[str, int]
) -> None:
    bundle = collect(tmp_path, put(tmp_path, "memory.stat", text))
    (row,) = bundle.rows("memory_cgroups")
    assert (row["cgroup"], row["usage_bytes"]) == ("/given", None)
    counters = {(row["counter"], row["value"]) for row in bundle.rows("memory_cgroup_counters")}
    assert value in counters


@pytest.mark.parametrize("name", ["sysctl.txt", "sosreport-x/sos_commands/kernel/sysctl_-a"])
def test_settings_are_read_out_of_sysctl(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, "fs.aio-nr = 0\nvm.min_free_kbytes = 67584\nvm.swappiness = 60\n")
    (tmp_path / "sosreport-x/proc").mkdir(parents=True, exist_ok=True)
    given = name if name == "sysctl.txt" else "sosreport-x"
    rows = {
        row["name"]: row["value"]
        for row in collect(tmp_path, str(tmp_path / given)).rows("settings")
    }
    assert rows == {"vm.min_free_kbytes": "67584", "vm.swappiness": "60"}


PSI = (
    "some avg10=71.20 avg60=60.00 avg300=20.00 total=8\n"
    "full avg10=44.00 avg60=30.10 avg300=9.00 total=4\n"
)


@pytest.mark.parametrize("name", ["io", "cpu.pressure", "pressure-irq.txt"])
def test_the_pressure_of_something_else_is_not_memory_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["why", str(put(tmp_path, name, PSI)), "-o", str(tmp_path / "case")]) == 3
    assert ", and not of memory\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("memory", "of the last minute"),
        ("memory.pressure", "Tasks of memory cgroup /given wait"),
        ("psi.txt", "(by its form alone: cpu and io have the same)"),
    ],
)
def test_the_pressure_of_memory_is_the_machine_s_or_a_cgroup_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    put(tmp_path, name, PSI)
    assert main(["why", str(tmp_path / name), "-o", str(tmp_path / "case")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_kill_of_a_program_is_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = 'sending SIGTERM to process 7 uid 0 "chrome": badness 852, VmRSS 2500 MiB'
    main(["why", put(tmp_path, "log", f"earlyoom 1.7\n{line}\n"), "-o", str(tmp_path / "case")])
    said = " ".join(capsys.readouterr().out.split())
    assert "verdict Trouble (warning)" in said
    assert "earlyoom killed chrome (pid 7) for memory, which held 2.441 GiB" in said


def test_several_things_are_one_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = collect(
        tmp_path, TREE, put(tmp_path, "dmesg.txt", LOG), put(tmp_path, "cpu.perf", PERF),
        put(tmp_path, "owners", OWNER),
    )  # fmt: skip
    assert victims(bundle) == ["java"]
    assert list(bundle.rows("zones"))
    assert [row["samples"] for row in bundle.rows("profiles")] == [1]
    assert [row["pages"] for row in bundle.rows("page_owner_stacks")] == [1]
    assert capsys.readouterr().err.count(": text of perf script") == 1


def test_an_archive_with_a_tree_a_log_and_a_profile(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in (
            ("case/a/dmesg.log", LOG), ("case/b/script.out", PERF), ("case/b/po", OWNER),
            ("case/c", (TREE / "proc/vmstat").read_text()),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    bundle = collect(tmp_path, put(tmp_path, "from-customer", made.getvalue()))
    assert victims(bundle) == ["java"]
    assert list(bundle.rows("profiles")) and list(bundle.rows("page_owner_stacks"))
    assert list(bundle.rows("vm_counters"))


def test_a_folder_of_files_is_read_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "in/a.txt", LOG)
    put(tmp_path, "in/b.txt", "Dear all, it is slow.\n")
    put(tmp_path, "in/c.txt", PERF)
    os.mkfifo(tmp_path / "in/pipe")
    bundle = collect(tmp_path, tmp_path / "in", code=1)
    assert victims(bundle) == ["java"] and list(bundle.rows("profiles"))
    said = capsys.readouterr().err
    assert "b.txt: not recognised: it looks like a text that mmscope does not know" in said


def test_what_is_not_recognised_costs_itself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    bundle = collect(
        tmp_path, put(tmp_path, "log", LOG), put(tmp_path, "shot.png", b"\x89PNG\r\n\x1a\n"),
        tmp_path / "pipe", tmp_path / "missing", "/dev/zero", code=1,
    )  # fmt: skip
    assert victims(bundle) == ["java"]
    said = capsys.readouterr().err
    assert "shot.png: not recognised: it looks like a picture: bring the text" in said
    assert "pipe: is not a plain file" in said
    assert "missing: No such file or directory" in said
    assert "/dev/zero: is not a plain file" in said


def test_nothing_to_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", put(tmp_path, "x", "\0\0\0"), "-o", str(tmp_path / "case")]
    assert main(words) == 3
    assert "nothing that was given can be read" in capsys.readouterr().err
    assert not (tmp_path / "case").exists()


def test_a_dump_in_an_archive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, "vmcore.gz", gzip.compress(b"KDUMP   " + bytes(600)))
    assert main(["collect", path, "-o", str(tmp_path / "case")]) == 3
    assert f"a vmcore, compressed: unpack it before: gunzip -k {path}" in capsys.readouterr().err


def test_a_zip_that_is_packed_once_more_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "logs.zip.gz", gzip.compress(b"PK\3\4" + bytes(600)))
    assert main(["collect", path, "-o", str(tmp_path / "case")]) == 3
    assert f"an archive, compressed: unpack it before: gunzip -k {path}" in capsys.readouterr().err


def test_two_dumps_are_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [put(tmp_path, name, b"KDUMP   " + bytes(600)) for name in "ab"]
    assert main(["collect", *paths, "-o", str(tmp_path / "case")]) == 3
    assert "a second vmcore" in capsys.readouterr().err


# why


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_owners_of_pages_however_they_are_packed(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    bundle = collect(tmp_path, put(tmp_path, "owners", pack(OWNER.encode())))
    assert [row["pages"] for row in bundle.rows("page_owner_stacks")] == [1]


def test_why_says_what_was_recognised_and_not_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    standard_input: Callable[[int], None],
) -> None:
    packed = gzip.compress(OWNER.encode() * 5000)[:-8]
    with open(put(tmp_path, "owners", packed), "rb") as owners:
        standard_input(owners.fileno())
        assert main(["why", "-", "-o", str(tmp_path / "made")]) == 1
    assert "page_owner: failed: standard input: damaged: gzip" in capsys.readouterr().err


def why(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main(["why", *map(str, words)]) == code
    return capsys.readouterr().out.splitlines()


def test_why_is_ten_lines_of_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = why(capsys, put(tmp_path, "dmesg.txt", LOG))
    labels = ["read", "verdict", "cause", "harm", "since", "unknown", "next", "run", "bundle"]
    assert [line[:9].strip() for line in lines if line[0] != " "] == labels
    assert len(lines) <= 10 and max(map(len, lines)) <= 80
    assert lines[0] == f"{'read':9}a kernel log (dmesg.txt)"
    assert lines[1].startswith(f"{'verdict':9}Trouble (")
    assert "killed java" in lines[2]
    # It leaves its bundle, and says where.
    bundle = Path(lines[-1].split()[1])
    assert victims(Bundle(bundle)) == ["java"]
    # Of which it says the same again.
    assert why(capsys, bundle)[1:8] == lines[1:8]
    # What is run next is about what was given: this host is another.
    (step,) = (line for line in lines if line.startswith("next"))
    assert step.startswith(f"{'next':9}On the host, while it lasts: ")
    assert lines[-2].split() == ["run", "mmscope", "findings", bundle.name]


def test_why_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    lines = why(capsys, put(tmp_path, "dmesg.txt", LOG), "--json", "-o", made)
    answer = json.loads("\n".join(lines))
    assert answer["verdict"] == "trouble" and answer["bundle"] == str(made)
    assert answer["read"] == ["a kernel log (dmesg.txt)"]
    assert answer["unknown"] and answer["command"]


def test_why_of_what_says_little_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    lines = why(capsys, path, "-o", tmp_path / "made", code=0)
    assert lines[1].startswith(f"{'verdict':9}")
    assert "No trouble found by" in lines[1] or "Cannot tell" in lines[1]
    assert [line[:9].strip() for line in lines if line[0] != " "][-2:] == ["run", "bundle"]


def test_why_shows_names_of_strangers_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "a\x1b[2Jb\n.txt", LOG)
    lines = why(capsys, path, "-o", tmp_path / "made")
    assert len(lines) <= 10 and all(line.isprintable() for line in lines)


def test_why_of_an_old_tree_says_what_is_in_no_counter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 3.10, without /sys: hugetlb is that of meminfo; the balloon is that of the log."""
    texts = {"meminfo": meminfo(), "vmstat": OLD, "zoneinfo": ZONE}
    for name, text in texts.items():
        put(tmp_path, f"tree/proc/{name}", text)
    log = put(tmp_path, "log", "[    1.000000] Hypervisor detected: VMware\n")
    lines = why(capsys, tmp_path / "tree", log, "-o", tmp_path / "made")
    assert lines[1].startswith(f"{'verdict':9}Trouble (warning)")
    assert "67.3 % of memory, is in no counter of the kernel" in lines[2]
    rows = Bundle(tmp_path / "made").rows("hypervisor_signs")
    assert [(row["name"], row["seen_in"]) for row in rows] == [("VMware", "log")]


def test_why_of_a_container_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"meminfo": meminfo(MemFree=7_080_000), "vmstat": OLD, "zoneinfo": ZONE,
             "self/mounts": "lxcfs /proc/meminfo fuse.lxcfs rw 0 0\n"}  # fmt: skip
    for name, text in texts.items():
        put(tmp_path, f"tree/proc/{name}", text)
    answer = json.loads("".join(why(capsys, tmp_path / "tree", "--json", "-o", tmp_path / "made")))
    assert any("a container's (lxcfs)" in words for words in answer["unknown"])
    free = {r["part"]: r["pages"] for r in Bundle(tmp_path / "made").rows("memory_ledger")}
    assert free["free lists"] == 210_000


# Profiles


SAMPLER = "cycles:"
FAULT = (
    "\t7f12 handle_mm_fault ([kernel.kallsyms])\n\t7f13 do_user_addr_fault ([kernel.kallsyms])\n"
)
FITTING = [
    (
        "page-fault splits 66.7 % of the samples into parts",
        [(SAMPLER, FAULT)] * 2 + [(SAMPLER, "\t7f main (/x)\n")],
    ),
    ("", [(SAMPLER, "\t7f main (/x)\n")] * 20 + [(SAMPLER, FAULT)]),
    (
        "rmap splits mmscope:rmap_walk_anon into parts",
        [(SAMPLER, FAULT), ("mmscope:rmap_walk_anon:", FAULT)],
    ),
    ("atomic-alloc or thp splits kmem:mm_page_alloc into parts", [("kmem:mm_page_alloc:", FAULT)]),
]


@pytest.mark.parametrize(("words", "samples"), FITTING)
def test_a_profile_that_a_recipe_shows_more_of(
    tmp_path: Path,
    words: str,
    samples: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "".join(f"x 7/7 [001] 1.000000: 1 {event} \n{stack}\n" for event, stack in samples)
    bundle = collect(tmp_path, put(tmp_path, "script.txt", text))
    notes = [row["note"] for row in bundle.rows("profile_notes") if "recipe" in row["note"]]
    recipe = words.split()[0] if words else ""
    command = f"'mmscope record {recipe} --input FILE -o BUNDLE'"
    assert notes == ([f"folded without a recipe; recipe {words}: {command}"] if words else [])
    assert ("without a recipe" in capsys.readouterr().err) == bool(words)
    assert sum(row["samples"] for row in bundle.rows("profiles")) == len(samples)
