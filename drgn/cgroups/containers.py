# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Containers by the paths of their cgroups (``container_paths``), with their names, which are not in
the kernel: they are read from where the node agent and the runtimes keep them, of a running host or
a tree.

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
from mmscope.drgn.cgroups.container_paths import ID, UID, Container, container_of
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.table import tables_of

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


@dataclass
class Names:
    """Names by id of the container, and by UID of the pod: namespace, pod, container."""

    containers: dict[str, tuple[str | None, str | None, str | None]]
    pods: dict[str, tuple[str, str]]


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
    found, gaps = Found(memory.live), Gaps()
    memcgs = memcgs_once(memory)
    live = np.flatnonzero(~memcgs.dying & (memcgs.depth > 0))
    paths = cgroup_paths(memory.prog, memcgs.columns["cgroup"][live], gaps)
    # Only a running host has the files that name them.
    names = names_of(Files(Path("/"))) if memory.live else Names({}, {})
    found.unreadable_bytes = memcgs.gaps.bytes + gaps.bytes
    if lost := sum(path is None for path, _ in paths):
        gone = found.remarks if memory.live else found.notes
        groups = plural(lost, "memory cgroup has", "memory cgroups have")
        gone.append(f"{groups} no path that can be read")
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
    return found.add(Container, rows)


CONTAINERS_SECTION = Section(
    name="containers",
    title="Containers",
    since="0.3.0",
    tables=tables_of(Container),
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
