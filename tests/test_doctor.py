# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor says of each source whether it can be read, and if not, what would change that."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from target import TargetError
from test_command import POWERLESS, ROOT

from reports import doctor
from reports.doctor import Check, checks

DATA = Path(__file__).parent / "data" / "7.2"


def by_source(monkeypatch: pytest.MonkeyPatch, *sources: tuple[str, str]) -> dict[str, Check]:
    monkeypatch.setattr(doctor, "TEXT_SOURCES", sources)
    return {check.source: check for check in checks()}


def test_a_source_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoneinfo"
    path.write_text("Node 0")
    check = by_source(monkeypatch, (str(path), "zones"))[str(path)]
    assert check == Check(str(path), "yes", "zones", None, None)


def test_a_source_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "zoneinfo")
    check = by_source(monkeypatch, (path, "zones"))[path]
    assert (check.usable, check.reason) == ("no", "not there")
    assert check.change


def test_a_source_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = by_source(monkeypatch, (str(tmp_path), "zones"))[str(tmp_path)]
    assert (check.usable, check.reason) == ("no", "Is a directory")


def test_a_source_for_others(tmp_path: Path) -> None:
    path = tmp_path / "pagetypeinfo"
    path.write_text("")
    path.chmod(0)
    script = (
        "import sys, reports\nfrom reports import doctor\n"
        "check = doctor._text(sys.argv[1], 'free blocks')\n"
        "print(check.usable, check.reason, check.change, sep='; ')\n"
    )
    result = subprocess.run(
        [*POWERLESS, sys.executable, "-c", script, str(path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "no; Permission denied; run as root\n"


def test_every_row_says_what_it_is_for_and_what_would_help() -> None:
    rows = checks()
    assert {"/proc/zoneinfo", "/proc/buddyinfo", "/proc/pagetypeinfo", "/proc/vmstat",
            "/proc/kcore"} <= {row.source for row in rows}  # fmt: skip
    for row in rows:
        assert row.gives
        assert row.usable in ("yes", "no", "in part")
        assert (row.usable != "yes") == (row.reason is not None) == (row.change is not None)


def test_symbols_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    (tmp_path / f"vmlinux-{release}").write_text("")
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", (f"{tmp_path}/vmlinux-{{release}}",))
    check = doctor._symbols(release)
    assert (check.source, check.usable) == (f"debug symbols: {tmp_path}/vmlinux-{release}", "yes")


def test_symbols_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", (f"{tmp_path}/vmlinux-{{release}}",))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    check = doctor._symbols("6.12.41+deb13-amd64")
    assert check.usable == "no"
    assert check.change is not None
    assert "apt install linux-image-6.12.41+deb13-amd64-dbg" in check.change


def test_symbols_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", ())
    monkeypatch.setenv("DEBUGINFOD_URLS", "https://example.org")
    assert doctor._symbols("7.2").usable == "yes"


KCORE = "/proc/kcore"


@pytest.mark.parametrize(
    ("exists", "user", "error", "usable", "reason"),
    [
        (False, 0, None, "no", "this kernel has none"),
        (True, 1000, None, "no", "only root may read it"),
        (True, 0, None, "yes", None),
        (True, 0, "no debug symbols for kernel 7.2", "yes", None),
        (
            True,
            0,
            "/proc/kcore: drgn cannot open it: Operation not permitted",
            "no",
            "not permitted",
        ),
    ],
)
def test_memory(
    monkeypatch: pytest.MonkeyPatch,
    exists: bool,
    user: int,
    error: str | None,
    usable: str,
    reason: str | None,
) -> None:
    def open_target() -> None:
        if error:
            raise TargetError(error)

    monkeypatch.setattr(Path, "exists", lambda path: exists)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(doctor, "open_target", open_target)
    check = doctor._memory()
    assert (check.source, check.usable) == (KCORE, usable)
    assert (check.reason is None) if reason is None else (reason in str(check.reason))


def test_what_watch_can_sample(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "host")
    check = doctor.watched(str(tmp_path / "host"))
    assert check.usable == "in part" and "ms of CPU here" in check.gives
    assert "proc/pressure/memory: No such file" in str(check.reason)
    assert check.change == ("CONFIG_PSI; boot with psi=1 where it is off by default; CONFIG_KSM")


def test_watch_where_there_is_nothing(tmp_path: Path) -> None:
    assert doctor.watched(str(tmp_path)).usable == "no"


def test_watch_on_this_machine() -> None:
    (check,) = [row for row in checks() if row.source == "watch"]
    assert check.usable in ("yes", "in part")
