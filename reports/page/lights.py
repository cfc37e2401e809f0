# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What of the page's pictures and tables a finding is about, for ``lights.js``: pointing at the
finding lights it.

Cannot know: which pictures the page has; what is named here and not drawn is not lit.
"""

import json
from collections.abc import Iterable
from typing import Any

from mmscope.reports.findings.findings import Finding
from mmscope.reports.findings.proof import Proof
from mmscope.reports.pictures.pageblock_map import look

# Tables whose rows are cells of the heat map, and kinds of cells of the pageblock map.
FREE_BLOCKS = "free_blocks"
OF_A_TYPE = (FREE_BLOCKS, "pageblocks", "pageblock_map")
OF_A_ZONE = (FREE_BLOCKS, "zones")
PLACE = ("node", "zone", "migratetype")


def lights(finding: Finding, number: int) -> str:
    """
    As JSON: ``number``, that rows of tables have; ``classes`` of the memory ledger; ``free`` and
    ``zones``, the values that a cell or a zone must have; ``looks`` of cells of the pageblock map.
    """
    types = {
        str(value)
        for proof in finding.proofs
        if proof.table in OF_A_TYPE
        for value in dict(proof.equal).get("migratetype", ())
    }
    return json.dumps(
        {
            "number": number,
            "classes": list(finding.classes),
            "free": list(_places(finding.proofs, (FREE_BLOCKS,))),
            "zones": [place for place in _places(finding.proofs, OF_A_ZONE) if "node" in place],
            "looks": sorted({look(name) for name in types}),
        },
        separators=(",", ":"),
    )


def _places(proofs: Iterable[Proof], tables: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    for proof in proofs:
        if proof.table in tables:
            place: dict[str, Any] = {
                name: list(values) for name, values in proof.equal if name in PLACE
            }
            least = dict(proof.least).get("order")
            yield place | ({"least": least} if least is not None else {})
