# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A kernel's log in the forms in which people have it: what journals, syslogs, containers and
terminals put before its lines, and what mails and tickets do to them.

A form makes lines of records; a mangling makes a text of lines. ``LOSSY`` manglings may cost
records, which must be said; the others cost nothing.
"""

import csv
import io
import json
import quopri
import random
import re
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

BOOT = datetime(2024, 5, 9, 14, 52, 38, tzinfo=UTC)
HOST = "node-7"
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
GERMAN = ("Mo", "Di", "Mi", "Do", "Fr", "Sa", "So")
FRENCH = ("lun.", "mar.", "mer.", "jeu.", "ven.", "sam.", "dim.")
CHINESE = "一二三四五六日"


class Record(NamedTuple):
    """A record as the kernel has it."""

    micro: int
    level: int
    text: str
    number: int = 0

    @property
    def wall(self) -> datetime:
        return BOOT + timedelta(microseconds=self.micro)

    @property
    def stamp(self) -> str:
        return f"[{self.micro // 10**6:5}.{self.micro % 10**6:06}]"


def records_of(text: str) -> list[Record]:
    """Records of ``dmesg -r``; what has the time and level of the line before belongs to it."""
    found = re.findall(r"<(\d+)>\[ *(\d+)\.(\d{6})\] (.*)", text)
    return [
        Record(int(s) * 10**6 + int(u), int(p) & 7, line, number)
        for number, (p, s, u, line) in enumerate(found)
    ]


Prefix = Callable[[Record], str]


def _date(names: Sequence[str], month: str) -> Prefix:
    return lambda r: f"[{names[r.wall.weekday()]} {month} {r.wall.day:2} {r.wall:%H:%M:%S %Y}] "


# What stands before each line.
PREFIXES: dict[str, Prefix] = {
    "dmesg": lambda r: f"{r.stamp} ",
    "dmesg -r": lambda r: f"<{r.level}>{r.stamp} ",
    "dmesg -x": lambda r: f"kern  :{LEVELS[r.level]:6}: {r.stamp} ",
    "dmesg -T": lambda r: f"[{r.wall:%a %b %e %H:%M:%S %Y}] ",
    "dmesg -T, German": _date(GERMAN, "Mai"),
    "dmesg -T, French": _date(FRENCH, "mai  "),
    "dmesg -T, Chinese": _date(CHINESE, "5月"),
    "dmesg -d": lambda r: f"{r.stamp[:-1]} <    0.000{r.micro % 1000:03}>] ",
    "dmesg -H": lambda r: f"[  +0.000{r.micro % 1000:03}] ",
    "dmesg -H, decimal comma": lambda r: f"[  +0,000{r.micro % 1000:03}] ",
    "dmesg --time-format iso": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S},{r.wall:%f}+02:00 ",
    "dmesg without times": lambda r: "",
    "dmesg with callers": lambda r: f"{r.stamp}[{'C1':>5}] ",
    "milliseconds": lambda r: f"[{r.micro // 10**6:5}.{r.micro // 1000 % 1000:03}] ",
    "syslog": lambda r: f"{r.wall:%b %e %H:%M:%S} {HOST} kernel: {r.stamp} ",
    "syslog without kernel's times": lambda r: f"{r.wall:%b %e %H:%M:%S} {HOST} kernel: ",
    "syslog without a host": lambda r: f"{r.wall:%b %e %H:%M:%S} kernel: {r.stamp} ",
    "syslog, ISO": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S.%f}+02:00 {HOST} kernel: {r.stamp} ",
    "syslog of busybox": lambda r: (
        f"{r.wall:%b %e %H:%M:%S} {HOST} kern.{LEVELS[r.level]} kernel: {r.stamp} "
    ),
    "OpenWrt": lambda r: f"{r.wall:%a %b %e %H:%M:%S %Y} kern.{LEVELS[r.level]} kernel: {r.stamp} ",
    "RFC 5424": lambda r: f"<{r.level}>1 {r.wall:%Y-%m-%dT%H:%M:%S.%fZ} {HOST} kernel - - - ",
    "journal, short": lambda r: f"{r.wall:%b %d %H:%M:%S} {HOST} kernel: ",
    "journal, precise": lambda r: f"{r.wall:%b %d %H:%M:%S.%f} {HOST} kernel: ",
    "journal, iso": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S}+0200 {HOST} kernel: ",
    "journal, iso-precise": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S.%f}+02:00 {HOST} kernel: ",
    "journal, full": lambda r: f"{r.wall:%a %Y-%m-%d %H:%M:%S} CEST {HOST} kernel: ",
    "journal, monotonic": lambda r: f"{r.stamp} {HOST} kernel: ",
    "journal, unix": lambda r: f"{r.wall.timestamp():.6f} {HOST} kernel: ",
    "journal, without a host": lambda r: f"{r.wall:%b %d %H:%M:%S} kernel: ",
    "kubectl": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S.%f}789Z {r.stamp} ",
    "kubectl of a pod": lambda r: (
        f"[pod/log-x7f2q/dmesg] {r.wall:%Y-%m-%dT%H:%M:%S.%f}789Z {r.stamp} "
    ),
    "docker compose": lambda r: f"dmesg-1  | {r.stamp} ",
    "CRI": lambda r: f"{r.wall:%Y-%m-%dT%H:%M:%S.%f}789+00:00 stdout F {r.stamp} ",
    "logcat": lambda r: f"{r.wall:%m-%d %H:%M:%S}.{r.micro // 1000 % 1000:03}     0     0 W : ",
    "logcat of the kernel": lambda r: (
        f"{r.wall:%m-%d %H:%M:%S}.{r.micro // 1000 % 1000:03}  root     0     0 I kernel  : "
        f"{r.stamp} "
    ),
    "klog": lambda r: f"W{r.wall:%m%d %H:%M:%S.%f}       1 kmsg.go:62] {r.stamp} ",
    "a console's own times": lambda r: f"[{r.wall:%Y-%m-%d %H:%M:%S}] {r.stamp} ",
    "a console of many": lambda r: f"{HOST}: {r.stamp} ",
    "kmsg": lambda r: f"{r.level},{r.number},{r.micro},-;",
    "grep -n": lambda r: f"{1000 + r.micro % 997}:{r.stamp} ",
    "grep of files": lambda r: (
        f"var/log/kern.log:{r.wall:%b %e %H:%M:%S} {HOST} kernel: {r.stamp} "
    ),
    "indented": lambda r: f"    {r.stamp} ",
    "tabs": lambda r: f"\t{r.stamp} ",
    "ISO in brackets, a level": lambda r: f"[{r.wall:%Y-%m-%d %H:%M:%S}] [WARN ] ",
    "numeric date": lambda r: f"{r.wall:%d.%m.%Y %H:%M:%S} | {HOST} | kernel | ",
    "12 hours": lambda r: f"{r.wall:%m/%d/%Y %I:%M:%S %p} {HOST} kernel: ",
}


def with_prefix(name: str, records: Sequence[Record]) -> list[str]:
    """Lines with a prefix each, those of foreign programs not among them."""
    return [PREFIXES[name](record) + record.text for record in records]


def as_json(records: Sequence[Record], **fields: str) -> list[str]:
    """``journalctl -o json``."""
    return [
        json.dumps(
            {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": str(r.level)}
            | {"_SOURCE_MONOTONIC_TIMESTAMP": str(r.micro), "MESSAGE": r.text}
            | fields
        )
        for r in records
    ]


def as_docker(records: Sequence[Record]) -> list[str]:
    return [
        json.dumps({"log": f"{r.stamp} {r.text}\n", "stream": "stdout", "time": f"{r.wall:%FT%TZ}"})
        for r in records
    ]


def as_export(records: Sequence[Record]) -> list[str]:
    return [
        f"__REALTIME_TIMESTAMP={r.micro}\n_TRANSPORT=kernel\nPRIORITY={r.level}\n"
        f"_SOURCE_MONOTONIC_TIMESTAMP={r.micro}\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={r.text}\n"
        for r in records
    ]


def as_verbose(records: Sequence[Record]) -> list[str]:
    return [
        f"{r.wall:%a %Y-%m-%d %H:%M:%S.%f} UTC [s=0a1b;i=2c;b=3d]\n    PRIORITY={r.level}\n"
        f"    _TRANSPORT=kernel\n    SYSLOG_IDENTIFIER=kernel\n    MESSAGE={r.text}"
        for r in records
    ]


def as_pretty(records: Sequence[Record]) -> list[str]:
    return [json.dumps(json.loads(line), indent="\t") for line in as_json(records)]


def with_syslog(records: Sequence[Record]) -> list[str]:
    return with_prefix("syslog", records)


def as_cloudwatch(records: Sequence[Record]) -> list[str]:
    events = [{"timestamp": 7, "message": line} for line in with_syslog(records)]
    return [json.dumps({"events": events, "nextToken": "f/7"})]


def as_loki(records: Sequence[Record]) -> list[str]:
    values = [[f"17153521{at:011}", line] for at, line in enumerate(with_syslog(records))]
    result = [{"stream": {"job": "varlogs"}, "values": values}]
    return [json.dumps({"status": "success", "data": {"resultType": "streams", "result": result}})]


def as_elastic(records: Sequence[Record]) -> list[str]:
    hits = [{"_source": {"message": line, "host": {"name": "h"}}} for line in with_syslog(records)]
    return [json.dumps({"took": 7, "hits": {"total": {"value": 7}, "hits": hits}}, indent=1)]


def _nanoseconds(record: Record) -> str:
    return f"1715259158{record.micro:09}"


def as_loki_backward(records: Sequence[Record]) -> list[str]:
    """As Loki answers a query, unless it is asked otherwise; the lines have no times."""
    values = [[_nanoseconds(record), record.text] for record in records[::-1]]
    return [json.dumps({"data": {"result": [{"stream": {"host": "n"}, "values": values}]}})]


def as_otlp(records: Sequence[Record]) -> list[str]:
    found = [
        {"timeUnixNano": _nanoseconds(r), "body": {"stringValue": r.text},
         "attributes": [{"key": "log.iostream", "value": {"stringValue": "stdout"}}]}
        for r in records
    ]  # fmt: skip
    host = {"attributes": [{"key": "host.name", "value": {"stringValue": "n"}}]}
    scope = {"scope": {"name": "journald"}, "logRecords": found}
    return [json.dumps({"resourceLogs": [{"resource": host, "scopeLogs": [scope]}]})]


def as_otlp_of_a_journal(records: Sequence[Record]) -> list[str]:
    """Of the collector's journald receiver, whose bodies are maps."""

    def body(**fields: str) -> dict[str, object]:
        values = [{"key": key, "value": {"stringValue": text}} for key, text in fields.items()]
        return {"kvlistValue": {"values": values}}

    entries = [{"body": body(MESSAGE=r.text, _TRANSPORT="kernel")} for r in records]
    entries.append({"body": body(MESSAGE="started", SYSLOG_IDENTIFIER="systemd")})
    return [json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": entries}]}]}, indent=1)]


def as_insights(records: Sequence[Record]) -> list[str]:
    """Of CloudWatch Logs Insights: a row is a list of names and values."""
    rows = [
        [{"field": "@timestamp", "value": "2024-05-09"}, {"field": "@message", "value": r.text}]
        for r in records
    ]
    return [json.dumps({"results": rows, "status": "Complete"})]


def as_datadog(records: Sequence[Record]) -> list[str]:
    data = [{"id": "A", "attributes": {"message": r.text, "tags": ["a:b"]}} for r in records]
    return [json.dumps({"data": data, "meta": {"status": "done"}})]


def as_table(records: Sequence[Record]) -> list[str]:
    """Of Azure's Log Analytics: rows of a time and a line."""
    columns = [{"name": "TimeGenerated", "type": "datetime"}, {"name": "SyslogMessage"}]
    rows = [[f"{r.wall:%FT%T.%f}Z", r.text] for r in records]
    return [json.dumps({"tables": [{"columns": columns, "rows": rows}]})]


def as_events(records: Sequence[Record]) -> list[str]:
    """``kubectl get events -o json``, of what watches the kernel's log."""
    node = {"kind": "Node", "name": "n"}
    items = [{"kind": "Event", "involvedObject": node, "message": r.text} for r in records]
    return [json.dumps({"kind": "List", "apiVersion": "v1", "items": items}, indent=4)]


def as_console_output(records: Sequence[Record]) -> list[str]:
    """``aws ec2 get-console-output``: all of it is one string."""
    text = "".join(f"{r.stamp} {r.text}\r\n" for r in records)
    return [json.dumps({"InstanceId": "i-0", "Output": text, "Timestamp": "2024"}, indent=4)]


def as_strings(records: Sequence[Record]) -> list[str]:
    return [json.dumps([f"{r.stamp} {r.text}" for r in records], indent=1)]


def as_csv(records: Sequence[Record]) -> list[str]:
    made = io.StringIO()
    rows = [("2026-05-09 14:52:38", "node-7", line) for line in with_syslog(records)]
    csv.writer(made, lineterminator="\n").writerows([("_time", "host", "_raw"), *rows])
    return made.getvalue().splitlines()


def as_mail(records: Sequence[Record]) -> list[str]:
    """Quoted-printable, as a mail is sent and as archives keep it."""
    text = "\n".join(with_prefix("dmesg", records))
    head = "Subject: oom\nContent-Transfer-Encoding: quoted-printable\n\n"
    return (head + quopri.encodestring(text.encode()).decode()).splitlines()


STRUCTURED: dict[str, Callable[[Sequence[Record]], list[str]]] = {
    "journal, json": as_json,
    "journal, json-pretty": as_pretty,
    "journal, json-sse": lambda records: [f"data: {line}\n" for line in as_json(records)],
    "journal, json-seq": lambda records: [f"\x1e{line}" for line in as_json(records)],
    "docker's json": as_docker,
    "journal, export": as_export,
    "journal, verbose": as_verbose,
    "CloudWatch's json": as_cloudwatch,
    "Loki's json": as_loki,
    "Elasticsearch's json": as_elastic,
    "Loki's json, the newest first": as_loki_backward,
    "OTLP": as_otlp,
    "OTLP of a journal": as_otlp_of_a_journal,
    "Insights": as_insights,
    "Datadog's json": as_datadog,
    "a table of a log store": as_table,
    "events of Kubernetes": as_events,
    "a console's output in json": as_console_output,
    "a list of lines in json": as_strings,
    "comma-separated values": as_csv,
    "quoted-printable": as_mail,
    "HTML's breaks": lambda records: [f"{line}<br/>" for line in with_prefix("dmesg", records)],
    "the newest first": lambda records: with_syslog(records)[::-1],
}

Mangling = Callable[[list[str], random.Random], str]


def _coloured(lines: list[str], chance: random.Random) -> str:
    return "".join(f"\x1b[32m{line[:12]}\x1b[0m{line[12:]}\x1b[m\n" for line in lines)


def _quoted(lines: list[str], chance: random.Random) -> str:
    mark = chance.choice(("> ", ">", "> > ", ">> "))
    return "Hello,\nthis is what we see:\n\n" + "".join(f"{mark}{line}\n" for line in lines)


def _in_a_mail(lines: list[str], chance: random.Random) -> str:
    return "Hello,\n\nsee below\n\n" + "\n".join(lines) + "\n\nRegards,\nA. User\n"


def _foreign(lines: list[str], chance: random.Random) -> str:
    """Lines of programs between, dated as the others are."""
    mixed = []
    for line in lines:
        mixed.append(line)
        dated = re.match(r"(.*?\d\d:\d\d:\d\d\S* (?:CEST )?)", line)
        if dated and chance.random() < 0.2:
            mixed.append(f"{dated[1]}{HOST} systemd[1]: a.scope: killed by the OOM killer.")
            mixed.append(f'{dated[1]}{HOST} containerd[2723]: level=info msg="x invoked"')
    return "\n".join(mixed) + "\n"


def _wrapped(lines: list[str], chance: random.Random) -> str:
    width = chance.choice((72, 76, 80, 100))
    return "\n".join(
        part
        for line in lines
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False,
                                  drop_whitespace=True, replace_whitespace=False) or [""]
    ) + "\n"  # fmt: skip


def _terminal(lines: list[str], chance: random.Random) -> str:
    width = chance.choice((80, 100, 120))
    return "".join(
        f"{line[at : at + width]}\n" for line in lines for at in range(0, max(len(line), 1), width)
    )


PLAIN: dict[str, Mangling] = {
    "as it is": lambda lines, _: "\n".join(lines) + "\n",
    "no end": lambda lines, _: "\n".join(lines),
    "CRLF": lambda lines, _: "\r\n".join(lines) + "\r\n",
    "byte order mark": lambda lines, _: "\ufeff" + "\n".join(lines),
    "coloured": _coloured,
    "quoted": _quoted,
    "in a mail": _in_a_mail,
    "foreign lines": _foreign,
    "empty lines": lambda lines, _: "\n\n".join(lines) + "\n",
}
LOSSY: dict[str, Mangling] = {
    "blanks collapsed": lambda lines, _: "\n".join(re.sub(" +", " ", line) for line in lines),
    "wrapped": _wrapped,
    "a terminal's width": _terminal,
    "one line": lambda lines, _: " ".join(lines),
    "cut lines": lambda lines, chance: "\n".join(
        line[: chance.choice((80, 120, 200))] for line in lines
    ),
    "cut at the end": lambda lines, chance: "\n".join(lines)[: -chance.randrange(1, 900)],
    "begins later": lambda lines, chance: "\n".join(lines[chance.randrange(len(lines)) :]),
    "lines lost": lambda lines, chance: "\n".join(line for line in lines if chance.random() < 0.9),
    "blanks at ends": lambda lines, _: "\n".join(f"{line}  " for line in lines),
}
# Of these nothing shows that a line is missing here and there.
SILENT = {"lines lost"}
