# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guard itself: what it leaves, what it keeps of that, who is told, and what being killed costs."""

import base64
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import children
import html5lib
import pytest
import report_bundle
from command_line import ROOT, RUN, run
from guard_made import sample
from rows_of_tables import tables_of_rows
from watched_host import make_host, wait_for

from mmscope.drgn.cgroups.container_paths import Container
from mmscope.drgn.waits.wait_tables import TaskWait
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.commands.command import build_parser
from mmscope.reports.guard import capture, captures, events, index_page
from mmscope.reports.guard.capture import LOCK, Settings, process
from mmscope.reports.guard.guard import Guard
from mmscope.reports.guard.trigger import load
from mmscope.reports.watch import openmetrics
from mmscope.reports.watch.samples import host_target

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&amp;{{x}}"
SOME = "zones,vm_counters"


def incident(name: str = "2026-11-23T02-46-58Z-oom-kill", **more: Any) -> captures.Incident:
    return {
        "format": 1, "name": name, "trigger": "oom-kill", "title": "A process was killed",
        "severity": "critical", "at": "2026-11-23T02:46:58+00:00", "host": "host",
        "state": captures.RUNNING, **more,
    }  # fmt: skip


def begun(folder: Path, **more: Any) -> tuple[Path, int]:
    """What the resident leaves to the process that makes the capture."""
    folder.mkdir(exist_ok=True)
    made = incident(**more)
    place, lock = captures.new_place(folder, made["name"])
    header = {"watch": 1, "interval": 5, "target": host_target("/", 4096), "page_owner": None}
    lines = [header, *(sample(number) for number in range(5))]
    (place / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / captures.INCIDENT).write_text(json.dumps(made))
    return place, lock


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(str(folder), collect=["--only", SOME], text=True, **more)


# A capture is the last in line for a CPU: here a profile may take as long as a busy machine needs.
PATIENT = """
import sys
from mmscope.reports.guard import capture
capture.PROFILE_SECONDS = 600.0
sys.exit(capture.main())
"""
LOOKED_AT: set[frozenset[tuple[str, bytes]]] = set()


def whole(capture: Path) -> captures.Incident:
    """What a capture says, after a look at all of it."""
    said = captures.read_incident(capture)
    # Of copies that were made step by step most are as the one before, byte by byte.
    files = frozenset(
        (str(path.relative_to(capture)), path.read_bytes())
        for path in capture.rglob("*")
        if path.is_file()
    )
    if files in LOOKED_AT:
        return said
    if (capture / "bundle").exists():
        bundle = Bundle(capture / "bundle")
        for table in bundle.tables:
            list(bundle.rows(table))
    if (capture / "report.html").exists():
        assert (capture / "report.html").read_text().endswith("</html>\n")
    LOOKED_AT.add(files)
    return said


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a capture of this host in it, of what lasts."""
    folder = tmp_path_factory.mktemp("made") / "captures"
    place, lock = begun(folder, record="page-fault")
    script = folder.parent / "told"
    script.write_text(
        "#!/bin/sh\necho $MMSCOPE_STATE $MMSCOPE_TRIGGER $MMSCOPE_TITLE"
        f" >> {script}.said\ncat >> {script}.alerts\n"
    )
    script.chmod(0o755)
    words = process(place, settings(folder, command=f"{script} now"))[-2:]
    with (folder.parent / "log").open("wb") as log:
        done = children.run(
            [sys.executable, "-c", PATIENT, *words], stdout=log, stderr=log, pass_fds=(lock,)
        )
    os.close(lock)
    assert done.returncode == 0, (folder.parent / "log").read_text()
    yield folder
    shutil.rmtree(folder.parent)


def test_a_capture_has_what_was_before_and_what_is(made: Path) -> None:
    ((path, said),) = captures.captures(made)
    assert whole(path) == said and said["state"] == captures.DONE and said["source"] == "files"
    assert said["cpu_seconds"] > 0 and said["peak_bytes"] > 1 << 20
    tables = Bundle(path / "bundle").tables
    assert {"zones", "vm_counters", "counter_rates", "psi_series", "watch_samples"} <= tables.keys()
    names = {entry.name for entry in path.iterdir()}
    assert {"findings.txt", "report.html", "alert.json", "event.json", "incident.json"} <= names
    assert "samples.jsonl" in names
    assert not list(path.glob(".*")) and not list(made.glob(".2*"))


def test_of_what_lasts_there_is_a_profile(made: Path) -> None:
    ((path, _),) = captures.captures(made)
    bundle = Bundle(path / "bundle")
    assert {"profiles", "zones", "counter_rates"} <= bundle.tables.keys()
    (profile,) = {row["recipe"] for row in bundle.rows("profiles")}
    assert profile == "page-fault" and {"profiles", "watch"} <= {s.section for s in bundle.sections}


def test_others_are_told_when_it_begins_and_when_it_is_done(made: Path) -> None:
    said = (made.parent / "told.said").read_text()
    assert said.splitlines() == [
        f"{state} oom-kill A process was killed" for state in ("running", "done")
    ]
    first = (made.parent / "told.alerts").read_text().partition("][")[0].strip("[]")
    assert json.loads(first)["labels"]["trigger"] == "oom-kill"


def test_an_alert_is_what_alertmanager_takes(made: Path) -> None:
    ((path, _),) = captures.captures(made)
    (alert,) = json.loads((path / "alert.json").read_text())
    assert alert.keys() == {"labels", "annotations", "startsAt"}
    assert alert["labels"].keys() == {"alertname", "trigger", "severity", "instance"}
    for words in (*alert["labels"].values(), *alert["annotations"].values()):
        assert isinstance(words, str) and words
    assert Path(alert["annotations"]["report"]).is_file()


def event_of(path: Path, **more: Any) -> dict[str, Any]:
    return events.kubernetes_event(incident(path.name, **more), path)


def test_an_event_is_what_kubernetes_takes(made: Path) -> None:
    """As ValidateEventCreate() has it, pkg/apis/core/validation/events.go of 1.34."""
    ((path, _),) = captures.captures(made)
    for event in (
        json.loads((path / "event.json").read_text()),
        event_of(path, title="\U0001f600" * 900, trigger="x" * 200, host="Ho_st"),
        event_of(path, trigger="..."),
    ):
        assert (event["apiVersion"], event["kind"]) == ("events.k8s.io/v1", "Event")
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", event["metadata"]["name"])
        assert re.fullmatch(r"2026-11-23T02:46:58\.000000Z", event["eventTime"])
        assert len(event["note"].encode()) <= 1024 and event["type"] == "Warning"
        assert all(
            0 < len(event[name]) <= 128 for name in ("reason", "action", "reportingInstance")
        )
        assert event["metadata"]["namespace"] == "default" and event["regarding"]["kind"] == "Node"
    assert event_of(path)["reason"] == "OomKill"
    assert event_of(path, severity="notice")["type"] == "Normal"


def test_an_event_regards_the_pod_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")
    path = tmp_path / "2026-11-23T02-46-58Z-cgroup-out-of-memory"
    uid, other = "0" * 7 + "1-1111-2222-3333-444444444444", "/kubepods/burstable/other"
    cgroup = f"/kubepods/burstable/pod{uid}/{'ab' * 32}"
    row = Container(cgroup, None, uid, "ab" * 32, "shop", "cart-0", "java")
    with Writer(path / "bundle") as writer:
        inner = replace(row, cgroup=f"{cgroup}/docker/{'cd' * 32}", container=None, within=cgroup)
        rows = [row, replace(row, cgroup=other, pod=None), inner]
        writer.table("containers", "Containers", Container, rows, section="containers")
        writer.finish({"kind": "files"}, [])
    event = event_of(path, title=f"Memory cgroup {cgroup} was out of memory")
    assert event["metadata"]["namespace"] == event["regarding"]["namespace"] == "shop"
    assert event["regarding"]["name"] == "cart-0" and event["regarding"]["uid"] == uid
    assert event["regarding"]["fieldPath"] == "spec.containers{java}"
    assert event["reportingInstance"] == "node-7"
    # Of a container in it that has no name here it is the outer one's.
    within = event_of(path, title=f"Memory cgroup {inner.cgroup} was out of memory")
    assert within["regarding"] == event["regarding"]
    # At the limit of the pod, or of a container that is gone, it is the pod's.
    for gone in ("", f"/{'ef' * 32}"):
        title = f"Memory cgroup /kubepods/burstable/pod{uid}{gone} was out of memory"
        of_pod = event_of(path, title=title)["regarding"]
        assert of_pod == {n: v for n, v in event["regarding"].items() if n != "fieldPath"}
    # Without names, of two, or of none it is the node's.
    for title in (f"{other} was", f"{cgroup} and {other}", "The OOM killer took 1 process"):
        assert event_of(path, title=title)["regarding"]["name"] == "node-7"


# Killed.


def test_killed_before_any_step_no_finished_capture_is_lost(made: Path, tmp_path: Path) -> None:
    """A copy is made before each step that changes a file: what kill -9 would leave."""
    template = tmp_path / "template"
    shutil.copytree(made, template)
    place, lock = begun(template, name="2026-11-23T03-00-00Z-huge-blocks-gone")
    os.close(lock)
    done = children.run(
        [
            *(sys.executable, ROOT / "tests/support/guard_killed.py", tmp_path / "runs", template),
            *(place.name, SOME),
        ],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = [tmp_path / "runs" / line for line in done.stdout.split()]
    assert len(steps) > 20
    states = set()
    for step in steps:
        captures.tidy(step)
        there = dict(captures.captures(step))
        old = step / "2026-11-23T02-46-58Z-oom-kill"
        assert whole(old)["state"] == captures.DONE and (old / "report.html").exists()
        for path in there:
            states.add((len(there), whole(path)["state"]))
        assert not [p for p in step.iterdir() if p.name.startswith(".2")], "half a capture is left"
        index = (step / "index.html").read_text()
        assert old.name in index and index.endswith("</html>\n")
    assert states == {(1, "done"), (2, "done"), (2, "cut short")}


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [*RUN, "guard", "run", "-o", folder, "--text", "--interval", "0.3",
               "--collect", f"--only {SOME}", "--distance", "0", *words]  # fmt: skip
    return children.start(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)


def state_of(folder: Path) -> list[str]:
    return [said["state"] for _, said in captures.captures(folder)] if folder.exists() else []


def test_guard_is_killed_at_any_moment_and_started_again(made: Path, tmp_path: Path) -> None:
    folder, dice = tmp_path / "captures", random.Random(20)
    shutil.copytree(made, folder)
    for _ in range(2):
        guard = start(folder)
        assert guard.stderr is not None
        wait_for(lambda: (folder / ".guard.pid").exists())
        while "triggers, every" not in guard.stderr.readline():
            pass
        assert run("guard", "trigger", "-o", folder).returncode == 0
        wait_for(lambda: len(list(folder.glob("*by-hand*"))))
        time.sleep(dice.random() * 2)
        guard.send_signal(signal.SIGKILL)
        # Its group is what a service's end takes along.
        children.end_all()
        wait_for(lambda: captures.tidy(folder) == 0)
    for path, said in captures.captures(folder):
        assert whole(path) == said and said["state"] in (captures.DONE, captures.CUT)
    assert whole(folder / "2026-11-23T02-46-58Z-oom-kill")["state"] == captures.DONE


# The resident.


def test_by_hand_captures_are_made_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """While one is busy, what is at hand of the others is told: it waits for no other capture."""
    folder, prom = tmp_path / "captures", tmp_path / "guard.prom"
    guard = start(folder, "--openmetrics", prom)
    wait_for(prom.exists)
    second = run("guard", "run", "-o", folder)
    assert second.returncode == 2 and "another guard is at work there" in second.stderr
    busy = captures.locked(folder / LOCK, wait=True)
    try:
        for number in (1, 2):
            assert run("guard", "trigger", "-o", folder).returncode == 0
            wait_for(lambda number=number: state_of(folder) == [captures.RUNNING] * number)
        for path, said in captures.captures(folder):
            assert said["source"] == "samples" and "psi_series" in Bundle(path / "bundle").tables
    finally:
        os.close(busy)
    wait_for(lambda: state_of(folder) == [captures.DONE] * 2)
    wait_for(lambda: 'captures_total{trigger="by-hand"} 2' in prom.read_text())
    guard.send_signal(signal.SIGINT)
    _, said = guard.communicate()
    assert guard.returncode == 0 and "by-hand: Asked for by hand" in said
    assert not prom.exists() and "by-hand" in (folder / "index.html").read_text()
    late = run("guard", "trigger", "-o", folder)
    assert late.returncode == 2 and "no guard is at work there" in late.stderr


def test_a_trigger_fires_over_a_tree_of_files(tmp_path: Path) -> None:
    make_host(tmp_path / "root")
    folder, vmstat, prom = tmp_path / "captures", tmp_path / "root/proc/vmstat", tmp_path / "prom"
    guard = start(folder, "--proc-root", tmp_path / "root", "--openmetrics", prom)
    wait_for(prom.exists)  # which it writes with its first sample
    rise(vmstat, "oom_kill", 2)
    wait_for(lambda: state_of(folder) == [captures.DONE])
    ((path, told),) = captures.captures(folder)
    assert told["trigger"] == "oom-kill" and path.name.endswith("-oom-kill")
    assert told["title"] == "The OOM killer took 2 processes"
    found = (path / "findings.txt").read_text()
    assert "The OOM killer took 2 processes" in found
    guard.send_signal(signal.SIGTERM)
    assert guard.wait() == 0


def resident(folder: Path) -> Guard:
    """One that is at work over a made host, and has its first sample."""
    make_host(folder / "root")
    words = ["guard", "run", "-o", folder, "--text", "--proc-root", folder / "root"]
    guard = Guard(build_parser(["guard"]).parse_args(list(map(str, words))), load(()))
    guard.step(0.0)
    return guard


def test_what_has_to_wait_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guard = resident(tmp_path)
    guard.not_before[""] = time.monotonic() + 300
    rise(tmp_path / "root/proc/vmstat", "oom_kill", 2)
    guard.step(0.0)
    guard.end()
    words = r"oom-kill: The OOM killer took 2 processes: waits \d+ s, for --distance"
    assert re.search(words, capsys.readouterr().err) and not state_of(tmp_path)


def rise(vmstat: Path, name: str, by: int) -> None:
    """One of /proc/vmstat's numbers grows between two samples."""
    said = vmstat.read_text()
    old = next(line for line in said.splitlines() if line.startswith(f"{name} "))
    new = vmstat.parent.parent / "vmstat.new"
    new.write_text(said.replace(old, f"{name} {int(old.split()[1]) + by}"))
    new.rename(vmstat)


def test_the_resident_is_light(tmp_path: Path) -> None:
    code = (
        "import sys; from mmscope.reports.guard import guard; "
        "print(sorted({'numpy', 'drgn', '_drgn', 'rich', 'duckdb', 'jinja2'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# What is kept, and what is shown.


def test_the_oldest_of_what_there_is_most_of_goes(tmp_path: Path) -> None:
    names = ["01-oom-kill", "02-leak", "03-oom-kill", "04-oom-kill", "05-oom-kill"]
    for name in names:
        path = tmp_path / f"2026-11-23T02-46-{name[:2]}Z-{name[3:]}"
        path.mkdir()
        captures.write_incident(path, incident(path.name, trigger=name[3:], state="done"))
        (path / "ballast").write_bytes(bytes(1 << 20))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_bytes(bytes(3 << 20))

    def left() -> list[str]:
        return [path.name[17:19] for path, _ in captures.captures(tmp_path)]

    captures.thin(tmp_path, 6 << 20)
    assert len(left()) == len(names)
    captures.thin(tmp_path, 4 << 20)
    assert left() == ["05", "04", "02"]
    captures.thin(tmp_path, 3 << 20)
    assert left() == ["05", "02"]
    captures.thin(tmp_path, 0)
    assert left() == ["05"]
    assert (tmp_path / "mine" / "file").exists()


def test_the_index_escapes_whatever_a_capture_says(tmp_path: Path) -> None:
    path = tmp_path / "2026-11-23T02-46-58Z-oom-kill"
    path.mkdir()
    captures.write_incident(path, incident(title=HOSTILE, at=HOSTILE, severity=HOSTILE,
                                           state=HOSTILE, source=[HOSTILE]))  # fmt: skip
    broken = tmp_path / "2026-11-23T02-46-59Z-x"
    broken.mkdir()
    (broken / captures.INCIDENT).write_text("[" * 100_000)
    index_page.renew(tmp_path, HOSTILE)
    page = (tmp_path / "index.html").read_text()
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    assert not tree.findall(".//script")
    assert HOSTILE not in page and "\x1b" not in page and "\u202e" not in page
    assert "cannot be read" in page and "2 captures" in page
    assert [a.get("href") for a in tree.findall(".//a")] == [
        f"{broken.name}/incident.json", f"{path.name}/incident.json"
    ]  # fmt: skip


def test_the_policy_of_the_index_names_its_style() -> None:
    digest = base64.b64encode(hashlib.sha256(index_page.STYLE.encode()).digest()).decode()
    page = index_page.page("host", [])
    assert f"style-src 'sha256-{digest}'" in page and f"<style>{index_page.STYLE}</style>" in page


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    index_page.renew(tmp_path, "host")
    assert "Nothing has happened yet." in (tmp_path / "index.html").read_text()


def test_the_journal_gets_fields(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        title = "two\nlines"
        assert events.tell_journal(incident(title=title), tmp_path, str(tmp_path / "socket"))
        data = journal.recv(1 << 16)
    fields = {}
    while data:
        name, _, data = data.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
        else:
            key = name
            (length,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + length], data[9 + length :]
        fields[key.decode()] = value.decode()
    assert fields["MESSAGE"] == f"two\nlines (running: {tmp_path})"
    assert fields["PRIORITY"] == "2" and fields["MMSCOPE_TRIGGER"] == "oom-kill"
    assert not events.tell_journal(incident(), tmp_path, str(tmp_path / "none"))


def test_a_command_that_fails_is_said(tmp_path: Path) -> None:
    assert events.run_command("true", incident(), tmp_path) is None
    assert events.run_command("false", incident(), tmp_path) == "--exec: ended with 1: "
    assert "No such file" in str(events.run_command("/no/such", incident(), tmp_path))
    assert "No closing quotation" in str(events.run_command("'", incident(), tmp_path))


def test_a_command_that_a_signal_ended_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As DuckDB does on a CPU without AVX2: nothing else would say why there is no report."""
    dies = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(capture, "mmscope", lambda *words: [sys.executable, "-I", "-c", dies])
    assert capture.run(["report"], time.monotonic() + 600) == b""
    assert capsys.readouterr().err == "mmscope: report: was ended by a signal: Killed\n"


def test_who_waited_first_is_kept_when_all_else_is_collected(tmp_path: Path) -> None:
    first, later = (
        report_bundle.write_bundle(
            tmp_path / name,
            report_bundle.tables_of("zones")
            | tables_of_rows([TaskWait(pid, "task", None, "D", *[None] * 10)]),
        )
        for name, pid in (("first", 7), ("later", 8))
    )
    capture.merge(tmp_path, later.path, first.path)
    merged = Bundle(tmp_path / "bundle")
    assert [row["pid"] for row in merged.rows("task_waits")] == [7]
    names = [section.section for section in merged.sections]
    assert len(names) == len(set(names)) and "zones" in merged.tables


def test_who_waits_is_read_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And lands in the capture, which has its name by then."""
    waits = tables_of_rows([TaskWait(7, "task", None, "D", *[None] * 10)])
    read = report_bundle.write_bundle(tmp_path / "read", waits).path
    # It ends when the capture has got its name.
    reads = f"""
import os, shutil, time
while os.path.basename(os.getcwd()).startswith("."):
    time.sleep(0.01)
shutil.copytree({str(read)!r}, {capture.WAITS!r})
"""
    steps: list[str] = []

    def command(*words: str) -> list[str]:
        steps.append(" ".join(words[:3]))
        return [sys.executable, "-I", "-c", reads if len(steps) == 1 else ""]

    def noted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def step(*words: Any, **more: Any) -> Any:
            steps.append(name)
            return real(*words, **more)

        monkeypatch.setattr(module, name, step)

    monkeypatch.setattr(capture, "mmscope", command)
    for module, name in ((capture, "merge"), (captures, "publish"), (captures, "locked")):
        noted(module, name)
    place, lock = begun(tmp_path / "captures")
    os.close(lock)
    made = capture.make(place, Settings(str(place.parent)))
    assert steps[:5] == ["collect --only task_waits", "merge", "publish", "locked", "merge"]
    assert [row["pid"] for row in Bundle(made / "bundle").rows("task_waits")] == [7]
    assert captures.read_incident(made)["state"] == captures.DONE and not [*made.glob(".*")]


def test_its_own_metrics_are_by_trigger(tmp_path: Path) -> None:
    guard = resident(tmp_path)
    guard.captured["oom-kill"] += 1
    found = guard.metrics()
    assert found["guard_captures"] == [({"trigger": "oom-kill"}, 1)]
    assert found["guard_failed_triggers"] == [({}, 0)]
    assert found.keys() <= openmetrics.DECLARED.keys()
    guard.end()


def test_the_index_says_the_last_first_and_draws_all_over_time(tmp_path: Path) -> None:
    for second, title in ((10, "first"), (20, "second"), (50, "<b>third</b>")):
        path = tmp_path / f"2026-11-23T02-46-{second}Z-x"
        path.mkdir()
        at = f"2026-11-23T02:46:{second}+00:00"
        captures.write_incident(path, incident(title=title, at=at, severity="warning"))
    index_page.renew(tmp_path, "host")
    page = (tmp_path / "index.html").read_text()
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    assert "Last: &lt;b&gt;third&lt;/b&gt;" in page
    dots = [dot.get("cx") for dot in tree.findall(".//{*}circle")]
    assert dots == ["99.00%", "25.50%", "1.00%"]
