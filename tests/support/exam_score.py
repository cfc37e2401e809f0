# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The exam's score: what mmscope says of a case, held against its truth.

A *trouble* that is there is to be called so, an innocent machine is not; *cannot tell* is neither,
and counts as not called. The cause is right where the finding that leads the verdict is one of
those that mean it, the owner where one of its names is in the owner that is said. Intervals are
Wilson's, at 95 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE, TROUBLE
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.verdict import first_incident, judge

WAYS = ("vmcore", "text", "watch", "log")

# What means each cause, whatever it was seen with. Of a finding that tells of several kinds of
# memory, behind a colon, the one that its row is about.
_SHORT = {"memory-pressure", "watch-memory-pressure", "below-watermarks", "watch-below-low",
          "watch-reclaim-in-vain", "memory-nearly-gone", "watch-memory-runs-out"}  # fmt: skip
_GROWS = {"watch-kernel-memory-grows"}
# What text and a watch have of it: that it is shared memory, and not which file.
_SHMEM = {"shmem-unmapped", "watch-memory-taken:Shmem"}
CAUSES: dict[str, set[str]] = {
    "process": _SHORT,
    "slab": {"slab-large", "slab-cache-large", "watch-memory-taken:SUnreclaim", *_GROWS},
    "vmalloc": {"vmalloc-large", "kernel-memory-large", "watch-memory-taken:VmallocUsed", *_GROWS},
    "percpu": {"percpu-large", "kernel-memory-large:Percpu", "watch-memory-taken:Percpu", *_GROWS},
    "unaccounted": {"unexplained-pages", "memory-unaccounted", *_GROWS},
    "shmem": {"shmem-left-behind", "deleted-file-in-memory", "watch-files-left", *_SHMEM},
    "deleted": {"deleted-file-in-memory", "shmem-left-behind", *_SHMEM},
    "sockets": {"holder-large", "sockets-large", "watch-sockets-large", "slab-large",
                "slab-cache-large", "kernel-memory-large", "unexplained-pages",
                "memory-unaccounted", *_GROWS},
    "dying-cgroups": {"dying-cgroups", "dying-cgroups-counted", "watch-dying-cgroups"},
    "cgroup-thrash": {"cgroup-thrash", "cgroup-pressure", "cgroup-at-limit", "watch-refaults",
                      "watch-cgroup-pressure"},
    "cgroup-throttled": {"cgroup-throttled", "cgroup-pressure", "cgroup-thrash",
                         "watch-cgroup-pressure"},
    "fragmented": {"external-fragmentation", "thp-falls-back", "watch-thp-falls-back",
                   "watch-thp-blocks-ran-out", "compaction-fails", "watch-compaction-fails",
                   "misplaced-blocks"},
    "oom": {"oom-kills-told", "oom-kills-since-boot", "watch-oom-kill", "oom-fragmented",
            "oom-spared-larger"},
    "oom-cgroup": {"oom-cgroup-limit", "cgroup-oom-kills", "cgroup-at-limit", "watch-oom-kill"},
    "swap": {"memory-pressure", "watch-memory-pressure", "watch-swap-thrash", "swapped-since-boot"},
    "page-tables": {"page-table-bloat", "page-tables-large", "sparse-page-tables",
                    "watch-memory-taken:PageTables", *_GROWS},
    "stacks": {"kernel-memory-large:nr_kernel_stack", "watch-memory-taken:KernelStack", *_GROWS},
    "maps": {"near-max-map-count", "watch-near-max-map-count"},
    "hugetlb": {"hugetlb-idle", "watch-memory-taken:Hugetlb"},
    "locked": {"memory-locked", "watch-memory-taken:Unevictable"},
    "waits": {"tasks-wait-behind-one", "tasks-stuck", "watch-tasks-stuck", "file-lock-queue",
              "anon-vma-lock-queue"},
    "protected": {"protection-forbids-reclaim", "watch-protected", "kswapd-gave-up"},
    "node": {"nodes-out-of-balance", "watch-node-full", "below-watermarks", "watch-below-low"},
}  # fmt: skip


@dataclass(frozen=True)
class Marked:
    """One case, seen in one way. ``owner_right`` is none where no owner is known."""

    kind: str
    seed: int
    way: str
    sick: bool
    word: str
    headline: str
    severity: str
    owner: str
    cause_right: bool
    owner_right: bool | None
    seconds: float

    @property
    def called(self) -> bool:
        return self.word == TROUBLE

    @property
    def false_clear(self) -> bool:
        """Whether a sick machine was said to have no trouble."""
        return self.sick and self.word == NO_TROUBLE

    def line(self) -> str:
        return json.dumps(asdict(self))


def mark(bundle: Path, truth: dict[str, Any], way: str, seconds: float = 0.0) -> Marked:
    """Ask the findings of a bundle, and hold what they say against the truth."""
    verdict = evaluate(Bundle(bundle))
    judged = judge(verdict)
    headline, meant = "", set[str]()
    if judged.word == TROUBLE:
        first = first_incident(verdict).causes[0][0]
        headline = first.id
        meant = {first.id, *(f"{first.id}:{value}" for _, value in first.subject)}
    names = truth.get("owner") or []
    return Marked(
        kind=truth["kind"],
        seed=truth["seed"],
        way=way,
        sick=bool(truth["cause"]),
        word=judged.word,
        headline=headline,
        severity=judged.severity,
        owner=judged.owner,
        cause_right=bool(meant & CAUSES.get(truth["cause"], set())),
        owner_right=any(name in judged.owner for name in names) if names else None,
        seconds=round(seconds, 1),
    )


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, right / of
    middle = share + z * z / (2 * of)
    around = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    below = 1 + z * z / of
    return max(0.0, (middle - around) / below), min(1.0, (middle + around) / below)


def share(right: int, of: int) -> dict[str, Any]:
    low, high = wilson(right, of)
    return {
        "right": right,
        "of": of,
        "share": round(right / of, 3) if of else None,
        "low": round(low, 3),
        "high": round(high, 3),
    }


def sums(marks: Iterable[Marked]) -> dict[str, Any]:
    """Precision, recall, cause and owner of some cases."""
    every = list(marks)
    sick = [one for one in every if one.sick]
    called = [one for one in every if one.called]
    owned = [one for one in sick if one.owner_right is not None]
    return {
        "cases": len(every),
        "sick": len(sick),
        "precision": share(sum(one.sick for one in called), len(called)),
        "recall": share(sum(one.called for one in sick), len(sick)),
        "cause": share(sum(one.cause_right for one in sick), len(sick)),
        "owner": share(sum(bool(one.owner_right) for one in owned), len(owned)),
        "cannot_tell": sum(one.word == CANNOT_TELL for one in every),
        "false_clear": sum(one.false_clear for one in every),
    }


def all_sums(marks: Iterable[Marked]) -> dict[str, Any]:
    """The sums of all, and of each way and kind."""
    every = list(marks)
    kinds = dict.fromkeys(one.kind for one in every)
    return {
        **sums(every),
        "by_way": {way: sums(_of(every, "way", way)) for way in WAYS if _of(every, "way", way)},
        "by_kind": {kind: sums(_of(every, "kind", kind)) for kind in kinds},
    }


def _of(marks: list[Marked], field: str, value: str) -> list[Marked]:
    return [one for one in marks if getattr(one, field) == value]


def cases_in(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folders of cases that were made, with their truths."""
    for path in sorted(folder.glob("*/truth.json")):
        yield path.parent, json.loads(path.read_text())
