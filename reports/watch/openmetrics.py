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

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.leftovers import is_special, replaced
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.rows.watch_rows import ZoneLevel
from mmscope.reports.watch.samples import KSM_EVENTS, KSM_LEVELS, Sample

Points = Sequence[tuple[Mapping[str, object], int | float]]  # labels, value
Metrics = Mapping[str, Points]

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
SELDOM_READ = ("thp_free", "reserve")
PLACE = ("node", "zone")
ZONE = [c.name for c in columns(ZoneLevel)][1:]  # as a sample has it
# Kind and unit, help; in the order in which they are written.
DECLARED = {
    "vm_events": ("counter", "Counters of /proc/vmstat, in their own units."),
    "pressure_stall_seconds": (
        "counter seconds",
        "Time that tasks waited for memory (PSI): some of them, or all that busy CPUs had (full).",
    ),
    "memory_bytes": ("gauge bytes", "Levels of /proc/meminfo."),
    "thp_free_blocks": (
        "gauge",
        "Free memory in blocks of THP size and larger, in THP sizes, by migratetype; "
        "as of the last reading.",
    ),
    "zone_free_bytes": ("gauge bytes", "Free memory of the zone, the HighAtomic reserve included."),
    "zone_managed_bytes": ("gauge bytes", "Memory that the page allocator has in the zone."),
    "zone_watermark_bytes": ("gauge bytes", "Watermarks of the zone, without the boost."),
    "zone_highatomic_reserved_bytes": (
        "gauge bytes",
        "Memory in HighAtomic pageblocks of the zone.",
    ),
    "ksm_events": ("counter", "Counters of /sys/kernel/mm/ksm."),
    "ksm_pages": ("gauge", "Levels of /sys/kernel/mm/ksm."),
    "ksm_stable_nodes": ("gauge", "Levels of /sys/kernel/mm/ksm."),
    "ksm_profit_bytes": ("gauge bytes", "Memory that KSM saves, less its own (general_profit)."),
    "watch_sample_timestamp_seconds": ("gauge seconds", "When this sample was taken."),
    "watch_samples": ("counter", "Samples taken."),
    "watch_cpu_seconds": ("counter seconds", "CPU time that taking samples took."),
    "watch_unread_sources": ("gauge", "Sources that could not be read."),
    # Of mmscope guard itself.
    "guard_fired": ("counter", "Samples in which a trigger's time had come, captured or not."),
    "guard_captures": ("counter", "Captures that were begun and have ended."),
    "guard_captures_cut_short": ("counter", "Captures that ended before they were whole."),
    "guard_last_capture_timestamp_seconds": ("gauge seconds", "When the last capture ended."),
    "guard_failed_triggers": ("gauge", "Triggers whose query fails."),
    "guard_resident_bytes": ("gauge bytes", "Memory of the resident."),
    "guard_capture_cpu_seconds": ("counter seconds", "CPU time of captures that have ended."),
}


def text(sample: Sample, page_size: int, *, prometheus: bool, more: Metrics | None = None) -> str:
    """
    A sample as text.

    :param page_size: in bytes, since what is exposed is in base units.
    :param prometheus: in Prometheus's text format, not OpenMetrics.
    :param more: metrics that are not of the sample.
    """
    lines = []
    metrics = {**_metrics(sample, page_size), **(more or {})}
    for name, (what, help) in DECLARED.items():
        if not (points := metrics.get(name)):
            continue
        kind, _, unit = what.partition(" ")
        name = f"mmscope_{name}"
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


def _metrics(sample: Sample, page_size: int) -> Metrics:
    ksm = sample.get("ksm", {})
    zones = [dict(zip(ZONE, row, strict=True)) for row in sample.get("zones", ())]
    reserve = {tuple(place): pages for *place, pages in sample.get("reserve", ())}
    reserve |= {
        tuple(zone[name] for name in PLACE): pages
        for zone in zones
        if (pages := zone["highatomic_reserved_pages"]) is not None
    }

    def named(values: Mapping[str, int], names: Iterable[str] | None = None) -> Points:
        chosen = values if names is None else [name for name in names if name in values]
        return [({"name": name}, values[name]) for name in chosen]

    def levels(unit: str) -> Points:
        return named(ksm, [name for name, of in KSM_LEVELS.items() if of == unit])

    def of_zones(columns: Mapping[str, dict[str, str]]) -> Points:
        """Columns of the zones, each with labels beside the zone's."""
        return [
            ({name: zone[name] for name in PLACE} | labels, zone[column] * page_size)
            for zone in zones
            for column, labels in columns.items()
        ]

    return {
        "vm_events": named(sample.get("vmstat", {})),
        "pressure_stall_seconds": [
            ({"kind": kind}, total / 1e6) for kind, (*_, total) in sample.get("psi", {}).items()
        ],
        "memory_bytes": named(sample.get("meminfo", {})),
        "thp_free_blocks": [
            ({"node": node, "zone": zone, "migratetype": migratetype or "unknown"}, blocks)
            for node, zone, migratetype, blocks, _ in sample.get("thp_free", ())
        ],
        "zone_free_bytes": of_zones({"free_pages": {}}),
        "zone_managed_bytes": of_zones({"managed_pages": {}}),
        "zone_watermark_bytes": of_zones(
            {f"wmark_{name}": {"watermark": name} for name in ("min", "low", "high")}
        ),
        "zone_highatomic_reserved_bytes": [
            (dict(zip(PLACE, place, strict=True)), pages * page_size)
            for place, pages in reserve.items()
        ],
        "ksm_events": named(ksm, KSM_EVENTS),
        "ksm_pages": levels("pages"),
        "ksm_stable_nodes": levels(""),
        "ksm_profit_bytes": [({}, ksm["general_profit"])] if "general_profit" in ksm else [],
        "watch_sample_timestamp_seconds": [({}, sample["wall"])],
        "watch_samples": [({}, sample["number"])],
        "watch_cpu_seconds": [({}, sample["cpu_total"])],
        "watch_unread_sources": [({}, len(sample["unread"]))],
    }


def with_last(shown: Sample, sample: Sample) -> Sample:
    """A sample, with what is not read each time as it was when it last was."""
    return {name: shown[name] for name in SELDOM_READ if name in shown} | sample


def check_name(path: Path | None) -> None:
    """
    Refuse a name that is not a file's: it is replaced at every sample, and removed at the end.

    :raises UsageError: it is one.
    """
    if path is not None and is_special(path):
        raise UsageError(f"--openmetrics {path}: is not a file; name one of your own")


def withdraw(path: Path) -> None:
    """
    Remove the file: numbers of what is gone would be taken for those of now.

    :raises OSError: it cannot be removed.
    """
    if not is_special(path):
        path.unlink(missing_ok=True)


def expose(path: Path, sample: Sample, page_size: int, more: Metrics | None = None) -> None:
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
