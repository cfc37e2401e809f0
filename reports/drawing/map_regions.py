# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where zones lie in a map that is drawn row by row, and their names beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

# (row, column, (node, zone)) of the cell where a zone begins.
Begin = tuple[int, int, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Region:
    """
    A zone, from the cell where it begins to that where the next one does.

    :ivar path: its outline, in cells.
    """

    node: int
    zone: str
    row: int
    column: int
    path: str


def regions(zones: Sequence[Begin], end: tuple[int, int], columns: int) -> list[Region]:
    """
    The regions of zones, in their order.

    :param end: row and column behind the last one.
    :param columns: cells of a row.
    """
    ends = [*((row, column) for row, column, _ in zones[1:]), end]
    return [
        Region(node, zone, row, column, _outline((row, column), end, columns))
        for (row, column, (node, zone)), end in zip(zones, ends, strict=True)
    ]


def _outline(begin: tuple[int, int], end: tuple[int, int], columns: int) -> str:
    (row, column), (end_row, end_column) = begin, end
    if row == end_row:
        return f"M{column} {row}H{end_column}v1H{column}z"
    last = f"H{end_column}v1H0" if end_column else "H0"
    return f"M{column} {row}H{columns}V{end_row}{last}V{row + 1}H{column}z"


def zone_labels(zones: Sequence[Begin]) -> list[tuple[int, str]]:
    """What stands right of a row: ``node 0 DMA, DMA32``."""
    labels: dict[int, str] = {}
    node_of: dict[int, int] = {}
    for row, _, (node, zone) in zones:
        name = zone if node_of.get(row) == node else f"node {node} {zone}"
        labels[row] = f"{labels[row]}, {name}" if row in labels else name
        node_of[row] = node
    return list(labels.items())
