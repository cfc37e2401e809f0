# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real vmcore whose processes and cgroups have names that nobody else has: none gets out."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import capture

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate

pytestmark = pytest.mark.owner_kernel

# guest/workload_owner.c, and init.c
NAMES = (
    *("plain_holder", "Page allocat", "<img src", "huge_holder", "a_thread", "writer_gone"),
    *("in_hostile_cg", "lab-guest"),
)
LAB = re.compile(r"mmscope_lab|\bmodule_[0-9]|\bsymbol_[0-9]|\bcache-[0-9]")


@pytest.fixture(scope="module")
def collect(say: Callable[[str], None]) -> list[str]:
    """The words that read the vmcore."""
    taken = capture("owner", "owner", say)
    return [
        *("collect", "--no-findings", "--core", str(taken.vmcore)),
        *("--symbols", str(taken.vmlinux)),
    ]


@pytest.fixture(scope="module")
def plain(collect: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it was collected."""
    path = tmp_path_factory.mktemp("plain") / "bundle"
    assert main([*collect, "-o", str(path)]) in (0, 1)
    return path


@pytest.fixture(scope="module", params=["redact", "collect --redact"])
def bundles(
    request: pytest.FixtureRequest,
    collect: list[str],
    plain: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Bundle, Bundle]:
    """As it was collected, and without names."""
    made = tmp_path_factory.mktemp("redacted") / "made"
    if request.param == "redact":
        assert main(["redact", str(plain), "-o", str(made)]) == 0
    else:
        assert main([*collect, "--redact", "-o", str(made)]) in (0, 1)
    return Bundle(plain), Bundle(made)


def bytes_of(bundle: Bundle) -> bytes:
    return b"".join(path.read_bytes() for path in bundle.path.iterdir())


def test_no_name_is_left(bundles: tuple[Bundle, Bundle]) -> None:
    plain, made = map(bytes_of, bundles)
    for name in NAMES:
        assert name.encode() in plain, name
        assert name.encode() not in made, name


def test_nor_is_one_in_a_report_without_names(plain: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert main(["report", str(plain), "--redact", "-o", str(report)]) == 0
    text = report.read_text()
    assert not [name for name in NAMES if name in text or name.replace("<", "&lt;") in text]


def test_what_the_kernel_says_is_the_same(bundles: tuple[Bundle, Bundle]) -> None:
    plain, made = bundles
    assert list(made.tables) == list(plain.tables)
    for name, table in plain.tables.items():
        kept = [c.name for c in table.columns if c.holds in ("", "kernel", "words")]
        if name == "sections":
            kept.remove("seconds")  # two readings may take different times
        rows = [[[row[key] for key in kept] for row in b.rows(name)] for b in bundles]
        # The lab's module is not Linux's own.
        linux, redacted = ([row for row in of if not LAB.search(str(row))] for of in rows)
        assert linux == redacted and len(rows[0]) == len(rows[1]), name
    assert [(s.section, s.status, s.message) for s in made.sections] == [
        (s.section, s.status, s.message) for s in plain.sections
    ]


def test_the_same_is_found(bundles: tuple[Bundle, Bundle]) -> None:
    plain, made = (evaluate(bundle) for bundle in bundles)
    assert [(f.id, f.severity, f.badness) for f in made.found] == [
        (f.id, f.severity, f.badness) for f in plain.found
    ]
    assert plain.found
