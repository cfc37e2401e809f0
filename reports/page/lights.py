# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What of the page's pictures and tables a finding is about, for ``lights.js``: pointing at the
finding lights it.

Cannot know: which pictures the page has; what is named here and not drawn is not lit.
"""

import json
from typing import Any

from mmscope.reports.findings.findings import Finding
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
    places: list[tuple[str, dict[str, Any]]] = []
    for proof in finding.proofs:
        place: dict[str, Any] = {name: list(v) for name, v in proof.equal if name in PLACE}
        least = dict(proof.least).get("order")
        places.append((proof.table, place | ({"least": least} if least is not None else {})))
    types = {
        str(value)
        for table, place in places
        if table in OF_A_TYPE
        for value in place.get("migratetype", ())
    }
    lit = {
        "number": number,
        "classes": list(finding.classes),
        "free": [place for table, place in places if table == FREE_BLOCKS],
        "zones": [place for table, place in places if table in OF_A_ZONE and "node" in place],
        "looks": sorted({look(name) for name in types}),
    }
    return json.dumps(lit, separators=(",", ":"))
