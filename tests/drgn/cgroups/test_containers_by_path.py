# SPDX-License-Identifier: LGPL-2.1-or-later
"""Containers by the paths of their cgroups, and their names by the node's files."""

import dataclasses
import json
from pathlib import Path

import pytest

from mmscope.drgn.cgroups.container_paths import called, container_of
from mmscope.drgn.cgroups.containers import from_files
from mmscope.drgn.sections.files import Absent, Files

ID = "0123456789ab" + "c" * 52
OTHER = "f" * 64
UID = "3f2a8c1e-93d4-4b7a-8a11-0c5d9e7f1a2b"
LOW = UID.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"

# Path, runtime, UID of the pod, id, what goes on below the container.
PATHS = [
    (f"/kubepods/burstable/pod{UID}/{ID}", None, UID, ID, ""),
    (f"/kubepods/pod{UID}/{ID}", None, UID, ID, ""),
    (f"/kubepods/besteffort/pod{STATIC}/{ID}", None, STATIC, ID, ""),
    (f"/kubepods/burstable/pod{UID}/crio-{ID}", "CRI-O", UID, ID, ""),
    (
        "/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{LOW}.slice/cri-containerd-{ID}.scope",
        "containerd", UID, ID, "/init",
    ),
    (f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-{ID}.scope", "CRI-O", UID, ID, ""),
    (f"/kubepods.slice/kubepods-pod{LOW}.slice/docker-{ID}.scope", "Docker", UID, ID, ""),
    (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{LOW}.slice/cri-containerd-{ID}.scope",
        "containerd", UID, ID, "",
    ),
    (
        f"/system.slice/containerd.service/kubepods-burstable-pod{LOW}.slice:cri-containerd:{ID}",
        "containerd", UID, ID, "",
    ),
    (f"/docker/{ID}", "Docker", None, ID, "/app"),
    (f"/system.slice/docker-{ID}.scope", "Docker", None, ID, ""),
    (f"/machine.slice/libpod-{ID}.scope", "Podman", None, ID, "/container"),
    (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
     "Podman", None, ID, ""),
    (f"/libpod_parent/libpod-{ID}", "Podman", None, ID, ""),
    ("/lxc/db1", "LXC", None, None, "/ns/system.slice"),
    ("/lxc.payload.db1", "LXC", None, None, ""),
    ("/lxc.payload/db1", "LXC", None, None, "/init.scope"),
    ("/lxc.payload.db1", "LXC", None, None, "/lxc.monitor.in"),
]  # fmt: skip
# The outer container, what is in it of the innermost one, and its runtime, pod and id.
NESTED = [
    (f"/docker/{OTHER}", f"/kubelet/kubepods/burstable/pod{UID}/{ID}", None, UID, ID),
    (
        f"/system.slice/docker-{OTHER}.scope",
        f"/kubelet.slice/kubelet-kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
        "containerd", UID, ID,
    ),
    # Docker in a pod: it is the pod's.
    (f"/kubepods/burstable/pod{UID}/{OTHER}", f"/docker/{ID}", "Docker", UID, ID),
    (
        f"/kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-{OTHER}.scope",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
        "containerd", UID, ID,
    ),
    ("/lxc.payload.ct1", f"/system.slice/docker-{ID}.scope", "Docker", None, ID),
    ("/lxc.payload.ct1", "/lxc.payload.ct2", "LXC", None, None),
    (f"/machine.slice/libpod-{OTHER}.scope", f"/container/libpod_parent/libpod-{ID}",
     "Podman", None, ID),
]  # fmt: skip


@pytest.mark.parametrize(("path", "runtime", "uid", "number", "below"), PATHS)
def test_each_runtimes_form_is_known(
    path: str, runtime: str | None, uid: str | None, number: str | None, below: str
) -> None:
    found = container_of(path + below)
    assert found is not None
    assert (found.cgroup, found.runtime) == (path, runtime)
    assert (found.pod_uid, found.container_id) == (uid, number)
    assert found.within is None


@pytest.mark.parametrize(("outer", "inner", "runtime", "uid", "number"), NESTED)
@pytest.mark.parametrize("below", ["", "/init.scope"])
def test_of_containers_in_a_container_the_innermost_is_told(
    outer: str, inner: str, runtime: str | None, uid: str | None, number: str | None, below: str
) -> None:
    found = container_of(outer + inner + below)
    assert found is not None
    assert (found.cgroup, found.within) == (outer + inner, outer)
    assert (found.runtime, found.pod_uid, found.container_id) == (runtime, uid, number)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/sshd.service",
        "/system.slice/docker.service",
        f"/kubepods.slice/kubepods-pod{LOW}.slice",  # the pod's, with all its containers
        f"/kubepods/burstable/pod{UID}",
        f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-conmon-{ID}.scope",
        f"/system.slice/docker-{ID[:12]}.scope",
        "/user.slice/podman-123.scope",
        "/lxc.monitor.db1",
        "/lxc.monitor/101",
        "/system.slice/lxc.service",
    ],
)
def test_what_is_no_container(path: str) -> None:
    assert container_of(path) is None
    assert called(path) == path


def tree(path: Path, *cgroups: str) -> Files:
    for cgroup in ("/", *cgroups):
        folder = path / "sys/fs/cgroup" / cgroup.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.current").write_text("4096\n")
    return Files(path)


def test_kubelet_s_logs_name_pods_and_containers(tmp_path: Path) -> None:
    files = tree(tmp_path, PATHS[0][0], PATHS[4][0].replace(ID, OTHER) + "/init")
    logs = tmp_path / "var/log"
    (logs / "containers").mkdir(parents=True)
    (logs / "containers" / f"web-7d9f_shop_nginx-{ID}.log").symlink_to("/gone")
    (logs / "pods" / f"shop_web-7d9f_{UID}").mkdir(parents=True)
    found = from_files(files)
    other, named = found.by_name["containers"]
    assert (named.namespace, named.pod, named.container) == ("shop", "web-7d9f", "nginx")
    # Of the other the pod is known by its UID.
    assert (other.namespace, other.pod, other.container) == ("shop", "web-7d9f", None)
    assert not found.remarks


def test_runtimes_own_files_name_containers(tmp_path: Path) -> None:
    files = tree(tmp_path, f"/docker/{ID}", f"/machine.slice/libpod-{OTHER}.scope", "/lxc/db1")
    docker = tmp_path / "var/lib/docker/containers" / ID
    docker.mkdir(parents=True)
    (docker / "config.v2.json").write_text(json.dumps({"Name": "/db", "Config": {"Labels": None}}))
    storage = tmp_path / "var/lib/containers/storage/overlay-containers"
    storage.mkdir(parents=True)
    (storage / "containers.json").write_text(json.dumps([{"id": OTHER, "names": ["cache"]}]))
    rows = from_files(files).by_name["containers"]
    assert {(row.runtime, row.container) for row in rows} == {
        ("Docker", "db"), ("Podman", "cache"), ("LXC", "db1"),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"Name": 5, "Config": []}', "[" * 100_000])
def test_a_damaged_file_of_a_runtime_costs_its_names(tmp_path: Path, text: str) -> None:
    files = tree(tmp_path, f"/docker/{ID}")
    place = tmp_path / "var/lib/docker/containers" / ID / "config.v2.json"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    storage = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    storage.parent.mkdir(parents=True)
    storage.write_text(text)
    found = from_files(files)
    (row,) = found.by_name["containers"]
    assert row.container_id == ID
    assert row.container in (None, "5")


def test_names_that_are_not_known_are_said(tmp_path: Path) -> None:
    found = from_files(tree(tmp_path, f"/docker/{ID}"))
    assert found.remarks == [
        "the names of 1 of 1 containers are not known here: /var/log/containers of the node has "
        "them"
    ]


def test_a_machine_without_containers_has_none(tmp_path: Path) -> None:
    assert from_files(tree(tmp_path, "/system.slice")).by_name["containers"] == []


def test_without_cgroups_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no memory cgroups"):
        from_files(Files(tmp_path))


def test_more_cgroups_than_are_looked_at_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tree(tmp_path, f"/docker/{ID}", f"/docker/{OTHER}")
    assert not from_files(files).unlisted
    monkeypatch.setattr("mmscope.drgn.cgroups.cgroup_files.MAX_CGROUPS", 2)
    assert from_files(files).unlisted == ["of cgroups the first 1,000"]


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/memory/docker" / ID
    folder.mkdir(parents=True)
    (folder / "memory.usage_in_bytes").write_text("4096\n")
    (row,) = from_files(Files(tmp_path)).by_name["containers"]
    assert row.cgroup == f"/docker/{ID}"


def test_how_a_sentence_has_it(tmp_path: Path) -> None:
    files = tree(tmp_path, PATHS[4][0])
    (row,) = from_files(files).by_name["containers"]
    short = "…/cri-containerd-0123456789ab"
    assert called(PATHS[4][0]) == f"{short} (a container of pod {UID})"
    assert called(PATHS[4][0] + "/init") == f"{short}/init (a container of pod {UID})"
    named = dataclasses.replace(row, namespace="shop", pod="web-7d9f", container="nginx")
    assert called(PATHS[4][0], named) == f"{short} (container nginx of pod shop/web-7d9f)"
    assert called("/lxc/db1/ns") == "…/db1/ns (container db1)"
    assert called(f"/docker/{ID}") == "…/0123456789ab (a container)"
    in_lxc = f"/lxc.payload.ct1/docker/{ID}"
    assert called(in_lxc) == "…/0123456789ab (a container, in container ct1)"
    in_pod = f"/kubepods/pod{UID}/{OTHER}/docker/{ID}"
    assert called(in_pod) == f"…/0123456789ab (a container of pod {UID}, in another)"


def test_a_pod_whose_name_is_known_is_told_by_it() -> None:
    pods = {UID: "shop/web-7d9f"}
    of_pod = f"/kubepods.slice/kubepods-pod{LOW}.slice"
    said = f"…/kubepods-pod{LOW}.slice (pod shop/web-7d9f)"
    assert called(of_pod, pods=pods) == said
    assert called(f"/lxc.payload.ct1{of_pod}", container_of("/lxc.payload.ct1"), pods) == said
    assert called(f"/kubepods/burstable/pod{UID}", pods=pods) == f"…/pod{UID} (pod shop/web-7d9f)"
    # A container that is gone has no names of its own left.
    gone = called(f"{of_pod}/cri-containerd-{ID}.scope", None, pods)
    assert gone == "…/cri-containerd-0123456789ab (a container of pod shop/web-7d9f)"
    assert called(of_pod, pods={STATIC: "shop/db"}) == of_pod
