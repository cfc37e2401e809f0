# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command as a user meets it: exit codes, one line for each error, pipes, signals, full disks.
"""

import argparse
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from checkout import TESTS
from command_line import POWERLESS, ROOT, run
from elf_files import VMLINUX, gnu, vmcore
from plain_rows import Plain, write

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.prices import SETTINGS
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Section
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.commands import command
from mmscope.reports.commands.command import build_parser, main

TREE = TESTS / "data" / "7.2"


def refused(code: int, words: str, *arguments: object, **options: Any) -> None:
    """The command fails with one line on stderr, and nothing on stdout."""
    result = run(*arguments, **options)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("mmscope: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert words in result.stderr
    assert result.stdout == ""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write(
        tmp_path / "b",
        [Plain("a,\x1b[31m", 4096, None, "x\ny", True), Plain("", 0, 0.5, None, None)],
    )
    return tmp_path / "b"


@pytest.fixture(scope="module")
def of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all that a tree of text tells."""
    path = tmp_path_factory.mktemp("tree") / "b"
    assert run("collect", "--proc-root", TREE, "-o", path).returncode == 1
    return path


# What cannot be read: 3.


@pytest.mark.parametrize("command", ["collect", "show"])
def test_a_target_that_cannot_be_opened_is_3(tmp_path: Path, command: str) -> None:
    output = ["-o", tmp_path / "out"] if command == "collect" else ["zones"]
    (tmp_path / "text").write_text("hello")
    (tmp_path / "vmcore").write_bytes(vmcore())
    (tmp_path / "vmlinux").write_bytes(VMLINUX.replace(gnu(), gnu(bytes(20))))
    refused(3, "no: no such file (given as --core)", command, "--core", tmp_path / "no", *output)
    refused(3, "is a folder; --core must be a file", command, "--core", tmp_path, *output)
    refused(3, "text: not a vmcore: neither", command, "--core", tmp_path / "text", *output)
    refused(
        3, "does not fit: its build ID is 00000000", command, "--core", tmp_path / "vmcore",
        "--symbols", tmp_path / "vmlinux", *output,
    )  # fmt: skip
    refused(3, "has no folder 'proc'", command, "--proc-root", tmp_path, *output)
    assert not (tmp_path / "out").exists()


def test_a_target_that_this_user_may_not_read_is_3(tmp_path: Path) -> None:
    (tmp_path / "vmcore").write_bytes(vmcore())
    (tmp_path / "vmcore").chmod(0)
    refused(
        3, "no permission to read it; run as root or copy it",
        "show", "zones", "--core", tmp_path / "vmcore", prefix=POWERLESS,
    )  # fmt: skip


def test_v_shows_the_traceback(tmp_path: Path) -> None:
    result = run("show", "zones", "--core", tmp_path / "no", "-v")
    assert result.returncode == 3
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("mmscope: ")


# What was asked for in the wrong way: 2.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "mmscope: no 'dance'; there is why, "),
        (["--hlp"], "mmscope: --hlp: unknown; did you mean --help? See 'mmscope --help'"),
        (["-v"], "mmscope: give a command, such as 'mmscope why'; see 'mmscope --help'"),
        (["watch", "--intervall", "3"], "--intervall: unknown; did you mean --interval? See "),
        (["collect", "--only", "zone"], "no section 'zone'; did you mean zones? See "),
        (["collct"], "collct: unknown; did you mean collect?"),
        (["findings", "x", "--jsn"], "--jsn: unknown; did you mean --json?"),
        (["lake", "fidings", "x"], "fidings: unknown; did you mean findings?"),
        (["show", "free_block"], "did you mean free_blocks?"),
        (["collect", "-o", "x", "--only", "pageblock"], "did you mean pageblocks?"),
        (["collect"], "mmscope collect: give -o/--output; see 'mmscope collect --help'\n"),
        (["lake"], "mmscope lake: give one of add, "),
        (["show", "zones", "x", "--tpo", "3"], "mmscope show: --tpo: unknown; did you mean --top?"),
        (
            ["collect", "-o", "x", "--only", "zones,moods"],
            "no section 'moods'; sections: memory_ledger, process_memory, memory_cgroups, ",
        ),
        (["collect", "-o", "x", "--only", ""], "no section ''"),
        (["collect", "-o", "x", "--core", "a", "--qemu", "b"], "not allowed with argument"),
        (
            ["show", "zones", "--format", "xml"],
            "mmscope show: --format: no 'xml'; there is table, csv, ",
        ),
        (["show", "zones", "--pageblock-order", "64"], "--pageblock-order: no '64'; there is "),
    ],
)
def test_bad_usage_is_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr and result.stderr.count("\n") == 1


# What to type.


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["--help"]])
def test_without_a_command_it_says_what_to_type_first(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert "  mmscope why " in lines[2]
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if re.match(r"  [a-z-]+  +[a-zA-Z]", line)] == [
        name for names in command.GROUPS.values() for name in names
    ]


def test_every_command_is_in_a_group_and_its_help_ends_with_examples_that_can_be_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grouped = [name for names in command.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(command.DECLARED) == sorted(command.EXAMPLES)
    for name, lines in command.EXAMPLES.items():
        assert run("help", name).stdout.endswith(f"  mmscope {lines[-1]}\n")
        for line in lines:
            words = [command.VERSUS if word == "--" else word for word in line.split()]
            assert words[0] == name
            command.build_parser([name]).parse_args(words)


@pytest.mark.parametrize("typed", ["lake add", "lake report", "guard trigger"])
def test_help_of_an_action_has_its_own_examples(typed: str) -> None:
    lines = run(*typed.split(), "--help").stdout.partition("\nexamples:\n")[2].splitlines()
    assert lines and all(line.startswith(f"  mmscope {typed}") for line in lines)


def test_json_is_what_format_json_is(bundle: Path) -> None:
    assert run("show", "plain", bundle, "--json").stdout == (
        run("show", "plain", bundle, "--format", "json").stdout
    )


def test_findings_as_json_have_the_verdict_and_what_was_not_checked(of_the_tree: Path) -> None:
    found = json.loads(run("findings", of_the_tree, "--json").stdout)
    assert found["verdict"] in ("trouble", "cannot tell", "no trouble found")
    assert found["not_checked"]


def test_options_that_do_not_fit_together_are_2(bundle: Path) -> None:
    refused(2, "give a BUNDLE or a target, not both", "show", "plain", bundle, "--core", "x")
    refused(2, "go with a kernel's memory",
            "show", "zones", "--proc-root", TREE, "--symbols", "x")  # fmt: skip
    refused(2, "moods: no such section or table, and no bundle given", "show", "moods")
    refused(2, "a bundle; 'mmscope show tables", "show", bundle)


def test_a_table_of_a_target_is_that_of_its_section() -> None:
    section = run("show", "pageblocks", "--proc-root", TREE, "--format", "json")
    table = run("show", "pageblocks", "--proc-root", TREE, "--format", "csv")
    other = run("show", "thp_blocks", "--proc-root", TREE)
    assert json.loads(section.stdout)["pageblocks"]
    assert table.returncode == 0
    free = run("show", "free_blocks", "--proc-root", TREE, "--format", "json")
    whole = run("show", "free_lists", "--proc-root", TREE, "--format", "json")
    assert list(json.loads(free.stdout)) == ["free_blocks"]
    assert json.loads(free.stdout)["free_blocks"] == json.loads(whole.stdout)["free_blocks"]
    assert other.returncode == 2


def test_a_table_that_is_not_there_is_2(bundle: Path) -> None:
    refused(2, "has no table zones; it has plain, sections", "show", "zones", bundle)


@pytest.mark.parametrize("command", [["show", "tables"], ["findings"], ["report", "-o", "x.html"]])
def test_what_is_no_bundle_is_2(tmp_path: Path, command: list[str]) -> None:
    refused(2, "not a bundle: there is no such folder", *command, tmp_path / "no")


def test_an_output_that_exists_is_2_and_stays(bundle: Path) -> None:
    refused(2, "already exists; choose another name or use --force",
            "collect", "--proc-root", TREE, "-o", bundle)  # fmt: skip
    assert "plain" in Bundle(bundle).tables


def test_an_output_that_cannot_be_written_is_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(2, "file/b: cannot write there: ",
            "collect", "--proc-root", TREE, "-o", tmp_path / "file" / "b")  # fmt: skip
    (tmp_path / "locked").mkdir(mode=0o555)
    refused(2, "b: cannot write there: Permission denied", "collect", "--proc-root", TREE,
            "-o", tmp_path / "locked" / "b", prefix=POWERLESS)  # fmt: skip


def test_a_full_disk_is_2_and_leaves_nothing(small_disk: Path) -> None:
    refused(2, "b: cannot write: ", "collect", "--proc-root", TREE, "-o", small_disk / "b")
    assert list(small_disk.iterdir()) == []


# Collect.


def statuses(tree: Path, section: Section) -> set[str]:
    """
    How a section may fare with a tree of text: it is absent where the tree does not have what it
    reads first. Of settings a tree has some.
    """
    if not section.reads:
        return {"absent"}
    first = section.reads[0]
    if not any(any(tree.glob(pattern[1:])) for pattern in first.split()):
        return {"absent"}
    return {"ok", "absent"} if first == SETTINGS else {"ok"}


def test_collect_from_a_tree_of_text(tmp_path: Path) -> None:
    result = run("collect", "--proc-root", TREE, "-o", tmp_path / "b")
    assert result.returncode == 1, "what text does not tell is missing"
    lines = [line.split(": ") for line in result.stderr.splitlines()]
    read = Bundle(tmp_path / "b")
    status = {section.section: section.status for section in read.sections}
    assert list(status) == list(SECTIONS)
    for name, section in SECTIONS.items():
        assert status[name] in statuses(TREE, section), name
    missing = [name for name in SECTIONS if status[name] != "ok" and not SECTIONS[name].optional]
    assert [words[1:3] for words in lines] == [[name, "absent"] for name in missing]
    as_root = " (as root)" if os.geteuid() else ""
    assert (
        "mmscope: accounting: absent: the parts of NR_FREE_PAGES are not in /proc; read the "
        f"kernel's memory{as_root}"
    ) in result.stderr.splitlines()
    assert "WARNING  Node 1 zone Normal: 446.7 MiB free, 99.1 %" in " ".join(
        result.stdout.split("\n")
    )
    assert read.target["kind"] == "files"
    assert read.target["release"] == "7.2.12+deb13-cloud-amd64"
    assert (read.target["page_size"], read.target["total_pages"]) == (4096, 393086)
    assert read.target["uptime_seconds"] == 17.26
    assert read.target["hostname"] is None
    assert [(z["node"], z["zone"], z["wmark_low"]) for z in read.rows("zones")] == [
        (0, "DMA", 225), (0, "DMA32", 6377), (1, "Normal", 14515),
    ]  # fmt: skip
    assert sum(row["pages"] for row in read.rows("free_blocks")) > 100_000


def test_only_collects_only(tmp_path: Path) -> None:
    result = run("collect", "--proc-root", TREE, "-o", tmp_path / "b", "--only", "zones,settings")
    assert (result.returncode, result.stderr) == (0, "")
    assert list(Bundle(tmp_path / "b").tables) == [
        "zones", "settings", "kernel_features", "sections",
    ]  # fmt: skip


def test_what_is_rarely_switched_on_is_missed_only_if_asked_for(tmp_path: Path) -> None:
    result = run("collect", "--proc-root", TREE, "-o", tmp_path / "b", "--only", "slab_owner")
    assert result.returncode == 1
    assert result.stderr.startswith("mmscope: slab_owner: absent: ")
    assert "boot with slab_debug=U" in result.stderr


def test_force_replaces(bundle: Path) -> None:
    result = run("collect", "--proc-root", TREE, "-o", bundle, "--force", "--only", "zones")
    assert result.returncode == 0
    assert "plain" not in Bundle(bundle).tables


def test_an_older_tree_says_what_is_unknown(tmp_path: Path) -> None:
    """6.1: no HighAtomic lines in zoneinfo, and pagetypeinfo only for root."""
    shutil.copytree(TREE, tmp_path / "root")
    shutil.copy(TREE.parent / "6.1" / "zoneinfo", tmp_path / "root" / "proc" / "zoneinfo")
    (tmp_path / "root" / "proc" / "pagetypeinfo").unlink()
    result = run("collect", "--proc-root", tmp_path / "root", "-o", tmp_path / "b")
    assert result.returncode == 1
    assert "zones: partial: HighAtomic reserve unknown: " in result.stderr
    assert "pageblocks: absent: " in result.stderr
    assert "/proc/buddyinfo has orders, but no migratetypes" in result.stderr
    # The memory and the managed pages differ, and what both files count tells.
    assert Bundle(tmp_path / "b").target["page_size"] == 4096


@pytest.mark.parametrize("file", ["zoneinfo", "vmstat", "pagetypeinfo", "buddyinfo", "uptime",
                                  "meminfo", "version", "iomem", "cmdline"])  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0garbage\n", b"Node 0, zone\n" * 3])
def test_a_damaged_file_costs_its_own_sections(
    tmp_path: Path, of_the_tree: Path, file: str, content: bytes
) -> None:
    shutil.copytree(TREE, tmp_path / "root")
    (tmp_path / "root" / "proc" / file).write_bytes(content)
    files = Files(tmp_path / "root")
    with Writer(tmp_path / "b") as writer:
        sections = collect(files, describe_files(files), writer)
    status = {section.section: section.status for section in sections}
    needs = {
        "zoneinfo": {
            **dict.fromkeys(("zones", "pcp_lists"), "failed"),
            **dict.fromkeys(("physical_memory", "memory_ledger"), "partial"),
        },
        "meminfo": {
            **dict.fromkeys(("poisoned_pages", "hugetlb"), "absent"),
            "memory_ledger": "partial",
        },
        "vmstat": {"vm_counters": "failed", "memory_ledger": "partial"},
        "pagetypeinfo": {"free_lists": "partial", "pageblocks": "failed"},
        "iomem": {"physical_memory": "partial"},
    }.get(file, {})
    # And what is of this file alone.
    usual = {section.section: section.status for section in Bundle(of_the_tree).sections}
    alone = {name for name, section in SECTIONS.items() if section.reads == (f"/proc/{file}",)}
    changed = {name: how for name, how in status.items() if how != usual[name]}
    assert needs.items() <= changed.items()
    assert changed.keys() <= needs.keys() | alone
    for section in sections:
        if section.status == "failed":
            assert section.message is not None
            assert f"/proc/{file}" in section.message
            assert "\n" not in section.message


def test_a_link_out_of_the_tree_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    shutil.copytree(TREE, tmp_path / "root")
    for file in ("zoneinfo", "vmstat"):
        (tmp_path / "root" / "proc" / file).unlink()
    (tmp_path / "root" / "proc" / "vmstat").symlink_to("/proc/vmstat")
    os.mkfifo(tmp_path / "root" / "proc" / "zoneinfo")
    result = run("show", "vm_counters", "--proc-root", tmp_path / "root")
    assert result.returncode == 1
    assert "vm_counters: absent: " in result.stderr
    assert "vmstat: is not a plain file of this tree" in result.stderr
    result = run("collect", "--proc-root", tmp_path / "root", "-o", tmp_path / "b")
    assert result.returncode == 1
    assert "zones: absent: " in result.stderr
    assert "zoneinfo: is not a plain file of this tree" in result.stderr


def test_without_memory_the_live_kernel_is_read_as_text(tmp_path: Path) -> None:
    """Without the right to read /proc/kcore, or where there is none."""
    result = run("collect", "-o", tmp_path / "b", prefix=POWERLESS)
    first, *others = result.stderr.splitlines()
    assert result.returncode == 1
    assert first.startswith("mmscope: ")
    assert first.endswith("; reading /proc and /sys instead")
    assert all(line.startswith("mmscope: ") for line in others)
    read = Bundle(tmp_path / "b")
    assert read.target["kind"] == "files"
    assert read.target["release"] == os.uname().release
    assert str(read.target["fallback"]) in first
    assert {s.section for s in read.sections if s.status == "ok"} >= {"vm_counters"}


def test_interrupted_there_is_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "import mmscope.reports.commands.command, mmscope.reports.collect.collect\n"
        "from mmscope.drgn.sections.registry import SECTIONS\n"
        "import dataclasses\n"
        "def slow(source):\n"
        "    print('reading', flush=True)\n"
        "    time.sleep(30)\n"
        "SECTIONS['zones'] = dataclasses.replace(SECTIONS['zones'], from_files=slow)\n"
        "sys.exit(mmscope.reports.commands.command.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "collect", "--proc-root", str(TREE),
               "-o", str(tmp_path / "b")]  # fmt: skip
    with children.start(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "mmscope: interrupted; nothing is left half-written\n"
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


# Show.


def test_show_tables(bundle: Path) -> None:
    result = run("show", "tables", bundle)
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["plain", "sections"]


def test_show_as_a_table(bundle: Path) -> None:
    result = run("show", "plain", bundle)
    assert result.returncode == 0
    first, second = result.stdout.rstrip().splitlines()[-2:]
    assert first.split() == ["a,\\x1b[31m", "4,096", "-", "x\\ny", "True"]
    assert second.split() == ["0", "0.500", "-", "-"]
    assert "\x1b" not in result.stdout


def test_show_as_csv(bundle: Path) -> None:
    result = run("show", "plain", bundle, "--format", "csv")
    assert list(csv.reader(io.StringIO(result.stdout, newline=""))) == [
        ["name", "value", "share", "note", "sure"],
        ["a,\x1b[31m", "4096", "", "x\ny", "true"],
        ["", "0", "0.5", "", ""],
    ]


def test_show_as_json(bundle: Path) -> None:
    result = run("show", "plain", bundle, "--format", "json")
    assert json.loads(result.stdout) == list(Bundle(bundle).rows("plain"))


def test_show_the_first_rows(bundle: Path) -> None:
    shown = run("show", "plain", bundle, "--top", "1")
    assert shown.stdout.splitlines()[0].endswith(": the 1 of 2 with most value")
    assert (
        len(json.loads(run("show", "plain", bundle, "--top", "1", "--format", "json").stdout)) == 1
    )
    zones = run("show", "zones", "--proc-root", TREE, "--top", "2", "--format", "json")
    assert [row["zone"] for row in json.loads(zones.stdout)["zones"]] == ["DMA", "DMA32"]


def test_rows_of_zeros_are_below_the_others_where_one_looks() -> None:
    """free_blocks begins with a zone of 60 lists of which most are empty."""
    old = TESTS / "bundles" / "v0.1.0"
    shown = run("show", "free_blocks", old, "--top", "12").stdout.splitlines()
    assert shown[0] == "Free blocks: the 12 of 198 with most pages"
    pages = [int(line.split()[5].replace(",", "")) for line in shown[3:]]
    every = sorted((row["pages"] for row in Bundle(old).rows("free_blocks")), reverse=True)
    assert pages == every[:12] and pages[-1] > 0
    section = run("show", "free_blocks", "--proc-root", TREE, "--top", "2").stdout.splitlines()
    assert section[0].endswith("with most pages")
    runs = run("show", "pageblock_map", old, "--top", "2").stdout.splitlines()
    assert ": the first 2 of " in runs[0], "they follow each other by address"
    whole = run("show", "free_blocks", old).stdout.splitlines()
    zeros = [line.split()[4] == "0" for line in whole[3:]]
    assert len(zeros) == 198 and zeros == sorted(zeros) and True in zeros
    as_csv = csv.DictReader(io.StringIO(run("show", "free_blocks", old, "--format", "csv").stdout))
    assert [row["blocks"] for row in as_csv][:2] == ["0", "0"], "programs get them as they are"


def test_every_option_says_its_default() -> None:
    def silent(parser: argparse.ArgumentParser) -> Iterator[str]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    yield from silent(each)
            elif action.nargs != 0 and action.default not in (None, "", (), [], argparse.SUPPRESS):
                yield from [] if "default" in (action.help or "").lower() else [action.dest]

    assert not list(silent(build_parser()))


@pytest.mark.parametrize("option", [("--pid", "1"), ("--sort", "times"), ("--cull", "pid")])
def test_what_does_nothing_to_a_table_is_refused(bundle: Path, option: tuple[str, str]) -> None:
    for what in (("plain", bundle), ("zones", "--proc-root", TREE)):
        result = run("show", *what, *option)
        assert (result.returncode, result.stdout) == (2, "")
        assert "page_owner files" in result.stderr


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_show_a_section_of_a_target(form: str) -> None:
    result = run("show", "zones", "--proc-root", TREE, "--format", form)
    assert (result.returncode, result.stderr) == (0, "")
    if form == "json":
        assert [row["zone"] for row in json.loads(result.stdout)["zones"]] == [
            "DMA", "DMA32", "Normal",
        ]  # fmt: skip
    elif form == "csv":
        assert [row["zone"] for row in csv.DictReader(io.StringIO(result.stdout))] == [
            "DMA", "DMA32", "Normal",
        ]  # fmt: skip
    else:
        assert "Normal" in result.stdout


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_section_that_is_absent_is_1(form: str) -> None:
    result = run("show", "accounting", "--proc-root", TREE, "--format", form)
    assert result.returncode == 1
    assert result.stderr.startswith("mmscope: accounting: absent: ")
    assert result.stdout == ("{}\n" if form == "json" else "")


# Pipes and odd terminals.


@pytest.mark.parametrize(
    "arguments",
    [["show", "vm_counters", "--proc-root", str(TREE)],
     ["show", "vm_counters", "--proc-root", str(TREE), "--format", "csv"],
     ["show", "vm_counters", "--proc-root", str(TREE), "--format", "json"],
     ["doctor"], ["--help"], ["why", "--help"], ["--version"]],
    ids=["table", "csv", "json", "doctor", "help", "help of a command", "version"],
)  # fmt: skip
def test_a_reader_that_leaves_early_is_no_failure(arguments: list[str]) -> None:
    read, write_end = os.pipe()
    os.close(read)
    with os.fdopen(write_end, "w") as gone:
        result = run(*arguments, stdout=gone, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, "")


def test_findings_into_a_reader_that_leaves_early(of_the_tree: Path) -> None:
    read, write_end = os.pipe()
    os.close(read)
    with os.fdopen(write_end, "w") as gone:
        result = run("findings", of_the_tree, stdout=gone, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_onto_a_full_disk_is_said(word: str) -> None:
    with open("/dev/full", "w") as full:
        result = run(word, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stderr == "mmscope: output: No space left on device\n"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_output_onto_a_full_disk_is_said(bundle: Path, form: str) -> None:
    with open("/dev/full", "w") as full:
        result = run("show", "plain", bundle, "--format", form, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stderr == "mmscope: output: No space left on device\n"


def test_a_terminal_that_is_not_utf8(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("père", 1, None, None, None)])
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for form in ("table", "csv"):
        result = run("show", "plain", tmp_path / "b", "--format", form, env=environment)
        assert result.returncode == 0
        assert "p\\xe8re" in result.stdout


def test_words_of_a_stranger_are_shown_not_sent(bundle: Path) -> None:
    path = bundle / "datapackage.json"
    data = json.loads(path.read_text())
    data["resources"][0]["title"] = "\x1b]0;owned\x07"
    path.write_text(json.dumps(data))
    for what in ("tables", "plain"):
        result = run("show", what, bundle)
        assert "\x1b" not in result.stdout
        assert "\\x1b]0;owned\\x07" in result.stdout
    hostile = bundle.with_name("\x1b[31m")
    refused(2, "\\x1b[31m: not a bundle", "findings", hostile)


def test_findings_say_what_was_not_checked(tmp_path: Path) -> None:
    with Writer(tmp_path / "b") as writer:
        why = "boot with \x1b[1mpage_owner=on"
        writer.finish({"kind": "vmcore"}, [SectionResult("zones", "absent", 0.0, 0, 0, why)])
    result = run("findings", tmp_path / "b")
    assert (result.returncode, result.stderr) == (0, "")
    said = " ".join(result.stdout.split())
    assert re.match(
        r"Cannot tell: none of \d+ checks could run\..*Not checked: \d+ \(.*\bvm counters \d",
        said,
    )
    assert len(result.stdout.splitlines()) <= 10
    result = run("findings", tmp_path / "b", "--all")
    assert "no table zones in this bundle" in " ".join(result.stdout.split())
    assert "\x1b" not in result.stdout


def test_findings_all_say_what_is_not_so(of_the_tree: Path) -> None:
    result = run("findings", of_the_tree, "--all")
    assert "ok       Zones whose free memory is below the min watermark" in result.stdout


def test_version() -> None:
    assert run("--version").stdout.startswith("mmscope 0.")


# Where another user may lead what root writes.

NO_ONE = 65534
WRITES: dict[str, list[object]] = {
    "report": ["report", TESTS / "bundles/v0.1.0"],
    "compare": ["compare", TESTS / "bundles/v0.1.0", "--", TESTS / "bundles/v0.1.0"],
    "redact": ["redact", TESTS / "bundles/v0.1.0"],
    "collect": ["collect", "--proc-root", TREE, "--only", "zones"],
    "watch": ["watch", "--proc-root", TREE, "--count", "1"],
    "record": ["record", "page-fault", "--input", TESTS / "corpus/perf/kept"],
}


@pytest.mark.parametrize("command", WRITES)
def test_a_planted_name_is_refused_and_what_it_leads_to_stays(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("root's")
    (shared / "link").symlink_to("../victim")
    (shared / "folder").mkdir()
    for path in (shared / "link", shared / "folder"):
        os.chown(path, NO_ONE, NO_ONE, follow_symlinks=False)
    for name in ("link", "folder/new"):
        verb, *rest = WRITES[command]
        result = run(verb, "-o", shared / name, *rest)
        assert result.returncode == 2, result.stderr
        line = result.stderr.splitlines()[-1]
        assert line.startswith(f"mmscope: {shared}/{name.split('/')[0]}: belongs to user 65534")
    assert victim.read_text() == "root's" and (shared / "link").is_symlink()
    assert sorted(os.listdir(shared)) == ["folder", "link"] and not os.listdir(shared / "folder")


def test_a_map_of_names_goes_where_no_other_user_leads_it(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NO_ONE, NO_ONE)
    words = [*WRITES["redact"], "-o", tmp_path / "made", "--redact-map", tmp_path / "theirs/map"]
    result = run(*words, prefix=["env", "-u", "SUDO_UID"])
    assert result.returncode == 2
    assert result.stderr.startswith(f"mmscope: {tmp_path}/theirs: belongs to user 65534; root")
    assert not os.listdir(tmp_path / "theirs") and not (tmp_path / "made").exists()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    command: str, tmp_path: Path
) -> None:
    """Which begins with reading the bundle; here there is none."""
    (tmp_path / "link").symlink_to("page")
    sides = ["a", "--", "b"] if command == "compare" else ["a"]
    for name in ("link", ".", "no/such/page"):
        result = run(command, "-o", tmp_path / name, *sides)
        assert result.returncode == 2 and result.stderr.startswith(f"mmscope: {tmp_path / name}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_words_of_the_command_line_are_quoted_legibly(capsys: pytest.CaptureFixture[str]) -> None:
    words = [["compare", "a", "--no", "f", "--", "b"], ["show", "a\x1b]52;\u202e", "b", "c\0"]]
    for these in (*words, ["doctor", "a\nmmscope: done"], ["record", "--seconds", "x\n"]):
        with pytest.raises(SystemExit):
            main(these)
        said = capsys.readouterr().err
        assert all(line.isprintable() for line in said.splitlines()), said
        assert said.startswith("mmscope") and said.count("\n") == 1


def test_the_sides_of_compare_may_have_options_between_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "a", "--format", "json", "--", "b", "c"]) == 2
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == [
        *(" a", " b", " c", " side A"),
    ]
