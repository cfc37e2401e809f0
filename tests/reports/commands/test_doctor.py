# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor says of each source whether it can be read, and if not, what would change that."""

import dataclasses
import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import children
import pytest
from checkout import TESTS
from command_line import POWERLESS, ROOT

from mmscope.drgn.opening.target import TargetError
from mmscope.drgn.sections import prices
from mmscope.perf import perf_events
from mmscope.perf.perf_events import os_release, where_to_get_perf
from mmscope.reports.collect.debug_symbols import where_to_get_symbols
from mmscope.reports.commands import doctor
from mmscope.reports.commands.command import main
from mmscope.reports.commands.doctor import Check, PriceHere, checks, summary
from mmscope.reports.watch import samples

DATA = TESTS / "data" / "7.2"


def variables(text: str) -> dict[str, str]:
    """Those of an ``os-release`` file."""
    return dict(re.findall(r"""^(\w+)=['"]?(.*?)['"]?$""", text, re.MULTILINE))


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
        "import sys\nfrom mmscope.reports.commands import doctor\n"
        "check = doctor._text(sys.argv[1], 'free blocks')\n"
        "print(check.usable, check.reason, check.change, sep='; ')\n"
    )
    result = children.run(
        [*POWERLESS, sys.executable, "-c", script, str(path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    root = "root needs all its capabilities for it: run on the host"
    change = "run as root" if os.geteuid() else root
    assert result.stdout == f"no; Permission denied; {change}\n"


def test_root_is_not_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(doctor, "_try", refuse)
    for user, log, other in (
        (0, "root needs CAP_SYSLOG for it: run on the host",
         "root needs all its capabilities for it: run on the host"),
        (7, "run as root, with CAP_SYSLOG", "run as root"),
    ):  # fmt: skip
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert doctor._text("/dev/kmsg", "x").change == log
        assert doctor._text("/proc/zoneinfo", "x").change == other


def test_a_container_has_no_log_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(doctor, "_try", absent)
    check = doctor._text("/dev/kmsg", "x")
    assert (check.reason, check.change) == ("not there", "the host itself: a container has none")


def test_every_row_says_what_it_is_for_and_what_would_help() -> None:
    rows = checks()
    assert {"/proc/zoneinfo", "/proc/buddyinfo", "/proc/pagetypeinfo", "/proc/vmstat",
            "/proc/kcore"} <= {row.source for row in rows}  # fmt: skip
    for row in rows:
        assert row.gives
        assert row.usable in ("yes", "no", "in part")
        assert (row.usable != "yes") == (row.reason is not None) == (row.change is not None)


@pytest.mark.parametrize(
    ("why", "user", "usable", "change"),
    [
        (None, 0, ["yes"], None),
        ("no BTF", 0, ["no", "no"], "keep the vmlinux of the build, or give --symbols VMLINUX"),
        ("hidden", 1000, ["no", "no"], "run as root"),
    ],
)
def test_a_kernel_that_says_itself_where_things_are(
    monkeypatch: pytest.MonkeyPatch, why: str | None, user: int, usable: list[str], change: str
) -> None:
    """Debug symbols are a row only where they are needed."""
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", ())
    monkeypatch.setattr(doctor, "why_not_here", lambda: why)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    rows = list(doctor._symbols("7.2"))
    assert [row.usable for row in rows] == usable
    assert (rows[0].source, rows[0].reason, rows[0].change) == ("BTF and kallsyms", why, change)


def test_symbols_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    (tmp_path / f"vmlinux-{release}").write_text("")
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", (f"{tmp_path}/vmlinux-{{release}}",))
    check = doctor._debug_symbols(release)
    assert (check.source, check.usable) == (f"debug symbols: {tmp_path}/vmlinux-{release}", "yes")


def test_symbols_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", (f"{tmp_path}/vmlinux-{{release}}",))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    check = doctor._debug_symbols("6.12.41+deb13-amd64")
    assert check.usable == "no"
    assert check.change is not None
    assert "apt install linux-image-6.12.41+deb13-amd64-dbg" in check.change


def test_symbols_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VMLINUX_PLACES", ())
    monkeypatch.setenv("DEBUGINFOD_URLS", "https://example.org")
    check = doctor._debug_symbols("7.2")
    assert (check.source, check.usable) == ("debug symbols: debuginfod", "in part")
    assert check.change == "keep the vmlinux of the build, or give --symbols VMLINUX"


@pytest.mark.parametrize(
    ("config", "change"),
    [
        ("CONFIG_MEM_ALLOC_PROFILING=y\n", "boot with sysctl.vm.mem_profiling=1"),
        (
            "# CONFIG_MEM_ALLOC_PROFILING is not set\n",
            "boot a kernel with CONFIG_MEM_ALLOC_PROFILING=y, with sysctl.vm.mem_profiling=1 on "
            "its command line",
        ),
        (None, "(on a kernel with CONFIG_MEM_ALLOC_PROFILING=y)"),
    ],
)
def test_lines_of_source_that_allocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, change: str
) -> None:
    monkeypatch.setattr(doctor, "CONFIGS", (f"{tmp_path}/config-{{release}}",))
    monkeypatch.setattr(doctor.prices, "ALLOCINFO", f"{tmp_path}/allocinfo")
    if config is not None:
        (tmp_path / "config-7.2").write_text(config)
    check = doctor._alloc_tags("7.2")
    assert check.usable == "no" and (check.change or "").endswith(change)


class TestPageOwner:
    """Its files tell that it is on; the kernel's configuration, why it is not."""

    @pytest.fixture
    def debugfs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "debug"
        (folder / "slab").mkdir(parents=True)
        monkeypatch.setattr(doctor, "DEBUGFS", folder)
        monkeypatch.setattr(doctor, "CONFIGS", (f"{tmp_path}/config-{{release}}",))
        return folder

    def test_that_is_on(self, debugfs: Path) -> None:
        (debugfs / "page_owner").write_text("")
        assert doctor._page_owner("7.2").usable == "yes"

    @pytest.mark.parametrize(
        ("config", "change"),
        [
            ("CONFIG_PAGE_OWNER=y\n", "boot with page_owner=on"),
            (
                "# CONFIG_PAGE_OWNER is not set\nCONFIG_PAGE_OWNER_X=y\n",
                "a kernel with CONFIG_PAGE_OWNER=y, booted with page_owner=on",
            ),
            (None, "boot with page_owner=on (on a kernel with CONFIG_PAGE_OWNER=y)"),
        ],
    )
    def test_that_is_off(
        self, debugfs: Path, tmp_path: Path, config: str | None, change: str
    ) -> None:
        if config is not None:
            (tmp_path / "config-7.2").write_text(config)
        check = doctor._page_owner("7.2")
        assert (check.usable, check.change) == ("no", change)

    def test_without_debugfs(self, debugfs: Path) -> None:
        (debugfs / "slab").rmdir()
        for check in (doctor._page_owner("7.2"), doctor._slab_owner()):
            assert check.change == "mount -t debugfs none /sys/kernel/debug"
        debugfs.rmdir()
        assert doctor._page_owner("7.2").reason == "there is no debugfs"

    def test_slab_objects(self, debugfs: Path) -> None:
        check = doctor._slab_owner()
        assert check.reason == "no slab cache remembers who allocated its objects"
        assert str(check.change).startswith("boot with slab_debug=U")
        (debugfs / "slab" / "dentry").mkdir()
        (debugfs / "slab" / "dentry" / "alloc_traces").write_text("")
        check = doctor._slab_owner()
        assert (check.usable, check.change) == ("if asked", "collect --all")
        assert "walks every object of the cache with interrupts off" in str(check.reason)


def test_pressure_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(path: str, mode: str) -> Any:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)

    # A kernel with PSI that is off opens the file, and says so when it is read.
    monkeypatch.setattr(doctor, "open", off, raising=False)
    check = doctor._text("/proc/pressure/memory", "pressure")
    assert (check.usable, check.reason) == ("no", "it is off")
    assert "psi=1" in str(check.change)


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (["kprobes: " + perf_events.NO_TRACEFS, perf_events.NO_TRACEFS],
         ("kprobes: tracefs is not mounted; tracefs is not mounted",
          "mount -t tracefs nodev /sys/kernel/tracing")),
        (["a flight recorder needs root"], ("a flight recorder needs root", "root")),
    ],
    ids=["command", "none"],
)  # fmt: skip
def test_what_changes_a_recipe_is_a_command(reasons: list[str], told: tuple[str, str]) -> None:
    assert doctor._remedy(reasons, "root") == told


def test_a_file_that_its_kernel_lacks(tmp_path: Path) -> None:
    path = "/sys/kernel/mm/ksm/of-no-kernel"
    assert doctor._text(path, "x").change == "mount -t proc proc /proc"
    kernel = {path: needs for path, needs in doctor.NEEDS.items() if path != "/dev/kmsg"}
    assert all("CONFIG_" in needs for needs in kernel.values())
    assert doctor.NEEDS.keys() <= {path for path, _ in doctor.TEXT_SOURCES}


def test_what_reports_are_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check.usable for check in doctor._programs()] == ["yes"]
    monkeypatch.setattr(doctor, "LIBRARIES", ("json", "no_such_library"))
    (check,) = doctor._programs()
    assert check.reason == "this Python has no no_such_library"
    assert "pip install 'mmscope[report]'" in str(check.change)


X86 = "x86_64"


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("ID=debian", "6.1.0-50-cloud-amd64", "apt install linux-image-6.1.0-50-cloud-amd64-dbg"),
        ("ID=debian", "7.2.12+deb13-amd64", "apt install linux-image-7.2.12+deb13-amd64-dbg"),
        (
            "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble",
            "6.8.0-45-generic",
            "apt install ubuntu-dbgsym-keyring; add 'deb http://ddebs.ubuntu.com noble main' and "
            "the same of noble-updates to /etc/apt/sources.list.d/ddebs.list; apt update; "
            "apt install linux-image-6.8.0-45-generic-dbgsym",
        ),
        ("ID=fedora", "6.11.4-301.fc41.x86_64",
         "dnf debuginfo-install kernel-6.11.4-301.fc41.x86_64"),
        (
            'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"',
            "5.14.0-427.el9.x86_64",
            "subscription-manager repos --enable rhel-9-for-x86_64-baseos-debug-rpms; "
            "dnf debuginfo-install kernel-5.14.0-427.el9.x86_64",
        ),
        ('ID="centos"\nID_LIKE="rhel fedora"', "5.14.0-503.el9.x86_64",
         "dnf debuginfo-install kernel-5.14.0-503.el9.x86_64"),
        ('ID="rocky"', "5.14.0-1.el9.x86_64", "dnf debuginfo-install kernel-5.14.0-1.el9.x86_64"),
        ('ID="almalinux"', "4.18.0-1.el8.x86_64",
         "dnf debuginfo-install kernel-4.18.0-1.el8.x86_64"),
        (
            'ID="ol"\nVERSION_ID="8.9"',
            "5.15.0-202.135.2.el8uek.x86_64",
            "dnf install https://oss.oracle.com/ol8/debuginfo/"
            "kernel-uek-debuginfo-5.15.0-202.135.2.el8uek.x86_64.rpm "
            "https://oss.oracle.com/ol8/debuginfo/"
            "kernel-uek-debuginfo-common-5.15.0-202.135.2.el8uek.x86_64.rpm",
        ),
        (
            'ID="ol"\nVERSION_ID="9.4"',
            "5.14.0-427.el9.x86_64",
            "dnf install https://oss.oracle.com/ol9/debuginfo/"
            "kernel-debuginfo-5.14.0-427.el9.x86_64.rpm "
            "https://oss.oracle.com/ol9/debuginfo/"
            "kernel-debuginfo-common-x86_64-5.14.0-427.el9.x86_64.rpm",
        ),
        ('ID="amzn"\nID_LIKE="fedora"', "6.1.102-108.177.amzn2023.x86_64",
         "debuginfo-install kernel-6.1.102-108.177.amzn2023.x86_64"),
        (
            'ID="opensuse-leap"\nID_LIKE="suse opensuse"',
            "6.4.0-150600.21-default",
            "zypper --plus-content debug install kernel-default-debuginfo, of the version that "
            "'rpm -q kernel-default' says",
        ),
        (
            'ID="sles"\nID_LIKE="suse"',
            "6.4.0-150600.8.5-azure",
            "zypper --plus-content debug install kernel-azure-debuginfo, of the version that "
            "'rpm -q kernel-azure' says",
        ),
        (
            "ID=azurelinux",
            "6.6.47.1-1.azl3",
            "tdnf install azurelinux-repos-debug, and from there the distribution's debug symbols "
            "of this kernel",
        ),
        ("ID=arch", "6.11.1-arch1-1",
         "the distribution's debug symbols of this kernel: no package of them is known"),
        # By what it is like; by its ID where that is known.
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble",
         "6.8.0-45-generic",
         "apt install ubuntu-dbgsym-keyring; add 'deb http://ddebs.ubuntu.com noble main' and "
         "the same of noble-updates to /etc/apt/sources.list.d/ddebs.list; apt update; "
         "apt install linux-image-6.8.0-45-generic-dbgsym"),
    ],
)  # fmt: skip
def test_symbols_of_a_distribution(system: str, release: str, command: str) -> None:
    said = where_to_get_symbols(release, X86, variables(system))
    assert said == f"{command}; or give --symbols VMLINUX"


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ("ID=debian", "apt-get install linux-perf"),
        ("ID=raspbian\nID_LIKE=debian", "apt-get install linux-perf"),
        ("ID=ubuntu\nID_LIKE=debian", "apt-get install linux-tools-6.8.0-45-generic"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'", "apt-get install linux-tools-6.8.0-45-generic"),
        ("ID=fedora", "dnf install perf"),
        ('ID="rhel"\nID_LIKE="fedora"', "dnf install perf"),
        ('ID="centos"\nID_LIKE="rhel fedora"', "dnf install perf"),
        ('ID=tencentos\nID_LIKE="rhel fedora centos"', "dnf install perf"),
        ('ID="sles"\nID_LIKE="suse"', "zypper install perf"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', "zypper install perf"),
        ("ID=arch", "pacman -S perf"),
        ("ID=alpine", "apk add perf"),
        ("ID=nixos", "install the program perf, which is made of the kernel's source (tools/perf)"),
        ("", "install the program perf, which is made of the kernel's source (tools/perf)"),
    ],
)
def test_perf_of_a_distribution(system: str, command: str) -> None:
    assert where_to_get_perf("6.8.0-45-generic", variables(system)) == command


def test_without_perf_recipes_name_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(perf_events.look(), perf=None)
    monkeypatch.setattr(perf_events, "look", lambda: machine)
    rows = doctor._recipes()
    command = where_to_get_perf(os.uname().release, os_release())
    assert rows
    assert {(row.reason, row.change) for row in rows} == {("perf is not installed", command)}


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        # A container of another distribution; a kernel of one's own; no distribution that is known.
        ("ID=debian", "6.11.4-301.fc41.x86_64", "dnf debuginfo-install kernel-6.11.4-301.fc41"),
        ("ID=debian", "7.2.0-rc1+", "keep the vmlinux of the build"),
        ("ID=nixos", "6.6.1", "keep the vmlinux of the build"),
        ("", "6.1.0-50-amd64", "apt install linux-image-6.1.0-50-amd64-dbg"),
    ],
)
def test_symbols_of_a_kernel_that_is_not_the_distributions(
    system: str, release: str, command: str
) -> None:
    said = where_to_get_symbols(release, X86, variables(system))
    assert said.startswith(command) and said.endswith("give --symbols VMLINUX")


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


def test_a_remedy_is_said_once() -> None:
    rows = [
        Check("a", "no", "", "why", "mount it"),
        Check("b", "yes", "", None, None),
        Check("c", "no", "", "why", "mount it"),
        Check("d", "no", "", "why", "build it"),
        Check("e", "no", "", "why", "mount it"),
    ]
    assert [row.change for row in doctor.said_once(rows)] == [
        "mount it", None, "as for a", "build it", "as for a"
    ]  # fmt: skip


def test_one_screen_says_each_remedy_once() -> None:
    rows = [
        Check("/proc/a", "yes", "", None, None),
        Check("record b", "no", "", "b:event: tracefs is not mounted", "mount it"),
        Check("/proc/c", "no", "", "it is off", "boot with c"),
        Check("record d", "no", "", "d:event: tracefs is not mounted", "mount it"),
        Check("record e", "in part", "", "tracefs is not mounted", "mount it"),
    ]
    costs = [
        PriceHere("/proc/slow", "a lock", None, "left out, as it takes long; --all reads it"),
        PriceHere("/proc/quick", "a lock", None, "read"),
    ]
    assert summary(rows, costs, 60).splitlines() == [
        "Usable: /proc/a",
        "",
        "Usable in part:",
        "  record e: tracefs is not mounted",
        "    -> mount it",
        "",
        "Not usable:",
        "  record b, record d: tracefs is not mounted",
        "    -> mount it",
        "  /proc/c: it is off",
        "    -> boot with c",
        "",
        "Left out, as reading it could hurt this host:",
        "  /proc/slow: as it takes long; --all reads it",
        "",
        "'mmscope doctor --all': what each of them gives, and what",
        "  reading it costs.",
    ]


def test_one_screen_fits_a_terminal() -> None:
    """Of some 40 lines; a kernel that lacks more has more remedies."""
    lines = summary(checks(), doctor.prices_here(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 48


@pytest.fixture
def page_owner_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of a kernel with page_owner, which is taken for a running host's."""
    root = tmp_path / "host"
    shutil.copytree(DATA, root)
    (root / "sys/kernel/debug/page_owner").write_text("")
    monkeypatch.setattr(prices, "is_live", lambda root: True)
    monkeypatch.setattr(samples, "is_live", lambda root: True)
    return root


def test_watch_of_a_kernel_with_page_owner(
    page_owner_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    plain = samples.Sampler._text

    def text(sampler: samples.Sampler, path: str) -> str:
        read.append(path)
        return plain(sampler, path)

    monkeypatch.setattr(samples.Sampler, "_text", text)
    check = doctor.watched(str(page_owner_host))
    assert "proc/buddyinfo" in read and "proc/pagetypeinfo" not in read
    assert check.usable == "in part"
    assert "page_owner is on: it would drain the per-CPU lists" in str(check.reason)
    assert "watch --all" in str(check.change)


def test_prices_of_this_host(page_owner_host: Path) -> None:
    here = {row.files: row.here for row in doctor.prices_here(str(page_owner_host))}
    assert here["/proc/kcore"] == here["/proc/zoneinfo"] == "read"
    assert here["/proc/pagetypeinfo"].startswith("left out, as page_owner is on")
    assert here[prices.ALLOC_TRACES].startswith("left out")
    assert "which is left behind if it gets no answer" in here[prices.MAPS]


def test_what_doctor_opens_on_this_machine() -> None:
    """Of what takes a lock for long nothing is read: opening it is enough."""
    script = (
        "import os, sys\n"
        "from mmscope.reports.commands import doctor\n"
        "read = []\n"
        "plain = open\n"
        "class Watched:\n"
        "    def __init__(self, path, mode): self.path, self.file = path, plain(path, mode)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): self.file.close()\n"
        "    def read(self, size): read.append(self.path); return self.file.read(size)\n"
        "doctor.open = Watched\n"
        "for path, gives in doctor.TEXT_SOURCES: doctor._text(path, gives)\n"
        "print(*read)\n"
    )
    result = children.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(result.stdout.split()) <= {"/proc/pressure/memory"}


def test_watch_on_this_machine() -> None:
    (check,) = [row for row in checks() if row.source == "watch"]
    assert check.usable in ("yes", "in part")


def test_the_summary_is_lines_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= doctor.WIDTH
    assert not any("\\n" in line for line in lines)


def test_all_of_it_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Check("/proc/zoneinfo", "no", "zones", "not there", None)
    price = PriceHere("/proc/*/maps", "mmap_lock", None, "yes")
    monkeypatch.setattr(doctor, "checks", lambda: [row])
    monkeypatch.setattr(doctor, "prices_here", lambda: [price])
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"sources": [dataclasses.asdict(row)], "prices": [dataclasses.asdict(price)]}
