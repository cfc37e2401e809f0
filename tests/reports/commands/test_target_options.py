# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands that read a target are asked."""

import os

import pytest

from mmscope.reports.commands.target_options import idle_cpus


@pytest.mark.parametrize(
    ("cpus", "load", "dead", "live"),
    [(2, 0.2, 2, 1), (64, 3.0, 4, 4), (8, 0.0, 4, 2), (8, 6.4, 2, 2), (2, 9.0, 1, 1)],
)
def test_as_many_as_are_idle(
    cpus: int, load: float, dead: int, live: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert (idle_cpus(live=False), idle_cpus(live=True)) == (dead, live)
