# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is made of mmscope's own files is kept for later processes, and never believed blindly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import report_bundle as made
from command_line import ROOT

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle import declared
from mmscope.reports.findings import findings

NAME = "things"
LOADED = (
    "import sys; from mmscope.reports.commands.start import main; main();"
    "print(*({'drgn', 'numpy'} & sys.modules.keys()))"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of sources."""
    (tmp_path / "source" / "inner").mkdir(parents=True)
    (tmp_path / "source" / "inner" / "a.py").write_text("1")
    return tmp_path / "source"


def file_of(cache: Path) -> Path:
    (path,) = cache.rglob(f"{NAME}.*")
    return path


def value(source: Path, says: str) -> str:
    """What is kept, or what a process says that has to make it."""
    return declared.kept(NAME, [source], lambda: says)


def test_what_was_made_is_kept_and_used(source: Path) -> None:
    assert value(source, "first") == "first"
    assert value(source, "second") == "first"


@pytest.mark.parametrize("change", ["size", "time", "another", "none"])
def test_of_other_sources_it_is_made_anew(source: Path, change: str) -> None:
    value(source, "first")
    path = source / "inner" / "a.py"
    if change == "size":
        stat = path.stat()
        path.write_text("12")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "another":
        (source / "b.toml").touch()
    else:
        path.unlink()
    assert value(source, "second") == "second"
    assert value(source, "third") == "second"


@pytest.mark.parametrize("damage", ["torn", "empty", "no sum", "one bit"])
def test_a_damaged_one_is_made_anew(cache: Path, source: Path, damage: str) -> None:
    value(source, "first")
    good = file_of(cache).read_bytes()
    file_of(cache).write_bytes(
        {
            "torn": good[: len(good) // 2],
            "empty": b"",
            "no sum": good[:16],
            "one bit": good[:-3] + bytes([good[-3] ^ 1]) + good[-2:],
        }[damage]
    )
    assert value(source, "first") == "first"
    assert file_of(cache).read_bytes() == good


def test_nothing_is_kept_where_python_keeps_nothing(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert value(source, "first") == "first"
    assert not cache.exists()
    assert value(source, "second") == "second"


def test_a_folder_that_cannot_be_written_is_no_trouble(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file"))
    assert value(source, "first") == "first"
    assert value(source, "second") == "second"
    assert declared.kept(NAME, [source], lambda: "made", instead="less") == "less"


def test_what_takes_less_to_make_serves_only_where_nothing_is_kept(source: Path) -> None:
    assert declared.kept(NAME, [source], lambda: "made", instead="less") == "made"
    assert declared.kept(NAME, [source], lambda: "other", version="2") == "other"


def test_words_of_findings_are_kept_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sorted({text for question in findings.OURS() for text in findings._texts(question)})
    found = []
    for compiled in (findings._compiled.__wrapped__(), {}):
        assert not compiled or sorted(compiled) == texts
        monkeypatch.setattr(findings, "_compiled", lambda compiled=compiled: compiled)
        findings._words.cache_clear()
        found.append([findings._words(text).root_render_func.__code__ for text in texts])
    findings._words.cache_clear()
    assert found[0] == found[1]


def test_findings_are_kept_as_their_files_say(cache: Path) -> None:
    made, kept = findings.load_questions(), findings.load_questions()
    assert cache.rglob("questions.*")
    assert made == kept == findings._questions_of(findings.FINDINGS)


def test_kept_declarations_are_those_of_the_probes() -> None:
    tables, headings = declared.of_probes()
    for known, said in (declared.kept_or_made(), declared.kept_or_made()):
        assert list(known) == list(tables) and list(said) == list(headings)
        for name, table in tables.items():
            words = vars(table) | {"row": None}
            assert vars(known[name]) | {"row": None} == words
            assert columns(known[name].row) == columns(table.row)
            assert [c.since for c in columns(known[name].row)] == [
                c.since for c in columns(table.row)
            ]
        for name, heading in headings.items():
            for what in ("name", "title", "place", "intro", "since"):
                assert getattr(said[name], what) == getattr(heading, what)
            assert [table.name for table in said[name].tables] == [t.name for t in heading.tables]
            assert all(table is known[table.name] for table in said[name].tables)


def test_a_report_needs_no_probe(cache: Path, tmp_path: Path) -> None:
    bundle = made.write_bundle(tmp_path / "b", made.tables()).path
    report = [sys.executable, "-c", LOADED, "report", str(bundle), "-o", str(tmp_path / "r.html")]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache)

    def loaded() -> str:
        done = subprocess.run(
            report, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()[1]

    assert "drgn" in loaded()  # to see what they declare
    first = (tmp_path / "r.html").read_bytes()
    assert loaded() == ""
    assert (tmp_path / "r.html").read_bytes() == first
