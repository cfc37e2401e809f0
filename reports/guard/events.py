# SPDX-License-Identifier: LGPL-2.1-or-later
"""
An incident as an event for others: in the journal with fields, as an alert of Alertmanager's, as an
Event of Kubernetes, as a command with an environment.

Nothing here reaches the network: a command of the user's may.
"""

import contextlib
import datetime
import json
import os
import re
import socket
import struct
import subprocess
from pathlib import Path
from shlex import split
from typing import Any

from mmscope.drgn.cgroups.container_paths import pod_of
from mmscope.drgn.tables.hostile_text import cut
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.guard.captures import Incident

JOURNAL = "/run/systemd/journal/socket"
MESSAGE_ID = "4bd4b6dc0f624e0b9c8f0ab2d9b5f7a1"
PRIORITIES = {"critical": 2, "warning": 4, "notice": 5}
COMMAND_SECONDS = 120.0
# What an Event may have (pkg/apis/core/validation/events.go of Kubernetes 1.34).
MOST_NOTE, MOST_NAME = 1024, 128


def journal_fields(fields: dict[str, str]) -> bytes:
    """
    A datagram of the journal's native protocol: a field a line, or, of one with line feeds in it,
    its name, its length and its bytes.
    """
    data = b""
    for name, value in fields.items():
        raw = value.encode("utf-8", "backslashreplace")
        if b"\n" in raw:
            data += name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
        else:
            data += name.encode() + b"=" + raw + b"\n"
    return data


def tell_journal(incident: Incident, capture: Path, path: str = JOURNAL) -> bool:
    """Write an incident into the journal; False where there is none."""
    fields = {
        "MESSAGE": f"{incident['title']} ({incident['state']}: {capture})",
        "PRIORITY": str(PRIORITIES.get(incident["severity"], 5)),
        "MESSAGE_ID": MESSAGE_ID,
        "SYSLOG_IDENTIFIER": "mmscope-guard",
        "MMSCOPE_TRIGGER": incident["trigger"],
        "MMSCOPE_SEVERITY": incident["severity"],
        "MMSCOPE_STATE": incident["state"],
        "MMSCOPE_CAPTURE": str(capture),
    }
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(journal_fields(fields), path)
        return True
    return False


def alert(incident: Incident, capture: Path) -> list[dict[str, Any]]:
    """The body of a POST to Alertmanager's /api/v2/alerts: a list of alerts."""
    annotations = {"summary": incident["title"], "capture": str(capture)}
    if (capture / "report.html").exists():
        annotations["report"] = str(capture / "report.html")
    return [
        {
            "labels": {
                "alertname": "mmscope",
                "trigger": incident["trigger"],
                "severity": incident["severity"],
                "instance": os.uname().nodename,
            },
            "annotations": annotations,
            "startsAt": incident["at"],
        }
    ]


def kubernetes_event(incident: Incident, capture: Path) -> dict[str, Any]:
    """
    An Event of Kubernetes (events.k8s.io/v1): ``kubectl create -f event.json``.

    It regards the pod whose cgroup, or whose container's, the incident names, where the node's
    files have its name, else the node. As kubelet does, a node's name stands for its UID.
    """
    node = os.environ.get("NODE_NAME") or str(incident.get("host") or os.uname().nodename).lower()
    at = datetime.datetime.fromisoformat(incident["at"]).astimezone(datetime.UTC)
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    if pod := _pod(incident["title"], capture):
        regarding = {"apiVersion": "v1", "kind": "Pod", "name": pod["pod"]} | {
            "namespace": pod["namespace"],
            "uid": pod["pod_uid"],
        }
        if pod["container"]:
            regarding["fieldPath"] = f"spec.containers{{{pod['container']}}}"
    note = f"{incident['title']} (captured on {node}: {capture})"
    name = re.sub("[^a-z0-9]+", "-", f"mmscope-{capture.name}-{node}".lower())
    words = re.findall("[A-Za-z0-9]+", incident["trigger"])
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": name[:250].strip("-"),
            "namespace": regarding.get("namespace", "default"),
        },
        "eventTime": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}",
        "reportingController": "mmscope.guard",
        "reportingInstance": cut(node, MOST_NAME),
        "action": "Captured",
        "reason": "".join(word.capitalize() for word in words)[:MOST_NAME] or "Captured",
        "regarding": regarding,
        "type": "Normal" if incident["severity"] == "notice" else "Warning",
        "note": note.encode("utf-8", "backslashreplace")[:MOST_NOTE].decode(errors="ignore"),
    }


def _pod(title: str, capture: Path) -> dict[str, Any] | None:
    """
    The only container or pod whose cgroup a title has: of one in another the innermost whose names
    are known. A container that is gone is its pod's, which is known by those that are left.
    """
    places: dict[str, dict[str, Any] | None] = {}
    with contextlib.suppress(OSError, UsageError, LookupError, ValueError):
        for row in Bundle(capture / "bundle").rows("containers"):
            cgroup = str(row["cgroup"])
            known = all(row[name] for name in ("namespace", "pod", "pod_uid"))
            places[cgroup] = row if known and row["container"] else None
            if known and (pod := pod_of(cgroup)[0]):
                places.setdefault(pod, {**row, "container": None})
        found = sorted(place for place in places if place in title)
        if all(found[-1].startswith(place) for place in found):
            return next((places[place] for place in reversed(found) if places[place]), None)
    return None


def run_command(command: str, incident: Incident, capture: Path) -> str | None:
    """
    Run a command of the user's, without a shell; what it is to know is in its environment, and the
    alert comes on its standard input.

    :return: what went wrong.
    """
    environment = os.environ | {
        "MMSCOPE_TRIGGER": incident["trigger"],
        "MMSCOPE_SEVERITY": incident["severity"],
        "MMSCOPE_TITLE": incident["title"].replace("\0", ""),
        "MMSCOPE_STATE": incident["state"],
        "MMSCOPE_CAPTURE": str(capture),
        "MMSCOPE_ALERT": str(capture / "alert.json"),
    }
    try:
        done = subprocess.run(
            split(command),
            env=environment,
            input=json.dumps(alert(incident, capture)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"--exec: took more than {COMMAND_SECONDS:.0f} s, and was ended"
    except (OSError, ValueError) as error:
        return f"--exec: {error}"
    words = done.stderr.decode("utf-8", "backslashreplace").strip()[:300]
    return f"--exec: ended with {done.returncode}: {words}" if done.returncode else None
