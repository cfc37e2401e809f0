# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sizes as rectangles that fill a larger one, each as near to a square as its neighbours allow.

M. Bruls, K. Huizing, J. J. van Wijk: Squarified Treemaps (2000).
"""

from collections.abc import Sequence

Place = tuple[float, float, float, float]  # left, top, width, height


def treemap(sizes: Sequence[int], place: Place) -> list[Place]:
    """
    The place of each size.

    :param sizes: above zero, the largest first.
    """
    left, top, width, height = place
    scale = width * height / sum(sizes) if sizes else 0.0
    areas = [size * scale for size in sizes]
    found: list[Place] = []
    while rest := areas[len(found) :]:
        short = min(width, height)
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], short) <= _worst(rest[:count], short):
            count += 1
        thick = sum(rest[:count]) / short
        at = 0.0
        for area in rest[:count]:
            long = area / thick
            across = (left, top + at, thick, long)
            found.append(across if width >= height else (left + at, top, long, thick))
            at += long
        if width >= height:
            left, width = left + thick, width - thick
        else:
            top, height = top + thick, height - thick
    return found


def _worst(areas: Sequence[float], side: float) -> float:
    """The worst ratio of sides of areas that share a side."""
    thick = sum(areas) / side
    return max(max(thick**2 / area, area / thick**2) for area in areas)
