# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Cases of the exam that are kept in ``tests/exam``, packed: of their bundles the tables that findings
read, and no others. ``score.json`` has what was said of each when they were kept.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from exam_score import Marked, cases_in, mark

from mmscope.reports.findings.findings import named
from mmscope.reports.findings.question import OURS

KEPT = Path(__file__).resolve().parents[1] / "exam"
PACKED = "cases.tar.xz"
SCORE = "score.json"
# Columns say these for readers; nothing that is asked depends on them.
_FOR_READERS = ("description", "title")


def unpack(to: Path, folder: Path = KEPT) -> None:
    """All kept cases, as ``KIND-SEED/WAY``."""
    with tarfile.open(folder / PACKED) as tar:
        # It is ours, and to check each of its names costs seconds.
        tar.extractall(to, filter="fully_trusted")


def score(folder: Path = KEPT) -> list[Marked]:
    """What was said of each case when it was kept."""
    return [Marked(**one) for one in json.loads((folder / SCORE).read_text())]


def said_now(folder: Path, before: list[Marked]) -> list[Marked]:
    """What is said of each unpacked case now, by as many processes as there are CPUs."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(_say, [folder] * len(before), before, chunksize=4))


def _say(folder: Path, one: Marked) -> Marked:
    case = folder / f"{one.kind}-{one.seed}"
    return mark(case / one.way, json.loads((case / "truth.json").read_text()), one.way)


def keep(cases: Path, ways: Iterable[str], folder: Path = KEPT) -> list[Marked]:
    """
    Pack cases, and note what is said of them.

    :raises ValueError: something else is said of what was packed.
    """
    ways = list(ways)
    wanted = {*named(OURS()), "sections"}
    packed, marks = io.BytesIO(), []
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # The same tables of all cases lie beside each other, where they are packed best.
        files: dict[tuple[str, str], bytes] = {}
        for case, truth in cases_in(cases):
            files[case.name, "truth.json"] = json.dumps(truth).encode()
            for way in ways:
                marks.append(mark(case / way, truth, way))
                for name, content in _cut(case / way, wanted).items():
                    files[case.name, f"{way}/{name}"] = content
        for (case_name, name), content in sorted(files.items(), key=lambda item: item[0][::-1]):
            info = tarfile.TarInfo(f"{case_name}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    folder.mkdir(exist_ok=True)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 << 20}]
    (folder / PACKED).write_bytes(lzma.compress(packed.getvalue(), filters=filters))
    lines = ",\n".join(json.dumps(asdict(one)) for one in marks)
    (folder / SCORE).write_text(f"[\n{lines}\n]\n")
    return marks


def _cut(bundle: Path, wanted: set[str]) -> dict[str, bytes]:
    """A bundle's files, of the tables that are wanted."""
    description = json.loads((bundle / "datapackage.json").read_text())
    resources = [one for one in description["resources"] if one["name"] in wanted]
    for resource in resources:
        for field in resource.get("schema", {}).get("fields", ()):
            for name in _FOR_READERS:
                field.pop(name, None)
    description["resources"] = resources
    files = {"datapackage.json": json.dumps(description).encode()}
    for resource in resources:
        files[resource["path"]] = (bundle / resource["path"]).read_bytes()
    return files
