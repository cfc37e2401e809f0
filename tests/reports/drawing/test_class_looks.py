# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Classes of memory can be distinguished by their looks, in light and dark, by those who see two of
the three primaries too.

What they see: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes: A Physiologically-based Model for
Simulation of Color Vision Deficiency (2009), severity 1. Differences are those of Oklab.
"""

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.reports.drawing.class_looks import CLASSES, UNKNOWN, look
from mmscope.reports.page.environment import TEMPLATES

SEEN = {
    "all three": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_LMS = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
TO_LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
OF_LEDGER = {kind.owner for kind in Kind}
APART = 0.1  # a just noticeable difference is a fifth of it
STYLE = (TEMPLATES / "report.css").read_text()


def colors(theme: str) -> dict[str, NDArray[np.float64]]:
    """Linear RGB of the stylesheet's variables."""
    light, dark = re.findall(r":root \{(.*?)\n ? ?\}", STYLE, re.DOTALL)[:2]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark if theme == "dark" else light))
    parts = {
        n: np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for n, c in found.items()
    }
    return {
        n: np.where(p <= 0.04045, p / 12.92, ((p + 0.055) / 1.055) ** 2.4) for n, p in parts.items()
    }


def variable(name: str) -> str:
    """The variable that a class's look paints with."""
    (rule,) = re.findall(rf"\.{name.split()[0]} {{ --series: var\(--([\w-]+)\)", STYLE)
    return str(rule)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_two_classes_differ_in_colour_or_texture(theme: str, seen: str) -> None:
    known = colors(theme)
    assert {"class-0", "bg", "bar", "fg"} <= known.keys()

    def lab(name: str) -> NDArray[np.float64]:
        rgb = np.clip(np.array(SEEN[seen]) @ known[name], 0, 1)
        return np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ rgb)

    near = [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(CLASSES.items(), 2)
        if one.split()[1:] == other.split()[1:]
        and np.linalg.norm(lab(variable(one)) - lab(variable(other))) < APART
    ]
    assert not near


def test_every_class_of_the_ledger_has_a_look_of_its_own() -> None:
    assert CLASSES.keys() >= OF_LEDGER
    looks = [CLASSES[name] for name in OF_LEDGER]
    assert len(set(looks)) == len(looks)


def test_a_class_of_a_newer_mmscope_is_drawn_too() -> None:
    assert look("of tomorrow") == UNKNOWN
