# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Containers by the paths of their cgroups: kubelet's (both cgroup drivers), containerd's, CRI-O's,
Docker's, Podman's, LXC's.

A path has the runtime, the id of the container and the UID of its pod (pkg/kubelet/cm:
``pod_container_manager_linux.go``, ``cgroup_manager_linux.go`` of Kubernetes 1.20 to 1.34). Of
containers in a container (Docker in a pod, pods in Docker, anything in LXC) it is the innermost,
with the one that it is in. Names are not in the kernel: they are read from where the node agent and
the runtimes keep them, of a running host or a tree.

Cannot know: names of a dump's containers; those of a runtime that is none of these.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmscope.drgn.cgroups.cgroup_files import ROOTS, cgroup_folders
from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

ID = r"(?P<id>[0-9a-f]{64})"
# kubelet writes a UID with dashes, or with low lines where systemd names the slice; of a static pod
# it is a hash of 32 digits.
UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
POD = re.compile(rf"(?:^|[/-])pod{UID}(?=$|[/.:])")
RUNTIMES = {
    "cri-containerd": "containerd",
    "crio": "CRI-O",
    "docker": "Docker",
    "libpod": "Podman",
    "nerdctl": "containerd",
}
# Of the last directories of a path, which may go on below the container.
CONTAINER = (
    # systemd's driver: cri-containerd-ID.scope; crio-conmon-ID.scope is the monitor's.
    re.compile(rf"/(?P<runtime>cri-containerd|crio|docker|libpod|nerdctl)-{ID}\.scope(?=$|/)"),
    # containerd without systemd's driver below a systemd unit: SLICE:cri-containerd:ID.
    re.compile(rf":(?P<runtime>cri-containerd|crio|docker):{ID}(?=$|/)"),
    re.compile(rf"/(?P<runtime>docker|libpod_parent/libpod|crio)[/-]{ID}(?=$|/)"),
    # cgroupfs' driver: /kubepods/burstable/podUID/ID, of whatever runtime.
    re.compile(rf"/pod[0-9a-f-]{{32,36}}/(?P<runtime>crio-)?{ID}(?=$|/)"),
)
# Not lxc.monitor.NAME, which has the process that watches it (cgfsng_monitor_create() of LXC 4.0
# and later), nor lxc.service.
LXC = re.compile(r"/(?:lxc/|lxc\.payload[./]|machine\.slice/lxc-)(?P<name>[\w.-]{1,64}?)(?=$|/)")
# /var/log/containers: POD_NAMESPACE_CONTAINER-ID.log (kubelet's legacyLogSymlink()).
LOG_LINK = re.compile(rf"(?P<pod>[^_/]+)_(?P<namespace>[^_/]+)_(?P<container>.+)-{ID}\.log")
# /var/log/pods: NAMESPACE_POD_UID (kubelet's BuildPodLogsDirectory()).
LOG_FOLDER = re.compile(rf"(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_{UID}")
DOCKER = "var/lib/docker/containers"
# Podman's and CRI-O's list (containers/storage).
STORAGE = "var/lib/containers/storage/overlay-containers/containers.json"
MOST_NAMES = 10_000
# Of a runtime's own file: it costs the names in it.
DAMAGE = (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError)


@table_row
class Container:
    """A memory cgroup of a container."""

    cgroup: str = column(holds="cgroup", key=True, help="path of the container's own cgroup")
    runtime: str | None = column(holds="words", help="what runs it, where the path tells")
    pod_uid: str | None = column(holds="cgroup", help="UID of its Kubernetes pod")
    container_id: str | None = column(holds="cgroup", help="64 digits; empty for LXC")
    namespace: str | None = column(holds="cgroup", help="of its pod")
    pod: str | None = column(holds="cgroup", help="name of its pod")
    container: str | None = column(holds="cgroup", help="its name")
    within: str | None = column(
        default=None, holds="cgroup", help="path of the container that it is in; empty: in none"
    )


CONTAINERS = Table("containers", "Containers by their cgroups", Container)


@dataclass
class Names:
    """Names by id of the container, and by UID of the pod: namespace, pod, container."""

    containers: dict[str, tuple[str | None, str | None, str | None]]
    pods: dict[str, tuple[str, str]]


def container_of(path: str) -> Container | None:
    """The innermost container that a cgroup is, or is in; None for others."""
    matches = {match.end(): match for form in (*CONTAINER, LXC) for match in form.finditer(path)}
    if not matches:
        return None
    *outer, end = sorted(matches)
    own, inner = path[:end], matches[end].groupdict()
    within = path[: max(outer)] if outer else None
    pods = [pod["uid"] for pod in POD.finditer(own)]  # a container of a pod may have some, too
    return Container(
        cgroup=own,
        runtime="LXC" if "name" in inner else _runtime(inner["runtime"]),
        pod_uid=pods[-1].replace("_", "-") if pods else None,
        container_id=inner.get("id"),
        namespace=None,
        pod=None,
        container=inner.get("name"),
        within=within,
    )


def _runtime(word: str | None) -> str | None:
    """Name of a runtime by the word for it in a path."""
    return RUNTIMES.get((word or "").rpartition("/")[2].rstrip("-"))


def called(path: str, named: Container | None = None) -> str:
    """
    A cgroup as a sentence has it: a container by the end of its path, its own id cut to 12 digits
    as runtimes print it, and by its names, or the UID of its pod; others by their path.

    :param named: with the names that are known.
    """
    found = container_of(path)
    if found is None:
        return path
    named = named or found
    of_pod = ""
    if named.pod:
        of_pod = f" of pod {named.namespace}/{named.pod}"
    elif named.pod_uid:
        of_pod = f" of pod {named.pod_uid}"
    what = f"container {named.container}" if named.container else "a container"
    if found.within:
        outer = container_of(found.within)
        name = outer and outer.container
        of_pod += f", in {f'container {name}' if name else 'another'}"
    below = path[len(found.cgroup) :]
    last = re.sub(rf"{ID}(?:\.scope)?$", lambda match: match["id"][:12], found.cgroup)
    return f"…/{last.rpartition('/')[2].rpartition(':')[2]}{below} ({what}{of_pod})"


def names_of(files: Files) -> Names:
    """Names that the node agent and the runtimes keep, as far as this user may read them."""
    names = Names({}, {})
    for name in files.names("var/log/pods")[:MOST_NAMES]:
        if match := LOG_FOLDER.fullmatch(name):
            names.pods[match["uid"]] = match["namespace"], match["pod"]
    for name in files.names("var/log/containers")[:MOST_NAMES]:
        if match := LOG_LINK.fullmatch(name):
            said = match["namespace"], match["pod"], match["container"]
            names.containers[match["id"]] = said
    for id in files.folders(DOCKER)[:MOST_NAMES]:
        with contextlib.suppress(*DAMAGE):
            described = json.loads(files.open(f"{DOCKER}/{id}/config.v2.json"))
            labels = (described.get("Config") or {}).get("Labels") or {}
            names.containers.setdefault(id, _by_labels(labels, str(described["Name"]).strip("/")))
    with contextlib.suppress(*DAMAGE):
        for each in json.loads(files.open(STORAGE))[:MOST_NAMES]:
            labels = json.loads(each.get("metadata") or "{}")
            own = str((each.get("names") or [labels.get("name", "")])[0])
            names.containers.setdefault(str(each["id"]), (None, None, own or None))
    return names


def _by_labels(labels: dict[str, Any], name: str) -> tuple[str | None, str | None, str | None]:
    """Names by the labels that kubelet gave a container of Docker's, else its own name."""
    of_pod = [labels.get(f"io.kubernetes.{each}") for each in ("pod.namespace", "pod.name")]
    namespace, pod = (str(each) if each else None for each in of_pod)
    return namespace, pod, str(labels.get("io.kubernetes.container.name") or name)


def containers_of(paths: Iterable[str | None], names: Names) -> Iterator[Container]:
    """The containers of cgroups, each once, with the names that are known."""
    seen = set()
    for path in paths:
        found = container_of(path) if path else None
        if found is None or found.cgroup in seen:
            continue
        seen.add(found.cgroup)
        of_pod = names.pods.get(found.pod_uid or "", (None, None))
        of_id = names.containers.get(found.container_id or "", (None, None, None))
        namespace, pod, container = of_id
        yield dataclasses.replace(
            found,
            namespace=namespace or of_pod[0],
            pod=pod or of_pod[1],
            container=container or found.container,
        )


def from_memory(memory: Memory) -> Found:
    found, gaps = Found(), Gaps()
    memcgs = memcgs_once(memory)
    live = np.flatnonzero(~memcgs.dying & (memcgs.depth > 0))
    paths = cgroup_paths(memory.prog, memcgs.columns["cgroup"][live], gaps)
    # Only a running host has the files that name them.
    names = names_of(Files(Path("/"))) if memory.live else Names({}, {})
    found.unreadable_bytes = memcgs.gaps.bytes + gaps.bytes
    if lost := sum(path is None for path, _ in paths):
        gone = found.remarks if memory.live else found.notes
        gone.append(f"{lost:,} memory cgroups have no path that can be read")
    return _found(found, [path for path, _ in paths], names)


def from_files(files: Files) -> Found:
    found = Found()
    paths = [path for version in ROOTS for path, _ in cgroup_folders(files, found, version)]
    if not paths:
        raise Absent(f"{files.root / 'sys/fs/cgroup'}: it has no memory cgroups")
    return _found(found, paths, names_of(files))


def _found(found: Found, paths: Sequence[str | None], names: Names) -> Found:
    rows = sorted(containers_of(paths, names), key=lambda row: row.cgroup)
    unnamed = sum(row.pod is None and row.container is None for row in rows)
    if unnamed:
        found.remarks.append(
            f"the names of {unnamed:,} of {len(rows):,} containers are not known here: "
            "/var/log/containers of the node has them"
        )
    return found.add(CONTAINERS, rows)


CONTAINERS_SECTION = Section(
    name="containers",
    title="Containers",
    since="0.3.0",
    tables=(CONTAINERS,),
    intro="""
Which memory cgroup is which container: its runtime, the
[pod](https://kubernetes.io/docs/concepts/workloads/pods/) and its namespace. The kernel knows ids
alone; names come from the node's files, where these can be read.
""",
    command=Command("which cgroup is which container", top=TOP),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.CONTAINER_NAMES,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("containers")
