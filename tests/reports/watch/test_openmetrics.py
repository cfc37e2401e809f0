# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope watch --openmetrics``: what is written is what the reference parsers of both formats read,
and what Debian's node_exporters make of it.

A node_exporter is unpacked from its package into the cache (4 MB), not installed: the package adds
a user and starts a daemon that listens to everybody.
"""

import os
import re
import signal
import stat
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from archive import apt_options, cache_folder, run
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from watched_host import in_log, start, wait_for, watch

from mmscope.reports.watch.openmetrics import expose, text
from mmscope.reports.watch.samples import Sampler, thp_order

PACKAGE = "prometheus-node-exporter"
# 1.5 and 1.9, with different releases of the parser.
SUITES = ("bookworm", "trixie")
HOSTILE = (
    'a"b\\c\nd</script>\x1b[31m', "\\", '"', "\n", "\\n", "\\u0041", 'x"} 1\nmmscope_fake{a="',
    "a\r\0b", "# EOF", "\ud800", "caf\udce9", "\U0001f600\u202e\u2028", " ", "",
)  # fmt: skip


@pytest.fixture
def shown(host: Path) -> dict[str, Any]:
    return Sampler(str(host), 9).take() | {"number": 3, "cpu_total": 0.25}


def here() -> dict[str, Any]:
    """A sample of this machine."""
    sample = Sampler("/", thp_order("/", os.sysconf("SC_PAGE_SIZE"))).take()
    return sample | {"number": 1, "cpu_total": 0.125}


def readable(name: str) -> str:
    """What is left of a name that UTF-8 cannot hold."""
    return name.encode("utf-8", "backslashreplace").decode()


# The text


def test_both_formats_hold_the_same_numbers(shown: dict[str, Any]) -> None:
    new, old = (
        {
            (s.name, *sorted(s.labels.items())): s.value
            for family in families
            for s in family.samples
        }
        for families in (
            openmetrics(text(shown, 4096, prometheus=False)),
            prometheus(text(shown, 4096, prometheus=True)),
        )
    )
    assert new == old
    assert new["mmscope_vm_events_total", ("name", "pgfault")] == 324398
    assert new["mmscope_pressure_stall_seconds_total", ("kind", "some")] == 2
    assert new["mmscope_memory_bytes", ("name", "PageTables")] == 3052 << 10
    assert new["mmscope_ksm_profit_bytes",] == -4096
    reserve = ("mmscope_zone_highatomic_reserved_bytes", ("node", "0"), ("zone", "DMA32"))
    assert new[reserve] == 512 << 12
    assert new["mmscope_watch_cpu_seconds_total",] == 0.25


def test_every_metric_has_a_type_and_says_what_it_is(shown: dict[str, Any]) -> None:
    new = list(openmetrics(text(shown, 4096, prometheus=False)))
    old = list(prometheus(text(shown, 4096, prometheus=True)))
    assert {family.type for family in new} == {"counter", "gauge"}
    assert all(family.name.startswith("mmscope_") and family.documentation for family in new)
    assert [(f.name, f.type, f.documentation) for f in new] == [
        (f.name, f.type, f.documentation) for f in old
    ]
    assert {f.unit for f in new} == {"", "bytes", "seconds"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_label(shown: dict[str, Any], name: str) -> None:
    shown["thp_free"] = [[0, name, name or None, 5, False]]
    for said in (
        openmetrics(text(shown, 4096, prometheus=False)),
        prometheus(text(shown, 4096, prometheus=True)),
    ):
        (family,) = [f for f in said if f.name == "mmscope_thp_free_blocks"]
        (point,) = family.samples
        seen = readable(name)
        assert point.labels == {"node": "0", "zone": seen, "migratetype": seen or "unknown"}


def test_what_was_not_read_is_left_out(shown: dict[str, Any]) -> None:
    bare = {name: shown[name] for name in ("wall", "number", "cpu_total", "unread")}
    names = {family.name for family in openmetrics(text(bare, 4096, prometheus=False))}
    assert {name.startswith("mmscope_watch_") for name in names} == {True}


@pytest.mark.parametrize(("name", "parse"), [("m.prom", prometheus), ("m.txt", openmetrics)])
def test_the_file_is_whole_and_for_anybody(tmp_path: Path, name: str, parse: Any) -> None:
    path = tmp_path / name
    path.write_text("before")
    umask = os.umask(0o077)
    try:
        expose(path, here(), 4096)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert {family.type for family in parse(path.read_text())} == {"counter", "gauge"}
    assert path.read_text().endswith("# EOF\n") == (name == "m.txt")
    assert os.listdir(tmp_path) == [name]


# The command


def test_watch_writes_openmetrics_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    process = start(tmp_path, "--openmetrics", path)
    wait_for(lambda: in_log(tmp_path) >= 3 and path.exists())
    families = {family.name for family in openmetrics(path.read_text())}
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert {"mmscope_vm_events", "mmscope_thp_free_blocks", "mmscope_watch_samples"} <= families
    assert os.listdir(tmp_path) == ["b"], "numbers of a watch that is over are not left"


def test_the_page_size_of_another_host_is_that_of_every_sample(
    tmp_path: Path,
    host: Path,
) -> None:
    path, sizes = tmp_path / "m.prom", []
    for size in (4096, 65536):
        process = start(
            tmp_path, "--proc-root", host, "--page-size", size, "--openmetrics", path, "--force"
        )
        wait_for(lambda: in_log(tmp_path) >= 2 and path.exists())
        free = [f for f in prometheus(path.read_text()) if f.name == "mmscope_zone_free_bytes"]
        sizes.append(sum(s.value for s in free[0].samples))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    assert sizes[1] == 16 * sizes[0] > 0


def test_watch_says_that_openmetrics_cannot_be_written(tmp_path: Path) -> None:
    result = watch(tmp_path, "--openmetrics", tmp_path / "no" / "m.prom")
    assert result.returncode == 3 and "No such file or directory" in result.stderr
    assert sorted(os.listdir(tmp_path)) == []


def test_watch_replaces_nothing_but_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = watch(tmp_path, "--openmetrics", tmp_path / "pipe")
    assert result.returncode == 2 and "is not a file" in result.stderr
    assert (tmp_path / "pipe").is_fifo()


# node_exporter


def unpacked(suite: str) -> Path:
    """
    Debian's node_exporter, from the cache if it is there.

    :raises LabError: it cannot be fetched, and why.
    """
    folder = cache_folder() / "node_exporter" / suite
    if not folder.exists():
        apt = apt_options(suite)
        run("apt-get", *apt, "update", "--quiet=2", "--error-on=any")
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            run("apt-get", *apt, "download", "--quiet=2", PACKAGE, cwd=Path(name))
            (package,) = Path(name).glob("*.deb")
            run("dpkg-deb", "-x", str(package), f"{name}/whole")
            Path(name, "whole").rename(folder)
    return folder / "usr/bin" / PACKAGE


class Exporter:
    """A node_exporter that has nothing but its textfile collector."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.folder, self.log = folder, folder.parent / "node_exporter.log"
        with self.log.open("w") as log:
            self.process = children.start(
                [
                    *(binary, "--web.listen-address=127.0.0.1:0", "--web.disable-exporter-metrics"),
                    *("--collector.disable-defaults", "--collector.textfile"),
                    f"--collector.textfile.directory={folder}",
                ],
                stderr=log,
            )
        self.url = f"http://{wait_for(self.address)[1]}/metrics"

    def address(self) -> re.Match[str] | None:
        """Where it listens, once it says so."""
        said = self.log.read_text()
        assert self.process.poll() is None, said
        return re.search(r"address=(127\.0\.0\.1:\d+)", said)

    def scrape(self, *only: str) -> dict[str, Any]:
        """All that it exposes, by name, or some of it: to parse it takes longer than to get it."""
        with urllib.request.urlopen(self.url, timeout=600) as answer:
            lines = answer.read().decode().splitlines(keepends=True)
        said = "".join(line for line in lines if not only or any(name in line for name in only))
        return {family.name: family for family in prometheus(said)}

    def complaints(self) -> list[str]:
        """What it says of files that it does not like."""
        return [line for line in self.log.read_text().splitlines() if "err=" in line]


@pytest.fixture(params=SUITES)
def exporter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Exporter]:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    running = Exporter(unpacked(request.param), folder)
    yield running
    running.process.terminate()
    running.process.wait(60)


def points(family: Any) -> dict[tuple[Any, ...], float]:
    return {(s.name, *sorted(s.labels.items())): s.value for s in family.samples}


def values(said: dict[str, Any], name: str) -> list[float]:
    return [sample.value for sample in said[name].samples]


def test_node_exporter_has_all_that_a_watch_of_this_machine_wrote(
    exporter: Exporter, tmp_path: Path
) -> None:
    path = exporter.folder / "mmscope.prom"
    process = start(tmp_path, "--interval", "1000", "--openmetrics", path)
    # One sample, after which it waits.
    wait_for(lambda: path.exists() and "mmscope_watch_samples_total 1\n" in path.read_text())
    said = exporter.scrape()
    wrote = {family.name: family for family in prometheus(path.read_text())}
    modified = path.stat().st_mtime
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert values(said, "node_textfile_scrape_error") == [0] and exporter.complaints() == []
    (mtime,) = said["node_textfile_mtime_seconds"].samples
    assert mtime.labels["file"] == str(path) and mtime.value == pytest.approx(modified, abs=1)
    # Names, types and help; then names of samples, labels and values, all of them.
    assert {n: (f.type, f.documentation) for n, f in said.items() if n.startswith("mmscope_")} == {
        n: (f.type, f.documentation) for n, f in wrote.items()
    }
    assert {n: points(f) for n, f in said.items() if n in wrote} == {
        n: points(f) for n, f in wrote.items()
    }
    assert (
        said["mmscope_vm_events"].type == "counter" and len(said["mmscope_vm_events"].samples) > 40
    )
    # And nothing of it once the watch is over.
    assert not [name for name in exporter.scrape() if name.startswith("mmscope_")]


def test_node_exporter_never_sees_half_a_file(exporter: Exporter, tmp_path: Path) -> None:
    path = exporter.folder / "mmscope.prom"
    process = start(tmp_path, "--interval", "0.001", "--openmetrics", path)
    wait_for(lambda: in_log(tmp_path) >= 2)
    seen = []
    for _ in range(200):
        said = exporter.scrape("node_textfile_scrape_error", "mmscope_watch_samples")
        assert values(said, "node_textfile_scrape_error") == [0], exporter.complaints()
        seen += values(said, "mmscope_watch_samples")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert len(seen) == 200 and seen == sorted(seen) and len(set(seen)) > 20


def test_node_exporter_gets_hostile_names_as_they_are(exporter: Exporter) -> None:
    zones = [[0, name, None, number, False] for number, name in enumerate(HOSTILE)]
    # A host's file that has a line twice.
    sample = here() | {"thp_free": [*zones, *zones]}
    expose(exporter.folder / "m.prom", sample, 4096)
    said = exporter.scrape()
    assert values(said, "node_textfile_scrape_error") == [0] and exporter.complaints() == []
    assert {s.labels["zone"]: s.value for s in said["mmscope_thp_free_blocks"].samples} == {
        readable(name): number for number, name in enumerate(HOSTILE)
    }
    assert "mmscope_fake" not in said
