# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Owners of memory on several hosts: the rows of findings by the stack, cache, caller or counter that
they are about, and the classes of the memory ledger and the holders of pages that grew between two
readings.

One leak on each of a hundred hosts is a hundred findings, and one owner. Which hosts have a finding
says ``fleet``; this says whose memory it is on them.

Cannot know: that an owner of one name is the same code on two kernels. Of a finding that names the
largest few of a host alone, nothing is known of the others.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.fleet.fleet import Fleet
from mmscope.reports.fleet.growth import MAX_NAME
from mmscope.reports.lake.asking import Row
from mmscope.reports.lake.catalog import Taken

# On so many hosts it is no matter of one host.
SEVERAL = 2
NOT_KNOWN = "(not known)"
# Classes that follow what the machine is used for.
LOAD = ("anonymous", "page cache")
STACKS = "page-owner-stack-grows"
# Of findings that have owners: what these are, and whether the size is what they gained; the
# columns of their name and size, which is in pages where the row has a page size.
KINDS = {
    STACKS: ("allocation stack", True, "owner", "gained"),
    "watch-kernel-memory-grows": ("kernel counter", True, "name", "gained"),
    "slab-large": ("slab cache", False, "cache", "cache_pages"),
    "vmalloc-large": ("vmalloc caller", False, "caller", "pages"),
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
        """Bytes that it has there."""
        return self.hosts[self.worst]

    @property
    def worst_period(self) -> str:
        """Time that it took to grow there; empty if that is not known."""
        seconds = self.seconds[self.worst]
        return display.duration(seconds) if self.grew and seconds else ""


def owners(fleet: Fleet) -> list[Owner]:
    """
    All of them: those that most hosts have, less those on which it fell, first; what follows the
    load comes last.
    """
    found = [*_of_findings(fleet), *_of_ledgers(fleet)]
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
    """Owners of memory on more than one host, and on more than it fell on."""
    return [one for one in found if len(one.hosts) >= max(SEVERAL, (one.fell or 0) + 1)]


def _of_findings(fleet: Fleet) -> Iterator[Owner]:
    for one in fleet.found:
        id, checked = one.question.id, len(one.checked)
        if id not in KINDS:
            continue
        what, grew, named, sized = KINDS[id]
        by_name: dict[str, Owner] = {}
        for case in one.cases:
            for row in case.rows:
                name = row[named]
                if id == STACKS and name and row["module"]:
                    name = f"{name} [{row['module']}]"
                name = cut(name or NOT_KNOWN, MAX_NAME)
                # Its query says so of anonymous memory and page cache.
                load = id == STACKS and row["severity"] == "notice"
                owner = by_name.setdefault(name, Owner(what, name, grew, checked, id, load))
                owner.add(case.bundle, _size(row, sized), row.get("seconds"))
        yield from by_name.values()


def _size(row: Row, column: str) -> int | None:
    """Bytes; None where they are not known."""
    value, unit = row[column], row.get("page_size", 1)
    known = value is not None and unit is not None and math.isfinite(value)
    return round(value) * unit if known else None


def _of_ledgers(fleet: Fleet) -> Iterator[Owner]:
    by_name: dict[tuple[str, str], Owner] = {}
    for what, name, bundle, gained, seconds in fleet.changes:
        new = Owner(what, name, True, fleet.ledgers or 0, load=name in LOAD, fell=0)
        owner = by_name.setdefault((what, name), new)
        if gained > 0:
            owner.add(bundle, gained, seconds)
        else:
            owner.fell = (owner.fell or 0) + 1
    yield from (owner for owner in by_name.values() if owner.hosts)


def sentence(one: Owner) -> str:
    """Describe an owner in a line for a terminal."""
    did = "grew" if one.grew else "is large"
    many = display.plural(len(one.hosts), "host")
    fell = f", fell on {one.fell:,}" if one.fell else ""
    size = one.bytes
    by = "by " if one.grew else ""
    amount = f", {by}{display.size(size)} in all" if size is not None else ""
    worst = ""
    if one.worst_bytes is not None:
        time = f" in {one.worst_period}" if one.worst_period else ""
        worst = f", most on {one.worst}: {display.size(one.worst_bytes)}{time}"
    said = f"{one.what} {one.name} {did} on {many} of {one.checked:,}{fell}{amount}{worst}"
    return visible(display.prose(said))
