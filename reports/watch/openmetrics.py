# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A sample as OpenMetrics text, or as Prometheus's own text format, for the textfile collector of
node_exporter.

That collector takes files named ``*.prom`` alone, and reads the older format: there a counter is
declared by the name that its samples have, with ``_total``, and one declared as OpenMetrics wants
it loses its type and its help. So a file of that name gets the older format, any other OpenMetrics;
no text has its counters' types in both.

For one escape that it does not know, one byte that is not UTF-8 or one timestamp, the collector
skips the whole file, and of a sample that is there twice it complains at every scrape: none of
these is written, whatever a host's files say.

What is exposed are the counters themselves, not rates: whoever scrapes has periods of its own.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.watch.samples import KSM_EVENTS, KSM_LEVELS, Pressure, ZoneSample

Value = int | float
Points = list[tuple[Mapping[str, object], Value]]

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def text(sample: dict[str, Any], page_size: int, *, prometheus: bool) -> str:
    """
    A sample as text.

    :param page_size: in bytes, since what is exposed is in base units.
    :param prometheus: in Prometheus's text format, not OpenMetrics.
    """
    lines = []
    for name, kind, unit, help, points in _families(sample, page_size):
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
    r"""A label. What UTF-8 cannot hold is written out, as text: ``\udc80`` is no escape there."""
    said = str(value).encode("utf-8", "backslashreplace").decode()
    return f'{name}="{said.translate(ESCAPES)}"'


def _families(
    sample: dict[str, Any], page_size: int
) -> Iterator[tuple[str, str, str, str, Points]]:
    """(name, type, unit, help, samples) of each metric."""
    ksm, zones = sample.get("ksm", {}), [ZoneSample(*row) for row in sample.get("zones", ())]
    yield (
        *("mmscope_vm_events", "counter", ""),
        "Counters of /proc/vmstat, in their own units.",
        [({"name": name}, value) for name, value in sample.get("vmstat", {}).items()],
    )
    yield (
        *("mmscope_pressure_stall_seconds", "counter", "seconds"),
        "Time that tasks waited for memory (PSI): some of them, or all that could run (full).",
        [
            ({"kind": kind}, Pressure(*row).total / 1e6)
            for kind, row in sample.get("psi", {}).items()
        ],
    )
    yield (
        *("mmscope_thp_free_blocks", "gauge", ""),
        "Free memory in blocks of THP size and larger, in THP sizes, by migratetype; "
        "as of the last reading.",
        [
            ({"node": node, "zone": zone, "migratetype": migratetype or "unknown"}, blocks)
            for node, zone, migratetype, blocks, _ in sample.get("thp_free", ())
        ],
    )
    places = [({"node": zone.node, "zone": zone.zone}, zone) for zone in zones]
    yield (
        *("mmscope_zone_free_bytes", "gauge", "bytes"),
        "Free memory of the zone, the HighAtomic reserve included.",
        [(place, zone.free * page_size) for place, zone in places],
    )
    yield (
        *("mmscope_zone_managed_bytes", "gauge", "bytes"),
        "Memory that the page allocator has in the zone.",
        [(place, zone.managed * page_size) for place, zone in places],
    )
    yield (
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
    yield (
        *("mmscope_zone_highatomic_reserved_bytes", "gauge", "bytes"),
        "Memory in HighAtomic pageblocks of the zone.",
        [
            ({"node": node, "zone": zone}, pages * page_size)
            for (node, zone), pages in reserve.items()
        ],
    )
    yield (
        *("mmscope_memory_bytes", "gauge", "bytes"),
        "Levels of /proc/meminfo.",
        [({"name": name}, value) for name, value in sample.get("meminfo", {}).items()],
    )
    yield (
        *("mmscope_ksm_events", "counter", ""),
        "Counters of /sys/kernel/mm/ksm.",
        [({"name": name}, ksm[name]) for name in KSM_EVENTS if name in ksm],
    )
    for unit, name in (("pages", "mmscope_ksm_pages"), ("", "mmscope_ksm_stable_nodes")):
        yield (
            *(name, "gauge", ""),
            "Levels of /sys/kernel/mm/ksm.",
            [({"name": n}, ksm[n]) for n, of in KSM_LEVELS.items() if of == unit and n in ksm],
        )
    yield (
        *("mmscope_ksm_profit_bytes", "gauge", "bytes"),
        "Memory that KSM saves, less its own (general_profit).",
        [({}, ksm["general_profit"])] if "general_profit" in ksm else [],
    )
    yield (
        *("mmscope_watch_sample_timestamp_seconds", "gauge", "seconds"),
        "When this sample was taken.",
        [({}, sample["wall"])],
    )
    yield (
        *("mmscope_watch_samples", "counter", ""),
        "Samples taken.",
        [({}, sample["number"])],
    )
    yield (
        *("mmscope_watch_cpu_seconds", "counter", "seconds"),
        "CPU time that mmscope watch took.",
        [({}, sample["cpu_total"])],
    )
    yield (
        *("mmscope_watch_unread_sources", "gauge", ""),
        "Sources that could not be read.",
        [({}, len(sample["unread"]))],
    )


def expose(path: Path, sample: dict[str, Any], page_size: int) -> None:
    """
    Write a sample so that its name always holds a whole one, readable by anybody.

    :param path: if its name ends in ``.prom``, the text is as node_exporter reads it.
    :raises OSError: it cannot be written.
    """
    # The collector does not take the name until then for one of its own (*.prom).
    with replaced(path, 0o644, durable=False) as file:
        file.write(text(sample, page_size, prometheus=path.suffix == ".prom").encode())
