# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Roles of kernels in archives that are made here: of today, of a day when 6.12 has left, and of later
ones. Nothing is fetched.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import conftest
import kernels
import pytest
import roles
from architectures import AMD64, Architecture
from archive import LabError, left

TODAY = {
    "bullseye": ["5.10.0-32-cloud-amd64"],
    "bookworm": ["6.1.0-50-cloud-amd64"],
    "trixie": ["6.12.107+deb13-cloud-amd64"],
    "trixie-backports": ["7.2.12+deb13-cloud-amd64", "7.3.4+deb13-cloud-amd64"],
    "sid": ["7.2.13+deb14-cloud-amd64"],
    "experimental": ["7.3-cloud-amd64"],
}
LATER = {name: TODAY[name] for name in ("bookworm", "trixie")} | {
    "sid": ["7.6.1+deb14-cloud-amd64"],
    "experimental": ["7.7-rc3-cloud-amd64"],
}
MUCH_LATER = {
    "stable": ["8.1.40+deb15-cloud-amd64"],
    "oldstable": ["7.5.99+deb14-cloud-amd64"],
    "experimental": [],
}
Resolve = Callable[[str, dict[str, list[str]]], tuple[str, list[str]]]


@pytest.fixture
def asked() -> list[str]:
    """The suites that were looked into."""
    return []


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> Resolve:
    """Resolves a role in an archive, with a cache made here; returns also what was said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def resolve(role: str, archive: dict[str, list[str]]) -> tuple[str, list[str]]:
        def in_suite(
            suite: str, release: str, of: Architecture = AMD64, row: object = None
        ) -> object:
            asked.append(suite)
            if suite not in archive:
                raise LabError("it has no Release file")
            found = [name for name in archive[suite] if re.fullmatch(release, name)]
            return ((found[-1], []) if found else None), []

        monkeypatch.setattr(kernels, "in_suite", in_suite)
        said: list[str] = []
        return roles.resolve.__wrapped__(role, said.append), said

    return resolve


def test_each_is_what_it_is_today(resolve: Resolve) -> None:
    found = {role: resolve(role, TODAY)[0] for role in kernels.table()["roles"]}
    assert found == {"stable": "6.12", "newest": "7.3", "oldest": "5.10"}
    assert resolve("6.1", {}) == ("6.1", [])


def test_where_6_12_has_left_the_next_is_taken_and_it_is_said(resolve: Resolve) -> None:
    found, said = resolve("stable", TODAY | {"trixie": [], "bookworm-backports": []})
    assert found == "6.1"
    assert said[-1].startswith(
        "the kernel stable is 6.1; not found: 6.12: no 6.12 kernel with debug"
    )
    assert "trixie has none; bookworm-backports has none" in said[-1]


def test_a_suite_that_has_gone_ends_nothing(resolve: Resolve) -> None:
    found, said = resolve("oldest", LATER)
    assert found == "6.1"
    assert "bullseye: it has no Release file" in said[-1]


def test_a_series_that_nobody_has_seen_has_its_name(resolve: Resolve) -> None:
    found, said = resolve("newest", LATER)
    assert found == "7.7"
    assert said[-1].startswith("the kernel newest is 7.7, which no test has seen")
    assert kernels.architecture("7.7") is AMD64


def test_in_the_end_it_is_what_stable_has(resolve: Resolve) -> None:
    assert resolve("stable", MUCH_LATER)[0] == "8.1"


def test_where_there_is_nothing_it_is_said_of_each_why(resolve: Resolve) -> None:
    with pytest.raises(LabError, match=r"no kernel is stable today: 6\.12: .*6\.1: .*oldstable: "):
        resolve("stable", {})


def test_what_was_not_there_is_asked_for_once_a_day(resolve: Resolve, asked: list[str]) -> None:
    archive = LATER | {"trixie": [], "bookworm-backports": []}
    assert resolve("stable", archive)[0] == "6.1"
    assert asked == ["trixie", "bookworm-backports", "bookworm"]
    assert resolve("stable", archive)[0] == "6.1"
    assert asked[3:] == ["bookworm"]


def test_a_suite_that_cannot_be_read_is_asked_again(resolve: Resolve) -> None:
    with pytest.raises(LabError):
        resolve("stable", {})
    assert resolve("stable", TODAY)[0] == "6.12"


def test_what_the_cache_has_needs_no_archive(
    resolve: Resolve, asked: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "mmscope/lab/kernels/6.12.90+deb13-cloud-amd64"
    folder.mkdir(parents=True)
    for name in ("vmlinuz", "vmlinux", "qemu_fw_cfg.ko", "virtio_blk.ko"):
        (folder / name).touch()
    assert resolve("stable", {}) == ("6.12", ["the kernel stable is 6.12"])
    assert asked == []


def test_a_run_of_kernels_that_may_be_left_out_does_not_fail_where_all_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = pytest.ExitCode.NO_TESTS_COLLECTED
    for there, ends in (([], pytest.ExitCode.OK), (["6.1"], nothing)):
        monkeypatch.setattr(conftest, "KERNELS", there)
        session = SimpleNamespace(exitstatus=nothing)
        conftest.pytest_sessionfinish(session, session.exitstatus)  # type: ignore[arg-type]
        assert session.exitstatus == ends


def test_a_series_may_count_as_gone_to_see_what_is_taken_then(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mmscope/lab/kernels"
    for release in ("7.2.9+deb13-cloud-amd64", "6.12.107+deb13-cloud-amd64"):
        (folder / release).mkdir(parents=True)
        for name in ("vmlinuz", "vmlinux", "qemu_fw_cfg.ko", "virtio_blk.ko"):
            (folder / release / name).touch()
    monkeypatch.setenv("MMSCOPE_LAB_WITHOUT", "7.2,7.3")
    assert resolve("stable", {})[0] == "6.12"
    gone = ["linux-image-7.2.12+deb13-cloud-amd64", "linux-source-7.3", "owner-7.2.12-1~bpo13+1-0a"]
    there = ["linux-image-6.12.107+deb13-cloud-amd64", "linux-source-7.20", "x-17.2", "6.7.2"]
    assert [left(name) for name in gone + there] == [True] * 3 + [False] * 4
    monkeypatch.setenv("MMSCOPE_LAB_WITHOUT", "6.12")
    # What the archive has is filtered where it is read, and made here; so it has none of these.
    assert resolve("stable", {"bookworm": TODAY["bookworm"]})[0] == "6.1"
    monkeypatch.delenv("MMSCOPE_LAB_WITHOUT")
    assert resolve("stable", {})[0] == "6.12" and not any(map(left, gone))
