# SPDX-License-Identifier: LGPL-2.1-or-later
"""/proc/allocinfo as text: what the kernel prints is read as it is; what is damaged is refused."""

from pathlib import Path

import pytest
from checkout import TESTS

from mmscope.drgn.owners.alloc_tags import AllocTag, read_allocinfo
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

HEADER = "allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n"
# As seq_buf_printf() has them (lib/alloc_tag.c), with the blank at the end.
LINES = """\
     4096000     1000 mm/memory.c:4214 func:alloc_anon_folio 
           0        0 drivers/net/a.c:7 [a_driver] func:probe accurate:no 
     1048576      256 ./include/linux/mm.h:3041 func:pagetable_alloc 
        8192        2 ./include/linux/mm.h:3041 func:pagetable_alloc accurate:no 
"""


def test_every_line_is_a_row_and_lines_of_one_place_are_one() -> None:
    rows = read_allocinfo(HEADER + LINES)
    assert rows == [
        AllocTag("", "mm/memory.c", 4214, "alloc_anon_folio", 1, 1000, 4096000, True),
        # An inline function has a tag for each of its callers.
        AllocTag("", "./include/linux/mm.h", 3041, "pagetable_alloc", 2, 258, 1056768, False),
        AllocTag("a_driver", "drivers/net/a.c", 7, "probe", 1, 0, 0, False),
    ]


def test_the_first_version_of_the_text_is_read() -> None:
    text = HEADER.replace("2.0", "1.0") + LINES.replace(" accurate:no", "")
    assert all(row.accurate for row in read_allocinfo(text))


# Some lines of what the lab's own kernel printed.
PRINTED = (TESTS / "corpus/allocinfo/7.2").read_text()


def test_what_a_kernel_printed_is_read_whole() -> None:
    rows = read_allocinfo(PRINTED)
    assert sum(row.tags for row in rows) == PRINTED.count("\n") - 2
    assert sum(row.bytes or 0 for row in rows) == sum(
        int(line.split()[0]) for line in PRINTED.splitlines()[2:]
    )
    assert AllocTag("", "mm/memory.c", 6726, "__p4d_alloc", 1, 16, 65536, False) in rows
    assert {row.file for row in rows if row.module == "mmscope_lab"} == {"mmscope_lab.c"}


def test_a_text_that_is_cut_is_refused_or_has_fewer_lines() -> None:
    """One that ends with a line looks like one of fewer lines."""
    for end in range(1, len(PRINTED), 7):
        try:
            rows = read_allocinfo(PRINTED[:end])
        except ValueError as error:
            assert "/proc/allocinfo" in str(error)
        else:
            assert PRINTED[end - 1] == "\n"
            assert sum(row.tags for row in rows) == max(PRINTED[:end].count("\n") - 2, 0)


def test_what_was_below_zero_for_a_moment_is_zero() -> None:
    (row,) = read_allocinfo(f"{HEADER}       -4096 18446744073709551615 mm/a.c:1 func:a \n")
    assert (row.calls, row.bytes) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEADER + LINES[:-1],  # cut short
        "x\n" + LINES,
        HEADER.replace("2.0", "3.0") + LINES,
        HEADER + "        4096        1 mm/a.c:1 func: \n",
        HEADER + "        4096        1 mm/a.c func:a \n",
        HEADER + "        4096 18446744073709551616 mm/a.c:1 func:a \n",
        HEADER + f"        4096        1 mm/{'a' * 300}.c:1 func:a \n",
        HEADER + "\n",
    ],
)
def test_what_the_kernel_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="/proc/allocinfo"):
        read_allocinfo(text)


def put(tree: Path, text: str, switch: str | None) -> Path:
    (tree / "proc/sys/vm").mkdir(parents=True)
    (tree / "proc/allocinfo").write_text(text)
    if switch is not None:
        (tree / "proc/sys/vm/mem_profiling").write_text(switch)
    return tree


@pytest.mark.parametrize(
    ("lines", "switch", "status", "words"),
    [
        (LINES, "1\n", "ok", None),
        (LINES, None, "ok", None),  # of a copy that has one file
        (LINES, "", "partial", "is not whole: its first line is not there"),
        (LINES, "0\n", "partial", "the counters are as they were then"),
        ("           0        0 a.c:1 func:a \n", "0\n", "absent", "but switched off; boot with"),
    ],
)
def test_a_tree_of_text(
    tmp_path: Path, lines: str, switch: str | None, status: str, words: str | None
) -> None:
    # Without its first line, as of sort and head.
    tree = put(tmp_path / "tree", HEADER * (switch != "") + lines, switch or None)
    section, found = run_section(SECTIONS["alloc_tags"], Files(tree))
    assert section.status == status
    assert words is None or words in (section.message or "")
    if status != "absent":
        assert [row.bytes for row in found.by_name["alloc_tags"]] == [4096000, 1056768, 0]
