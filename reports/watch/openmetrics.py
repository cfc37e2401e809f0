# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A sample as OpenMetrics text, or as Prometheus's own text format, for the textfile collector of
node_exporter.

The collector reads only files named ``*.prom``, and these in Prometheus's format. There a counter
is declared by the name that its samples have, with ``_total``; one declared as OpenMetrics wants it
loses its type and its help. So a file of that name gets Prometheus's format, and any other
OpenMetrics. No text has its counters' types in both.

The collector skips a whole file for one escape that it does not know, one byte that is not UTF-8 or
one timestamp, and complains at every scrape about a sample that is there twice. None of these is
written, whatever a host's files say.

The counters themselves are exposed, not rates: who scrapes has periods of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.watch.samples import KSM_EVENTS, KSM_LEVELS, Pressure, ZoneSample

Value = int | float
Points = list[tuple[Mapping[str, object], Value]]

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric with its samples."""

    name: str
    kind: str
    unit: str
    help: str
    points: Points


def text(
    sample: dict[str, Any], page_size: int, *, prometheus: bool, more: Iterable[Family] = ()
) -> str:
    """
    A sample as text.

    :param page_size: in bytes, since what is exposed is in base units.
    :param prometheus: in Prometheus's text format, not OpenMetrics.
    :param more: metrics that are not of the sample.
    """
    lines = []
    for name, kind, unit, help, points in (*_families(sample, page_size), *more):
        if not points:
            continue
        of_samples = f"{name}_total" if kind == "counter" else name
        declared = of_samples if prometheus else name
        lines.append(f"# HELP {declared} {help}")
        lines.append(f"# TYPE {declared} {kind}")
        if unit and not prometheus:
            lines.append(f"# UNIT {declared} {unit}")
        values = {",".join(_label(*label) for label in of.items()): value for of, value in points}
        lines += [
            f"{of_samples}{{{labels}}} {value}" if labels else f"{of_samples} {value}"
            for labels, value in values.items()
        ]
    return "\n".join([*lines, *([] if prometheus else ["# EOF"]), ""])


def _label(name: str, value: object) -> str:
    r"""A label. What UTF-8 cannot hold is written out: ``\udc80`` is text, and not an escape."""
    said = str(value).encode("utf-8", "backslashreplace").decode()
    return f'{name}="{said.translate(ESCAPES)}"'


def _by_name(values: Mapping[str, Value]) -> Points:
    """Samples that differ in their label ``name``."""
    return [({"name": name}, value) for name, value in values.items()]


def _families(sample: dict[str, Any], page_size: int) -> Iterator[Family]:
    """The metrics of a sample."""
    yield from _system(sample)
    yield from _zones(sample, page_size)
    yield from _ksm(sample.get("ksm", {}))
    yield from _watch(sample)


def _system(sample: dict[str, Any]) -> Iterator[Family]:
    """What is counted of the whole machine."""
    yield Family(
        *("mmscope_vm_events", "counter", ""),
        "Counters of /proc/vmstat, in their own units.",
        _by_name(sample.get("vmstat", {})),
    )
    yield Family(
        *("mmscope_pressure_stall_seconds", "counter", "seconds"),
        "Time that tasks waited for memory (PSI): some of them, or all that could run (full).",
        [
            ({"kind": kind}, Pressure(*row).total / 1e6)
            for kind, row in sample.get("psi", {}).items()
        ],
    )
    yield Family(
        *("mmscope_memory_bytes", "gauge", "bytes"),
        "Levels of /proc/meminfo.",
        _by_name(sample.get("meminfo", {})),
    )


def _zones(sample: dict[str, Any], page_size: int) -> Iterator[Family]:
    """What each zone has."""
    zones = [ZoneSample(*row) for row in sample.get("zones", ())]
    places = [({"node": zone.node, "zone": zone.zone}, zone) for zone in zones]
    yield Family(
        *("mmscope_thp_free_blocks", "gauge", ""),
        "Free memory in blocks of THP size and larger, in THP sizes, by migratetype; "
        "as of the last reading.",
        [
            ({"node": node, "zone": zone, "migratetype": migratetype or "unknown"}, blocks)
            for node, zone, migratetype, blocks, _ in sample.get("thp_free", ())
        ],
    )
    yield Family(
        *("mmscope_zone_free_bytes", "gauge", "bytes"),
        "Free memory of the zone, the HighAtomic reserve included.",
        [(place, zone.free * page_size) for place, zone in places],
    )
    yield Family(
        *("mmscope_zone_managed_bytes", "gauge", "bytes"),
        "Memory that the page allocator has in the zone.",
        [(place, zone.managed * page_size) for place, zone in places],
    )
    yield Family(
        *("mmscope_zone_watermark_bytes", "gauge", "bytes"),
        "Watermarks of the zone, without the boost.",
        [
            ({**place, "watermark": name}, pages * page_size)
            for place, zone in places
            for name, pages in (("min", zone.min), ("low", zone.low), ("high", zone.high))
        ],
    )
    reserve = {(node, zone): pages for node, zone, pages in sample.get("reserve", ())}
    reserve |= {
        (zone.node, zone.zone): zone.reserved_highatomic
        for zone in zones
        if zone.reserved_highatomic is not None
    }
    yield Family(
        *("mmscope_zone_highatomic_reserved_bytes", "gauge", "bytes"),
        "Memory in HighAtomic pageblocks of the zone.",
        [
            ({"node": node, "zone": zone}, pages * page_size)
            for (node, zone), pages in reserve.items()
        ],
    )


def _ksm(ksm: Mapping[str, int]) -> Iterator[Family]:
    """What /sys/kernel/mm/ksm has."""

    def chosen(names: Iterable[str]) -> Points:
        return _by_name({name: ksm[name] for name in names if name in ksm})

    yield Family(
        *("mmscope_ksm_events", "counter", ""),
        "Counters of /sys/kernel/mm/ksm.",
        chosen(KSM_EVENTS),
    )
    for unit, name in (("pages", "mmscope_ksm_pages"), ("", "mmscope_ksm_stable_nodes")):
        yield Family(
            *(name, "gauge", ""),
            "Levels of /sys/kernel/mm/ksm.",
            chosen(level for level, of in KSM_LEVELS.items() if of == unit),
        )
    yield Family(
        *("mmscope_ksm_profit_bytes", "gauge", "bytes"),
        "Memory that KSM saves, less its own (general_profit).",
        [({}, ksm["general_profit"])] if "general_profit" in ksm else [],
    )


def _watch(sample: dict[str, Any]) -> Iterator[Family]:
    """The sample itself, and what taking samples costs."""
    yield Family(
        *("mmscope_watch_sample_timestamp_seconds", "gauge", "seconds"),
        "When this sample was taken.",
        [({}, sample["wall"])],
    )
    yield Family(
        *("mmscope_watch_samples", "counter", ""),
        "Samples taken.",
        [({}, sample["number"])],
    )
    yield Family(
        *("mmscope_watch_cpu_seconds", "counter", "seconds"),
        "CPU time that taking samples took.",
        [({}, sample["cpu_total"])],
    )
    yield Family(
        *("mmscope_watch_unread_sources", "gauge", ""),
        "Sources that could not be read.",
        [({}, len(sample["unread"]))],
    )


def expose(path: Path, sample: dict[str, Any], page_size: int, more: Iterable[Family] = ()) -> None:
    """
    Write a sample so that its name always holds a whole one, readable by anybody.

    :param path: if its name ends in ``.prom``, the text is as node_exporter reads it.
    :param more: metrics that are not of the sample.
    :raises OSError: it cannot be written.
    """
    # The collector does not take the name until then for one of its own (*.prom).
    with replaced(path, 0o644, durable=False) as file:
        prometheus = path.suffix == ".prom"
        file.write(text(sample, page_size, prometheus=prometheus, more=more).encode())
