# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who takes memory on several hosts: the rows of findings by the stack, cache, caller or counter that
they are about, and the classes of the memory ledger that grew between two readings.

One leak on each of a hundred hosts is a hundred findings, and one owner. Which hosts have a finding
says ``fleet``; this says whose memory it is on them.

Cannot know: that an owner of one name is the same code on two kernels. Of a finding that names the
largest few of a host alone, nothing is known of the others.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.fleet.fleet import Fleet, Told
from mmscope.reports.fleet.growth import MAX_NAME
from mmscope.reports.lake.asking import Row
from mmscope.reports.lake.catalog import Taken

# On so many hosts it is no matter of one host.
SEVERAL = 2
NOT_KNOWN = "(not known)"
# Classes that follow what the machine is used for.
LOAD = ("anonymous", "page cache")
LEDGER_CLASS = "ledger class"


@dataclass(frozen=True)
class Kind:
    """
    What a finding's rows are about.

    :ivar grew: the bytes are what it gained, not what it has.
    :ivar name: of the owner; None: the row does not say.
    :ivar amount: bytes; None where they are not known.
    :ivar load: whether it follows what the machine is used for.
    """

    what: str
    grew: bool
    name: Callable[[Row], str | None]
    amount: Callable[[Row], int | None]
    load: Callable[[Row], bool] = lambda row: False


def _paged(column: str) -> Callable[[Row], int | None]:
    """Bytes of a column of pages."""

    def amount(row: Row) -> int | None:
        pages, size = row[column], row["page_size"]
        return None if pages is None or size is None else pages * size

    return amount


def _stack(row: Row) -> str | None:
    return f"{row['owner']} [{row['module']}]" if row["owner"] and row["module"] else row["owner"]


# Of which findings.
KINDS = {
    "page-owner-stack-grows": Kind(
        "allocation stack",
        True,
        _stack,
        _paged("gained"),
        # Its query says so of anonymous memory and page cache.
        lambda row: row["severity"] == "notice",
    ),
    "watch-kernel-memory-grows": Kind(
        "kernel counter",
        True,
        lambda row: row["name"],
        lambda row: round(row["gained"]) if math.isfinite(row["gained"]) else None,
    ),
    "slab-large": Kind("slab cache", False, lambda row: row["cache"], _paged("cache_pages")),
    "vmalloc-large": Kind("vmalloc caller", False, lambda row: row["caller"], _paged("pages")),
}


@dataclass
class Owner:
    """
    An owner of memory on some hosts.

    :ivar hosts: bytes on each; None where they are not known.
    :ivar fell: hosts on which it has less than before; None where that is not looked at.
    :ivar checked: hosts that could tell.
    :ivar seconds: in which it grew, by host.
    :ivar finding: its id; empty: of the ledger.
    :ivar load: it follows what the machine is used for.
    """

    what: str
    name: str
    grew: bool
    checked: int
    finding: str = ""
    load: bool = False
    fell: int | None = None
    hosts: dict[str, int | None] = field(default_factory=dict)
    bundles: dict[str, Taken] = field(default_factory=dict)
    seconds: dict[str, float | None] = field(default_factory=dict)

    def add(self, bundle: Taken, amount: int | None, seconds: float | None) -> None:
        """One of several that a host may have."""
        before = self.hosts.get(bundle.host, 0)
        self.hosts[bundle.host] = None if before is None or amount is None else before + amount
        self.bundles[bundle.host] = bundle
        self.seconds[bundle.host] = seconds

    @property
    def bytes(self) -> int | None:
        """On all hosts; not known where it is not of one of them."""
        every = list(self.hosts.values())
        return None if None in every else sum(size for size in every if size is not None)

    @property
    def worst(self) -> str:
        """The host on which it has most."""
        return min(self.hosts, key=lambda host: (-(self.hosts[host] or 0), host))

    @property
    def worst_bytes(self) -> int | None:
        """What it has there."""
        return self.hosts[self.worst]


def owners(fleet: Fleet) -> list[Owner]:
    """
    All of them: those that most hosts have, less those on which it fell, first; what follows the
    load comes last.
    """
    found = [*_of_findings(fleet.told), *_of_ledgers(fleet)]
    return sorted(
        found,
        key=lambda one: (
            one.load,
            (one.fell or 0) - len(one.hosts),
            -(one.bytes or 0),
            one.what,
            one.name,
        ),
    )


def several(found: Iterable[Owner]) -> list[Owner]:
    """Those that take memory on more than one host, and on more than it fell on."""
    return [one for one in found if len(one.hosts) >= max(SEVERAL, (one.fell or 0) + 1)]


def _of_findings(told: Iterable[Told]) -> Iterator[Owner]:
    for one in told:
        if not (kind := KINDS.get(one.question.id)):
            continue
        by_name: dict[str, Owner] = {}
        for case in one.cases:
            for row in case.rows:
                name = cut(kind.name(row) or NOT_KNOWN, MAX_NAME)
                owner = by_name.setdefault(
                    name,
                    Owner(kind.what, name, kind.grew, one.checked, one.question.id, kind.load(row)),
                )
                owner.add(case.bundle, kind.amount(row), row.get("seconds"))
        yield from by_name.values()


def _of_ledgers(fleet: Fleet) -> Iterator[Owner]:
    if fleet.growth is None:
        return
    checked = fleet.growth.known()
    by_name: dict[str, Owner] = {}
    for change in fleet.growth.changes():
        owner = by_name.setdefault(
            change.name,
            Owner(LEDGER_CLASS, change.name, True, checked, load=change.name in LOAD, fell=0),
        )
        if change.gained > 0:
            owner.add(change.bundle, change.gained, change.seconds)
        else:
            owner.fell = (owner.fell or 0) + 1
    yield from (owner for owner in by_name.values() if owner.hosts)


def sentence(one: Owner) -> str:
    """What there is to say of it, in a line for a terminal."""
    did = "grew" if one.grew else "is large"
    many = display.plural(len(one.hosts), "host")
    fell = f", fell on {one.fell:,}" if one.fell else ""
    size = one.bytes
    by = "by " if one.grew else ""
    amount = f", {by}{display.size(size)} in all" if size is not None else ""
    worst = ""
    if one.worst_bytes is not None:
        seconds = one.seconds[one.worst]
        time = f" in {display.duration(seconds)}" if one.grew and seconds else ""
        worst = f", most on {one.worst}: {display.size(one.worst_bytes)}{time}"
    said = f"{one.what} {one.name} {did} on {many} of {one.checked:,}{fell}{amount}{worst}"
    return visible(display.prose(said))
