# SPDX-License-Identifier: LGPL-2.1-or-later
"""What docs/kernels.md says by hand names what is there: targets, kernels, Pythons, drgn."""

import re
import tomllib
from typing import Any

import boxes
import kernel_matrix

PAGE = (boxes.ROOT / "docs/kernels.md").read_text()
INSTALL = (boxes.ROOT / "docs/install.md").read_text()
MAKEFILE = (boxes.ROOT / "Makefile").read_text()
ROWS = tomllib.loads((boxes.ROOT / "tests/lab/kernels.toml").read_text())["kernels"]


def test_every_target_is_one_of_the_makefile() -> None:
    named = set(re.findall(r"`make ([a-z0-9-]+)", PAGE))
    assert len(named) > 3
    assert named <= set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))


def test_every_kernel_that_a_target_is_given_is_a_row() -> None:
    given = [names.split(",") for names in re.findall(r"KERNELS=([\w.,?-]+)", PAGE)]
    assert given
    assert {name.rstrip("?") for names in given for name in names} <= ROWS.keys()


def test_own_kernels_are_rows() -> None:
    named = set(re.findall(r"own kernel `(\w+)`", PAGE))
    assert len(named) > 1
    assert named <= ROWS.keys()


def test_every_link_to_a_part_of_the_page_finds_it() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    parts = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    named = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    for page in (*(boxes.ROOT / "docs").glob("*.md"), boxes.ROOT / "README.md"):
        named |= set(re.findall(r"kernels\.md#([^)\s]+)\)", page.read_text()))
    assert named
    assert named <= parts


def test_the_pythons_and_versions_of_drgn_are_those_that_are_tried() -> None:
    first, last = boxes.PYTHONS[0], boxes.PYTHONS[-1]
    oldest, newest = boxes.VERSIONS[0], boxes.VERSIONS[-1]
    assert f"runs on CPython {first} to {last} with drgn {oldest} to {newest}" in INSTALL
    requires = tomllib.loads((boxes.ROOT / "pyproject.toml").read_text())["project"]
    assert requires["requires-python"] == f">={first}"


def test_a_kernel_that_was_read_before_a_column_was_there_is_not_said_to_have_it() -> None:
    def seen(columns: int, *empty: str) -> dict[str, Any]:
        sections, nothing = {"zones": ["ok"]}, {"zones": list(empty)}
        return {"workload": "sizes", "columns": columns, "sections": sections, "empty": nothing}

    of = {"6.1": seen(9), "6.12": seen(10, "zones.new"), "7.2": seen(10, "zones.new")}
    assert "`zones.new`" not in kernel_matrix.empty(of)
    assert "before some column was there: 6.1." in kernel_matrix.empty(of)
    of["7.3"] = seen(10)
    assert "\nall but 7.3|`zones.new`\n" in kernel_matrix.empty(of)
