# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Folded stacks as a file that speedscope opens (https://www.speedscope.app, offline too).

One profile for each set of stacks, as ``sampled`` with a weight for each stack. There is no time in
folded stacks, so that the order in which speedscope draws them says nothing.
"""

from collections.abc import Iterable
from typing import Any

from mmscope.perf.pprof import UNITS

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(
    profiles: Iterable[tuple[str, str, Iterable[tuple[str, int]]]], name: str
) -> dict[str, Any]:
    """
    The file's content, to be written as JSON.

    :param profiles: (name, unit, folded stacks) of each.
    """
    frames: dict[str, int] = {}
    drawn = []
    for title, unit, stacks in profiles:
        samples, weights = [], []
        for stack, value in stacks:
            names = stack.split(";")
            samples.append([frames.setdefault(frame, len(frames)) for frame in names])
            weights.append(value)
        drawn.append(
            {
                "type": "sampled",
                "name": f"{title} ({unit})",
                "unit": UNITS.get(unit, "none"),
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    return {
        "$schema": SCHEMA,
        "exporter": "mmscope",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": drawn,
    }
