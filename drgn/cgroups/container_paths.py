# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Containers in the paths of their cgroups: kubelet's (both cgroup drivers), containerd's, CRI-O's,
Docker's, Podman's, LXC's.

A path has the runtime, the id of the container and the UID of its pod (pkg/kubelet/cm:
``pod_container_manager_linux.go``, ``cgroup_manager_linux.go`` of Kubernetes 1.20 to 1.34). Of
containers in a container (Docker in a pod, pods in Docker, anything in LXC) it is the innermost,
with the one that it is in.

Imports neither drgn nor numpy. Cannot know: containers of a runtime that is none of these.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table

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


@table("containers", "Containers by their cgroups")
class Container:
    """A memory cgroup of a container."""

    cgroup: str = column(holds="cgroup", key=True, help="the container's own cgroup")
    runtime: str | None = column(holds="words", help="container runtime, where the path shows it")
    pod_uid: str | None = column(holds="cgroup", help="UID of the Kubernetes pod")
    container_id: str | None = column(holds="cgroup", help="64 digits; empty for LXC")
    namespace: str | None = column(holds="cgroup", help="of its pod")
    pod: str | None = column(holds="cgroup", help="name of the pod")
    container: str | None = column(holds="cgroup", help="name of the container")
    within: str | None = column(
        default=None, holds="cgroup", help="path of the enclosing container; empty: none"
    )


def container_of(path: str) -> Container | None:
    """The innermost container that a cgroup is, or is in; None for others."""
    matches = {match.end(): match for form in (*CONTAINER, LXC) for match in form.finditer(path)}
    if not matches:
        return None
    *outer, end = sorted(matches)
    own, inner = path[:end], matches[end].groupdict()
    within = path[: max(outer)] if outer else None
    _, uid = pod_of(own)
    return Container(
        cgroup=own,
        runtime="LXC" if "name" in inner else _runtime(inner["runtime"]),
        pod_uid=uid,
        container_id=inner.get("id"),
        namespace=None,
        pod=None,
        container=inner.get("name"),
        within=within,
    )


def pod_of(path: str) -> tuple[str, str | None]:
    """The innermost pod that a cgroup is, or is in: its cgroup, and its UID; None for others."""
    pods = [*POD.finditer(path)]  # a container of a pod may have some, too
    return (path[: pods[-1].end()], pods[-1]["uid"].replace("_", "-")) if pods else ("", None)


def _runtime(word: str | None) -> str | None:
    """Name of a runtime by the word for it in a path."""
    return RUNTIMES.get((word or "").rpartition("/")[2].rstrip("-"))


def called(
    path: str,
    named: Container | None = None,
    pods: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """
    A cgroup as a sentence has it: a container by the end of its path, its own id cut to 12 digits
    as runtimes print it, and by its names, or the UID of its pod; the cgroup of a pod, whose
    containers share its limit, by the pod's name, if that is known; others by their path.

    :param named: with the names that are known.
    :param pods: ``namespace/name`` of pods, by their UID.
    """
    found = container_of(path)
    place, uid = pod_of(path)
    if uid and uid in pods and (found is None or len(place) > len(found.cgroup)):
        return f"…/{path[place.rindex('/') + 1 :]} (pod {pods[uid]})"
    if found is None:
        return path
    named = named or found
    of_pod = ""
    if pod := f"{named.namespace}/{named.pod}" if named.pod else pods.get(uid or "", uid):
        of_pod = f" of pod {pod}"
    what = f"container {named.container}" if named.container else "a container"
    if found.within:
        outer = container_of(found.within)
        name = outer and outer.container
        of_pod += f", in {f'container {name}' if name else 'another'}"
    below = path[len(found.cgroup) :]
    last = re.sub(rf"{ID}(?:\.scope)?$", lambda match: match["id"][:12], found.cgroup)
    return f"…/{last.rpartition('/')[2].rpartition(':')[2]}{below} ({what}{of_pod})"


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("containers")
