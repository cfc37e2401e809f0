# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fleet that ``make bench-lake`` measures, which runs at night alone."""

from pathlib import Path

from made_fleet import Fleet

from mmscope.reports.bundle.bundle import Bundle


def test_a_host_of_each_kind_can_be_opened(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "kinds")
    (tmp_path / "hosts").mkdir()
    made = [Bundle(path) for path in fleet.write(tmp_path / "hosts", range(len(fleet.kinds)))]
    assert len({bundle.target["hostname"] for bundle in made}) == len(fleet.kinds)
    assert all(bundle.tables or bundle.folded for bundle in made)
