# SPDX-License-Identifier: LGPL-2.1-or-later
"""A redacted bundle has the numbers and none of the names."""

import dataclasses
import importlib
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_bundle
from checkout import ROOT
from report_bundle import tables, tables_of, write_bundle
from rows_of_tables import Contents

from mmscope.drgn.log.allocation_failures import AllocationFailure
from mmscope.drgn.machine.boot_options import MemoryOption
from mmscope.drgn.owners.alloc_tags import AllocTag
from mmscope.drgn.tables.rows import HOLDS, column, columns
from mmscope.perf.perf_record import Recorded
from mmscope.reports.bundle import redact as redaction
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.redact import (
    SIZES,
    Names,
    RedactingWriter,
    redact,
    redacted,
    write_map,
)
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import compare
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render
from mmscope.reports.profiles.making import Making
from mmscope.reports.profiles.recordings import MADE_BY

# Nothing of mmscope's own has this in it.
SECRET = "zqsecret"
# What a name may look like beside its letters.
SHAPES = (
    "{}", "my {} server", "/srv/{}/data.bin", "{}.example.com", "kworker/{}", "<b>{}</b>", "a;{};b",
    "{}=1", "comm={} x=1", "'{}'", "{}\n{}", "bpf_prog_0123456789abcdef_{}", "kswapd0{}", "{}:1",
    "\u202e{}",
)  # fmt: skip


# Of mmscope[mcp], [s3] and [spark], which need not be installed here. They declare no rows.
OPTIONAL = (
    "reports/serving/mcp_server.py",
    "reports/lake/bucket.py",
    "reports/fleet/spark.py",
)


def row_types() -> Iterator[type]:
    """Every row of a table that any file of ours declares."""
    for folder in ("drgn", "perf", "reports"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            if path.relative_to(ROOT).as_posix() in OPTIONAL:
                continue
            module = importlib.import_module(f"mmscope.{name}")
            for value in vars(module).values():
                if (
                    isinstance(value, type)
                    and value.__module__ == module.__name__
                    and dataclasses.is_dataclass(value)
                    and any(
                        "help" in field.metadata
                        for field in dataclasses.fields(value)
                        if field.name in vars(value)["__annotations__"]  # its own
                    )
                ):
                    yield value


ROW_TYPES = list(row_types())


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda row_type: row_type.__name__)
def test_every_text_column_says_whose_words_it_holds(row_type: type) -> None:
    text = [c for c in columns(row_type) if c.type == "string"]
    assert {c.name: c.holds for c in text if c.holds not in HOLDS} == {}
    assert [c.name for c in columns(row_type) if c.type != "string" and c.holds] == []


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda row_type: row_type.__name__)
def test_every_column_says_what_it_means(row_type: type) -> None:
    assert [c.name for c in columns(row_type) if not c.help.strip()] == []


def test_all_tables_are_looked_at() -> None:
    assert {row_type for _, row_type, _, _ in tables().values()} <= set(ROW_TYPES)


@dataclasses.dataclass(frozen=True)
class Strange:
    """Of a table that this mmscope does not know, or from before columns said what they hold."""

    zqsecret_name: str = column(key=True, help=f"{SECRET} in the help")
    word: str | None = column(help="a word that mmscope has, but who knows whose")
    number: int = column(help="a number")


def secrets() -> Iterator[str]:
    """Names in every shape, no two alike."""
    number = 0
    while True:
        for shape in SHAPES:
            number += 1
            yield shape.replace("{}", f"{SECRET}{number}")


def secret_tables(names: Iterator[str]) -> dict[str, Contents]:
    """Every table, with a name of its own in every text that is not the kernel's."""
    found: dict[str, Contents] = {}
    for name, (title, row_type, rows, section) in tables().items():
        holds = {c.name: c.holds for c in columns(row_type) if c.holds not in ("", "kernel")}
        changed = []
        for row in rows:
            words: dict[str, Any] = {}
            for column_name, kind in holds.items():
                here = getattr(row, column_name)
                if column_name in ("event", "recipe", "unit", "split", "file", "level", "part"):
                    continue  # tables of profiles are joined by them, and pictures drawn
                if kind == "profile":
                    words[column_name] = here and f"{here}_{SECRET}"
                elif kind == "words":
                    words[column_name] = f"{here or 'why'}: {next(names)} at 17 pages"
                else:
                    words[column_name] = next(names)
            changed.append(dataclasses.replace(row, **words))
        found[name] = (f"{title} of {next(names)}", row_type, changed, section)
    strange = [Strange(next(names), "kernel", 1), Strange(next(names), None, 2)]
    found[f"strange_{SECRET}"] = (f"Strange {SECRET}", Strange, strange, f"section {SECRET}")
    return found


def secret_bundle(path: Path) -> Bundle:
    """A bundle full of names; the numbers are those of every other test."""
    names = secrets()
    sections = [
        SectionResult(section, "partial", 0.5, 1, 0, f"process {next(names)}: cannot be read")
        for section in ("zones", "page_tables", "profiles", f"section {SECRET}")
    ]
    target = report_bundle.TARGET | {
        "hostname": f"{SECRET}.example.com",
        "source": f"vmcore-{SECRET}",
        "fallback": f"/srv/{SECRET}/core: no permission",
        f"{SECRET}_key": next(names),
    }
    with Writer(path) as writer:
        for name, (title, row_type, rows, section) in secret_tables(names).items():
            writer.table(name, title, row_type, rows, section=section)
        for name, stacks in report_bundle.PROFILED.items():
            lines = [
                (f"{next(names).replace(';', ',')};{SECRET}::main();{stack.partition(';')[2]}", n)
                for stack, n in stacks
            ]
            writer.folded(name, f"of {SECRET}", lines, unit="samples", section="profiles")
        writer.folded(f"other_{SECRET}", "T", [(SECRET, 1)], unit=SECRET, section=SECRET)
        writer.finish(target, sections)
    return Bundle(path)


def bytes_of(folder: Path) -> bytes:
    """Everything in a folder, the names of files with it."""
    files = sorted(folder.iterdir())
    return b"".join(path.name.encode() + path.read_bytes() for path in files)


def test_no_byte_of_a_redacted_bundle_or_its_report_has_a_name(tmp_path: Path) -> None:
    bundle = secret_bundle(tmp_path / SECRET)
    assert bytes_of(bundle.path).lower().count(SECRET.encode()) > 200
    made = redact(bundle, tmp_path / "made", Names())
    assert SECRET.encode() not in bytes_of(made.path).lower()
    assert len(made.tables) == len(bundle.tables) and len(made.folded) == len(bundle.folded)
    verdict = evaluate(made)
    versus = compare(made, made, (verdict, verdict), draw=True)
    html = render(made, verdict, versus)
    assert SECRET not in html.lower()
    assert "Names are replaced" in html and "comm-1" in html


def test_what_is_no_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number, every word of the kernel's and of mmscope's own; so leaky is taken for one."""
    own = redaction.vocabulary() | {"leaky"}
    monkeypatch.setattr(redaction, "vocabulary", lambda: own)
    bundle = write_bundle(tmp_path / "a", tables())
    made = redact(bundle, tmp_path / "b", Names())
    assert list(made.tables) == list(bundle.tables)
    for name, table in bundle.tables.items():
        here = made.tables[name]
        assert [(c.name, c.unit, c.help, c.key, c.type) for c in here.columns] == [
            (c.name, c.unit, c.help, c.key, c.type) for c in table.columns
        ]
        kept = [c.name for c in table.columns if c.holds in ("", "kernel", "words")]
        assert [[row[key] for key in kept] for row in made.rows(name)] == [
            [row[key] for key in kept] for row in bundle.rows(name)
        ]
    assert {k: made.target[k] for k in ("release", "captured_at", "kind", "total_pages")} == {
        k: bundle.target[k] for k in ("release", "captured_at", "kind", "total_pages")
    }


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda row_type: row_type.__name__)
def test_the_words_of_declarations_stay(row_type: type) -> None:
    names = Names()
    for c in columns(row_type):
        assert names.words(c.help) == c.help
        assert names.words(c.unit) == c.unit
        assert names.own(c.name, "column") == c.name


@pytest.mark.parametrize(
    "words",
    [
        "4,096 bytes of slabs could not be read: what is in them, and in trees below them, is not "
        "counted",
        "the free lists and NR_FREE_PAGES differ by the remainder shown",
        "times are estimates: visits times 60 ns (20 to 300), assumed",
        "20 of 3,000 anon_vmas are listed, those with most VMAs first",
        "took longer than 120 s and was stopped",
        "memory that it needs cannot be read (0xffffffff81234567): damaged, or left out",
        "comm=kswapd0 pid=7 prio=120 group_dead=true",
        "mt_mod 0xff3cb71601123840, DESTROY",
        "pid=7 comm=(others) total-vm=12kB anon-rss=4kB file-rss:0kB oom_score_adj=0",
    ],
)
def test_messages_stay_where_they_name_nobody(words: str) -> None:
    assert Names().words(words) == words


def test_messages_lose_what_is_not_mmscopes() -> None:
    names = Names()
    assert names.text("host", "db1") == "host-1"
    assert names.comm("java") == "comm-1"
    assert names.words("/home/eva/core: no such file") == "file-1: no such file"
    assert (
        names.words("read from db1, 12 pages of java.") == "read from host-1, 12 pages of comm-1."
    )
    assert names.words("10.1.2.3 and fe80::1 are not read") == "name-1 and name-2 are not read"
    said = names.words("pid=7 comm=my pages total-vm=12kB uid=0 acme=1")
    assert said == "pid=7 comm=comm-2 total-vm=12kB uid=0 name-3=1"


def test_a_long_row_of_digits_is_looked_at_once() -> None:
    assert SIZES.fullmatch("64M$0x108000000")
    assert not SIZES.fullmatch("0" * 5000 + "z")


def test_a_name_has_one_number_wherever_it_is(tmp_path: Path) -> None:
    contents = tables()
    # The processes of before under the same names; one more of the second reading alone.
    before = write_bundle(tmp_path / "before", contents)
    title, row_type, rows, section = contents["page_tables"]
    more = dataclasses.replace(rows[0], pid=9, comm="newcomer", pte_tables=1)
    after = write_bundle(
        tmp_path / "after", contents | {"page_tables": (title, row_type, [more, *rows], section)}
    )
    names = Names()
    with redacted([after, before], names) as (now, then):
        comms = {row["pid"]: row["comm"] for row in now.rows("page_tables")}
        assert comms == {row["pid"]: row["comm"] for row in then.rows("page_tables")} | {
            9: names.given["comm", "newcomer"]
        }
        assert comms[4711] == names.given["comm", "reader"]
        assert {row["comm"] for row in now.rows("profile_faults")} == {
            names.given["comm", "faults"]
        }
        root = {stack.partition(";")[0] for name in now.folded for stack, _ in now.stacks(name)}
        assert root == {names.given["comm", "faults"], "oom_reaper"}
        verdicts = evaluate(then), evaluate(now)
        found = compare(then, now, verdicts, draw=False)
    (processes,) = (table for table in found.tables if table.name == "page_tables")
    assert [c.change for c in processes.changes] == ["new"]
    assert not now.path.exists()


def test_profiles_keep_their_recipe_and_stay_joined(tmp_path: Path) -> None:
    made = redact(write_bundle(tmp_path / "a", tables()), tmp_path / "b", Names())
    recordings = list(made.rows("profile_recordings"))
    assert [(r["profile"], r["label"], r["against"]) for r in recordings] == [
        ("exit_path_label_1", "label-1", None),
        ("exit_path_label_2", "label-2", "exit_path_label_1"),
    ]
    assert [row["file"] for row in made.rows("profiles")] == list(made.folded)
    # The label could be anybody's; a number and the recipe's own name are not.
    assert [Names().profile(name) for name in ("exit_path", "exit_path_3", "of_eva")] == [
        *("exit_path", "exit_path_3", "profile_1"),
    ]


def test_the_kernels_own_threads_keep_their_names() -> None:
    names = Names()
    own = ["kswapd0", "kcompactd1", "khugepaged", "ksmd", "oom_reaper", "swapper/3", "kworker/u8:2"]
    assert [names.comm(name) for name in own] == own
    assert names.comm("kworker/0:1-acme_wq") == "kworker/0:1"
    assert names.comm("xfsaild/acme") == "comm-1"
    assert names.comm("kswapd0-acme") == "comm-2"


def test_symbols_stay_but_for_what_users_name_in_them() -> None:
    names = Names()
    stack = "java;main;[libacme.so];order 3;sys_read_[k];xfs_read [xfs]_[k];[unknown]"
    assert names.stack(stack) == (
        "comm-1;function-1;function-2;order 3;sys_read_[k];xfs_read [xfs]_[k];[unknown]"
    )
    assert names.kernel("a;bpf_prog_6deef7357e7b4530_acme [bpf];b") == "a;bpf_prog_bpf_1 [bpf];b"
    assert names.kernel("dentry(12:acme.slice)") == "dentry(12:cgroup-1)"


def test_modules_and_slab_caches_stay_where_they_are_linux_own() -> None:
    names = Names()
    for cache in (
        *(
            "dentry",
            "kmalloc-64",
            "kmalloc-rnd-07-8k",
            "kmalloc-no-objext-8k",
            ":A-0000192",
            "bio-120",
        ),
        *("xfs_inode", "msg_msg-4k", "zspage-zram0", "ext4_inode_cache", "task_struct"),
    ):
        assert names.cache(cache) == cache
    for other in ("acme_cache", "acme-64", "kmalloc-acme", "dentry acme", ":acme", "zspage-acme"):
        assert names.cache(other).startswith("cache-"), other
    assert names.cache("dentry(12:acme.slice)") == "dentry(12:cgroup-1)"
    assert names.module("xfs") == "xfs"
    assert names.module("acme_gpu") == "module_1"
    stack = "a;xfs_read [xfs];gpu_fill [acme_gpu];[unknown] [acme_gpu]"
    assert names.kernel(stack) == "a;xfs_read [xfs];symbol_1 [module_1];[unknown] [module_1]"
    assert names.frame("gpu_fill [acme_gpu]_[k]") == "symbol_1 [module_1]_[k]"
    again = Names()
    assert again.frame("symbol_1 [module_1]_[k]") == "symbol_1 [module_1]_[k]"
    assert names.words("gpu_fill of acme_gpu, acme_cache") == "symbol_1 of module_1, cache-1"
    assert names.words("order 3, customer 4711") == "order 3, name-1 4711"


def test_of_resources_drivers_names_go() -> None:
    names = Names()
    for own in ("System RAM / Kernel code", "PCI Bus 0000:00", "PCI ECAM 0000 [bus 00-ff]",
                "PNP0C01:00", "0000:00:1f.2", "ACPI Non-volatile Storage"):  # fmt: skip
        assert names.words(own) == own
    assert names.words("0000:00:1f.2 acme_drv db-fe") == "0000:00:1f.2 name-1 name-2"


def test_what_a_row_says_of_a_module_from_elsewhere_goes(tmp_path: Path) -> None:
    """Of an allocation's line: the function, and the file, whose path may be a relative one."""
    rows = [
        AllocTag(module, "drivers/acme/fill.c", 7, "acme_fill", 1, 1, 1, True)
        for module in ("acme", "xfs", "")
    ]
    with Writer(tmp_path / "a") as plain:
        writer = RedactingWriter(plain, Names(), {})
        writer.table("alloc_tags", "", AllocTag, rows, section="alloc_tags")
        writer.finish({}, [])
    read = [
        (r["module"], r["file"], r["function"]) for r in Bundle(tmp_path / "a").rows("alloc_tags")
    ]
    assert read == [
        ("module_1", "file-1", "symbol_1"),
        ("xfs", "drivers/acme/fill.c", "acme_fill"),
        ("", "drivers/acme/fill.c", "acme_fill"),
    ]


def test_a_programs_function_is_no_frame_of_the_kernel() -> None:
    names = Names()
    for name in (
        "acme pay(int)_[k]",
        "ns::acme_[k]",
        "acme\\x3b_[k]",
        "acme_\\x5bk]",
        "[libacme.so]_[k]",
    ):
        assert names.frame(name).startswith("function-"), name
    for name in ("[unknown]_[k]", "f.isra.0_[k]", "[unknown] [xfs]_[k]", "__x64_sys_read_[k]"):
        assert names.frame(name) == name


def also_from_older(folder: Path, table: str, row: Any, held: str, section: str) -> list[Any]:
    """A row, redacted, and as if an older bundle had declared one of its columns the kernel's."""
    described = columns(type(row))
    assert [c.holds for c in described if c.name == held] == ["words"]
    older = [dataclasses.replace(c, holds="kernel") if c.name == held else c for c in described]
    read = []
    for number, each in enumerate((type(row), older)):
        with Writer(folder / f"a{number}") as plain:
            writer = RedactingWriter(plain, Names(), {})
            cells = tuple(getattr(row, c.name) for c in described)
            writer.table(table, "", each, [cells], section=section)
            writer.finish({}, [])
        read += Bundle(folder / f"a{number}").rows(table)
    return read


def test_values_of_the_kernels_command_line_go_also_from_an_older_bundle(tmp_path: Path) -> None:
    row = MemoryOption(1, "crashkernel", "acme,512M", None, None, "")
    rows = also_from_older(tmp_path, "memory_options", row, "value", "physical_memory")
    assert [(r["name"], r["value"]) for r in rows] == [("crashkernel", "name-1,512M")] * 2


def test_a_drivers_workqueue_and_function_go_also_from_an_older_bundle(tmp_path: Path) -> None:
    cells = {"work": "acme_wq acme_fill", "what": "page allocation failure", "failure": 1}
    row = AllocationFailure(**{c.name: cells.get(c.name) for c in columns(AllocationFailure)})
    rows = also_from_older(tmp_path, "allocation_failures", row, "work", "oom_kills")
    assert [r["work"] for r in rows] == ["name-1 name-2"] * 2


def test_source_files_stay_but_for_where_somebody_built_a_module() -> None:
    names = Names()
    for file in ("mm/slub.c", "./include/linux/mm.h", "../mm/slub.c", "(no tag)", "a.c"):
        assert names.text("source", file) == file
    assert names.text("source", "/home/acme/gpu/fill.c") == "file-1/fill.c"
    assert names.text("source", "/home/acme/gpu/free.c") == "file-1/free.c"
    assert names.text("source", "/home/acme/fill.c") == "file-2/fill.c"


def test_redacting_twice_is_as_good(tmp_path: Path) -> None:
    once = redact(write_bundle(tmp_path / "a", tables()), tmp_path / "b", Names())
    twice = redact(once, tmp_path / "c", Names())
    for bundle in (once, twice):
        description = bundle.path / "datapackage.json"
        without = json.loads(description.read_text()) | {"created": ""}
        assert re.fullmatch("[0-9a-f]{16}", without["target"].pop("redaction"))
        description.write_text(json.dumps(without))
    assert bytes_of(twice.path) == bytes_of(once.path)


def test_the_map_is_written_for_its_owner_and_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (write_bundle(tmp_path / name, tables_of("zones")).path for name in ("a", "b"))
    assert main(["redact", str(a), "-o", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]
    where = tmp_path / "map.json"
    words = ["redact", str(a), str(b), "-o", str(tmp_path / "two"), "--redact-map", str(where)]
    assert main(words) == 0
    assert json.loads(where.read_text())["host"] == {"host-1": "lab-guest"}
    assert stat.S_IMODE(where.stat().st_mode) == 0o600
    assert [Bundle(tmp_path / "two" / f"bundle-{n}").target["hostname"] for n in (1, 2)] == [
        *("host-1", "host-1"),
    ]
    # Another redaction has other numbers: its map must not take this one's place.
    assert main(["redact", str(a), "-o", str(tmp_path / "3"), "--redact-map", str(where)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_report_can_be_redacted_as_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, report = secret_bundle(tmp_path / SECRET).path, tmp_path / "report.html"
    words = ["report", str(bundle), "--baseline", str(bundle), "-o", str(report)]
    assert main([*words, "--redact-map", str(tmp_path / "map.json")]) == 2
    assert "--redact-map goes with --redact" in capsys.readouterr().err
    assert main([*words, "--redact"]) == 0
    html = report.read_text()
    assert SECRET not in html.lower() and re.search(r"\bhost-1\b", html)
    assert main(["report", str(bundle), "-o", str(report)]) == 0
    assert SECRET in report.read_text().lower()


def test_the_map_holds_any_name(tmp_path: Path) -> None:
    names = Names()
    names.comm("a\ud800\n\"b'")
    write_map(names, tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text()) == {"comm": {"comm-1": "a\ud800\n\"b'"}}


def test_the_command_says_what_it_replaces_whole_and_what_is_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, out = write_bundle(tmp_path / "a", tables_of("zones")).path, tmp_path / "out"
    assert main(["redact", str(bundle), "-o", str(out)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["redact", str(bundle), "-o", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["redact", str(bundle), "-o", str(out), "--force"]) == 0
    description = bundle / "datapackage.json"
    data = json.loads(description.read_text())
    for resource in data["resources"]:
        for field in resource.get("schema", {}).get("fields", []):
            if resource["name"] == "zones":
                field.pop("holds", None)
    description.write_text(json.dumps(data))
    assert main(["redact", str(bundle), "-o", str(out), "--force"]) == 0
    assert "did not say what text of 1 column is" in capsys.readouterr().err
    assert {row["zone"] for row in Bundle(out).rows("zones")} == {"text-1", "text-2", "text-3"}


# What somebody's word may look like. The last two are numbers to whoever looks at them.
UNIQUE = {
    "a word": "zqunique",
    "in capitals": "ZQUnique-Host",
    "with dots": "zqunique.example.com",
    "a path": "/srv/zqunique/core",
    "with blanks": "my zqunique server",
    "with digits": "zqunique_4829137",
    "a number": "4829137",
}


def header_of(word: str) -> bytes:
    """The first line of a text that was kept, all of whose words are a stranger's."""
    told = Making(
        scope=f"{word} scope", ended=f"ended {word}", command=f"{word} --run", release="7.2",
        captured_at=f"at {word}", partial=[f"it is {word}"], remarks=[f"of {word}"],
        counters={word: 7}, seconds=1.0,
    ).as_json(Recorded())  # fmt: skip
    return f"{MADE_BY}{json.dumps(told)}\n".encode()


@pytest.mark.parametrize("shape", UNIQUE)
def test_a_unique_word_is_gone_wherever_it_was(tmp_path: Path, shape: str) -> None:
    word = UNIQUE[shape]
    number = word.isdigit()
    # A comm has no line break here, and 15 bytes at most; perf prints it as it is.
    text = (
        (ROOT / "tests/corpus/perf/clock")
        .read_bytes()[1:]
        .replace(b"cat ", f"{word[:15]} ".encode())
    )
    kept = tmp_path / "kept"
    # Numbers of running text stay: they are amounts and times.
    kept.write_bytes((b"" if number else header_of(word)) + text)
    path = tmp_path / f"vmcore-{word.replace('/', '-')}"
    contents: dict[str, Contents] = {}
    for name, (title, row_type, rows, section) in tables().items():
        holds = {c.name: c.holds for c in columns(row_type)}
        mine = [c for c, kind in holds.items() if kind in ("comm", "command", "cgroup", "file")]
        changed = [dataclasses.replace(row, **dict.fromkeys(mine, word)) for row in rows]
        if mine and not name.startswith("profile"):
            contents[name] = title, row_type, changed, section
    target = report_bundle.TARGET | {"hostname": word, "source": f"{path}/{word}"}
    if not number:
        target |= {"fallback": f"{word}: no permission", "note": word}
    write_bundle(path, contents, target=target)
    words = ["record", "exit-path", "--input", str(kept), "--label", word, "-o", str(path)]
    assert main(words) in (0, 1)
    before = bytes_of(path)
    assert before.count(word.encode()) > 5
    made = redact(Bundle(path), tmp_path / "made", Names())
    pages = [bytes_of(made.path).decode()]
    # What a page says is made of the bundle's words, whatever their shape; of a number it is not
    # seen whose it is.
    if shape in ("a path", "a number"):
        verdict = evaluate(made)
        pages.append(render(made, verdict, compare(made, made, (verdict, verdict), draw=True)))
    for found in pages:
        hit = found.lower().find("4829137" if "4829137" in word else "zqunique")
        assert hit < 0, found[hit - 60 : hit + 60]


def test_a_table_that_cannot_be_read_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_bundle(tmp_path / "a", tables_of("zones", "page_tables")).path
    with (path / "page_tables.csv").open("a") as file:
        file.write("x\n")
    assert main(["redact", str(path), "-o", str(tmp_path / "b")]) == 1
    assert "1 table is damaged and left out" in capsys.readouterr().err
    made = Bundle(tmp_path / "b")
    assert made.tables.keys() == Bundle(path).tables.keys() - {"page_tables"}
    (fared,) = (s for s in made.sections if s.section == "page_tables")
    assert fared.status == "partial" and "damaged: page_tables" in str(fared.message)
