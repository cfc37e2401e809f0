# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The Debian packages under the systemd of Debian 13, in an emulated guest: a dump of the lab's real
kdump comes to /var/crash as kdump-tools writes it, and becomes a report without a person; so does
one that is unpacked where it lies; one that is not root's is left alone. guard runs under its
hardening, captures when a cgroup runs out of memory, and comes back when it is killed; perf records
under it; others are told in the journal.

    make systemd-try

The root is made by mmdebstrap, with the packages of ``make deb`` and what they depend on; the
kernel is the lab's. ``programs/systemd_guest.py`` runs in it. Costs: ROOM on disk while it runs, a
root (150 MB fetched), and 20 minutes of a quiet machine. Needs root.

Ends with 1 where something is not as it should be; how long it took is printed, not held. Cannot:
see a crash kernel boot this root: the lab's kdump has its own (``crashed.py``).
"""

import contextlib
import csv
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support")]

import children  # noqa: E402
import kernels  # noqa: E402
import machine  # noqa: E402
from architectures import AMD64  # noqa: E402
from archive import LabError  # noqa: E402
from crashed import crashed  # noqa: E402
from make_deb import MMDEBSTRAP, SUITE  # noqa: E402
from roles import resolve  # noqa: E402
from unit_figures import documented, exposure  # noqa: E402

PROGRAMS = HERE / "programs"
PACKAGES = ("systemd", "systemd-sysv", "linux-perf")
UNITS = ("mmscope-guard.service", "mmscope-crash.service", "mmscope-crash.path",
         "mmscope-crash.timer")  # fmt: skip
# Where others want the same CPUs it takes several times as long.
SECONDS = 4 * 3600
# What mmdebstrap starts and mounts ends with it, and it with us.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ROOM = 3 << 30
# live.py says why: "rep movsb" is emulated slowly. DuckDB's build has AVX2 in it wherever it runs.
MACHINE = (
    *("-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm", "-machine", "q35"),
    *("-smp", "1", "-m", "2G", "-no-reboot", "-nodefaults", "-display", "none"),
)
LINE = (
    "console=ttyS0 loglevel=4 panic=-1 systemd.firstboot=off systemd.show_status=0 "
    "systemd.mask=serial-getty@ttyS0.service systemd.mask=getty@tty1.service"
)
# QEMU 7.2 emulates what numpy sorts with wrongly.
NUMPY = 'Environment="NPY_DISABLE_CPU_FEATURES=AVX2 FMA3"'
CRASHES = "var/crash"
# The dump that lies there when the machine boots: as KDUMP_COMPRESSION=gzip leaves it.
EARLIER = "202611230100"
# Who is nobody's friend: in Ubuntu's /var/crash everybody may make a folder and a file.
NO_ONE, THEIRS = 65534, "202611230200"
SERVICE = """[Unit]
After=mmscope-crash.path

[Service]
Type=exec
ExecStart=/usr/bin/python3 -I /try/systemd_guest.py

[Install]
WantedBy=multi-user.target
"""
# An emulated CPU is some fifty times as slow.
SLOW = {
    "mmscope-guard": "/usr/bin/mmscope guard run --timeout 6000",
    "mmscope-crash": "/usr/bin/mmscope guard crash /var/crash --timeout 6000",
}


def say(text: str) -> None:
    print(f"  lab: {text}", file=sys.stderr, flush=True)


def packages() -> list[Path]:
    """
    What ``make deb`` made.

    :raises LabError: nothing.
    """
    debs = [path for path in (ROOT / "dist/deb").glob("*.deb") if "dbgsym" not in path.name]
    if len(debs) != 2:
        raise LabError("dist/deb has not the two packages: make deb")
    return sorted(debs)


def check(tree: Path) -> None:
    """
    What is installed is what is checked out here.

    :raises LabError: the packages were made of something else.
    """
    units = {path: Path("systemd/system", path.name[8:]) for path in ROOT.glob("debian/mmscope.*")}
    files = {path: Path("mmscope/mmscope", path.relative_to(ROOT))
             for pattern in ("*.py", "*.toml")
             for path in (ROOT / "reports/guard").rglob(pattern)}  # fmt: skip
    for own, installed in (*units.items(), *files.items()):
        if own.suffix in (".service", ".path", ".timer", ".py", ".toml"):
            there = tree / "usr/lib" / installed
            if not there.exists() or not filecmp.cmp(own, there, shallow=False):
                raise LabError(f"dist/deb has another {own.relative_to(ROOT)}: make deb")


def make_root(tree: Path, others: tuple[str, ...], enabled: tuple[str, ...]) -> None:
    """Debian with the packages in it, and others; with these of their units enabled."""
    debs = packages()
    hooks = (
        'mkdir "$1/debs"',
        *(f"copy-in {deb} /debs" for deb in debs),
        'chroot "$1" sh -c "apt-get -qq -y --no-install-recommends install /debs/*.deb"',
        'rm -r "$1/debs"',
        *([f'chroot "$1" systemctl enable {" ".join(enabled)}'] if enabled else []),
        'chroot "$1" systemd-machine-id-setup',
    )
    words = [*ALONE, *MMDEBSTRAP, "--variant=apt", f"--include={','.join(others)}"]
    words += [f"--customize-hook={hook}" for hook in hooks]
    # What it leaves when it is killed goes with the tree.
    environment = os.environ | {"TMPDIR": str(tree.parent)}
    children.run([*words, SUITE, str(tree)], check=True, env=environment)
    check(tree)


def add_trial(tree: Path, core: Path) -> None:
    """What is tried there: the program, the dump as kdump-tools writes it, and an earlier one."""
    (tree / "try").mkdir()
    shutil.copy(PROGRAMS / "systemd_guest.py", tree / "try")
    with (tree / "try/flat").open("wb") as flat:
        words = ["makedumpfile", "-F", "-c", "-d", "31", str(core)]
        children.run(words, stdout=flat, stderr=subprocess.DEVNULL, check=True)
    crashes = tree / CRASHES
    crashes.mkdir(exist_ok=True)
    crashes.chmod(0o3777)  # as apport of Ubuntu has it
    (crashes / EARLIER).mkdir()
    with (crashes / EARLIER / f"dump.{EARLIER}.gz").open("wb") as packed:
        children.run(["gzip", "-1c", tree / "try/flat"], stdout=packed, check=True)
    (crashes / THEIRS).mkdir()
    (crashes / THEIRS / f"dump.{THEIRS}").write_text("anything")
    for path in (crashes / THEIRS, crashes / THEIRS / f"dump.{THEIRS}"):
        os.chown(path, NO_ONE, NO_ONE)
    units = tree / "etc/systemd/system"
    (units / "try.service").write_text(SERVICE)
    (units / "multi-user.target.wants/try.service").symlink_to("../try.service")
    for name, words in SLOW.items():
        (units / f"{name}.service.d").mkdir()
        lines = f"[Service]\nExecStart=\nExecStart={words}\nCPUQuota=\n{NUMPY}\n"
        (units / f"{name}.service.d/emulated.conf").write_text(lines)


def boot(folder: Path, kernel: kernels.Kernel, image: Path) -> None:
    """
    Boot the image; the guest powers itself off.

    :raises LabError: it does not.
    """
    init, console = folder / "init", folder / "console.log"
    source = PROGRAMS / "switch_root.c"
    words = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, source]
    children.run(words, check=True)
    initramfs = machine.build_initramfs(folder, init, kernel.modules)
    line = f"{LINE} {AMD64.options} clearcpuid=141"
    drive = f"file={image},format=raw,if=virtio,cache=unsafe"
    qemu = children.start(
        [
            *("qemu-system-x86_64", *MACHINE, "-serial", f"file:{console}"),
            *("-kernel", kernel.vmlinuz, "-initrd", initramfs, "-append", line, "-drive", drive),
        ],
        stdin=subprocess.DEVNULL,
    )
    follow(qemu, console, "^try: ")


def follow(
    qemu: subprocess.Popen[Any], console: Path, pattern: str, seconds: int = SECONDS
) -> list[str]:
    """
    Say the console's lines that have a pattern until the guest has powered itself off; all lines.

    :raises LabError: it does not.
    """
    shown, lines = 0, list[str]()
    for _ in range(seconds):
        text = console.read_text(errors="replace") if console.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        for one in lines[shown:]:
            if re.search(pattern, one):
                say(one)
        shown = len(lines)
        with contextlib.suppress(subprocess.TimeoutExpired):
            qemu.wait(1)
            return lines
    raise LabError("the guest takes too long:\n" + "\n".join(lines[-20:]))


def wrong(
    said: dict[str, Any], logs: dict[str, str], profiles: list[dict[str, str]]
) -> Iterator[str]:
    """What is not as it should be, by what was said and by the rows of the profile."""
    yield from said.get("failed", [])
    if said["verify"].strip():
        yield f"systemd-analyze verify: {said['verify'].strip()}"
    dumps = wrong_dumps(said, logs["mmscope-crash.service"])
    for part in (dumps, wrong_guard(said, profiles)):
        try:
            yield from part
        except (KeyError, TypeError) as error:  # it did not come so far
            yield f"was not seen: {error}"
    whole = ("crash", "unpacked", "out_of_memory")
    for name, one in ((name, said.get(name) or {}) for name in whole):
        if not {"bundle", "report.html", "findings.txt"} <= one.get("files", {}).keys():
            yield f"{name}: {sorted(one.get('files', {}))}"
        events = [e for e in said["events"] if e.get("MMSCOPE_CAPTURE") == one.get("folder")]
        if [event.get("MMSCOPE_TRIGGER") for event in events] != [one.get("trigger")]:
            yield f"{name}: the journal does not have it: {said['events']}"


def wrong_dumps(said: dict[str, Any], log: str) -> Iterator[str]:
    boot_line = (said["boot"] or {}).get("not_read", "")
    if "is compressed; unpack it first: gunzip -k" not in boot_line:
        yield "the compressed dump that was there at boot is not said to be one"
    if set(said["waiting"].values()) != {"active"}:
        yield f"not waiting: {said['waiting']}"
    theirs = f"/var/crash/{THEIRS}/dump.{THEIRS}: its folder belongs to user {NO_ONE}; left alone"
    if log.count(theirs) != 1:
        yield f"a dump that is not root's is said {log.count(theirs)} times, not once"
    if said["while_it_was_written"] != "active" or said["too_early"] is not None:
        yield "a dump that is being written is not waited for"
    if not said["path_missed_it"]:
        yield "the path unit sees what is unpacked: the timer is of no use"
    for what, unit in (("path_started_it", "path"), ("timer_started_it", "timer")):
        if said[what] != f"mmscope-crash.{unit}":
            yield f"{what}: {said[what]}"
    for name in ("crash", "unpacked"):
        title = (said[name] or {}).get("title", "")
        if not title.startswith("The kernel crashed: Kernel panic"):
            yield f"{name}: the dump has no report: {title}"
    for name in ("boot_service", "crash_service", "unpacked_service"):
        if said[name]["ActiveState"] != "inactive" or said[name]["Result"] != "success":
            yield f"{name}: {said[name]}"
    if said["rebuilt_left"]:
        yield f"left: {said['rebuilt_left']}"


def wrong_guard(said: dict[str, Any], profiles: list[dict[str, str]]) -> Iterator[str]:
    one = said.get("out_of_memory") or {}
    if one.get("source") != "live":
        yield f"guard did not read the kernel's memory: {one.get('source')}: {one.get('log')}"
    if "python3" not in str([one.get("title"), one.get("also")]):
        yield f"guard did not read the kernel's log: {one.get('title')}, {one.get('also')}"
    recorded = sum(int(row["recorded"]) for row in profiles)
    for unit, figure in documented(said["systemd"]).items():
        if exposure(printed := said["security"].get(unit, "")) != figure:
            yield f"docs/guard.md has {figure} of {unit}: {printed}"
    if said["profile_service"]["Result"] != "success" or not recorded:
        yield f"perf recorded nothing in guard's unit: {said['profile_service']}: {said['profile']}"
    if said["guard_status"]["VmLck"].split()[0] == "0":
        yield "guard is not locked in memory"
    if said["guard_again"]["ActiveState"] != "active" or said["guard_ended"]["Result"] != "success":
        yield f"mmscope-guard.service: {said['guard_again']}, {said['guard_ended']}"
    cut = said["cut"] or {}
    if cut.get("state") != "cut short" or "bundle" not in cut.get("files", {}):
        yield f"what was being captured when guard was restarted is not kept: {cut}"


def tried(folder: Path, out: Path) -> None:
    """Make the root, boot it, and take off it what it left."""
    role = resolve("stable", say)
    kernel = kernels.get(role, say, symbols=False)
    core = crashed(role, say)[0] / "core"
    tree, image = folder / "tree", folder / "disk.ext4"
    say("making the root")
    make_root(tree, PACKAGES, UNITS[1:])
    add_trial(tree, core)
    words = ["mke2fs", "-q", "-t", "ext4", "-d", tree, image, str(ROOM >> 10)]
    children.run(words, check=True)
    shutil.rmtree(tree)
    boot(folder, kernel, image)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    files = ("/try/said.json", *(f"/try/{unit}.log" for unit in UNITS))
    for command in (
        *(f"dump {file} {out / Path(file).name}" for file in files),
        f"rdump /var/lib/mmscope/guard {out}",
    ):
        children.run(["debugfs", "-R", command, image], check=True, capture_output=True)
    shutil.copy(folder / "console.log", out)


def main() -> int:
    out = ROOT / "build/systemd-try"
    with tempfile.TemporaryDirectory(prefix="mmscope-systemd-") as made:
        try:
            tried(Path(made), out)
        finally:  # before their folder goes
            children.end_all()
    if not (out / "said.json").exists():
        raise LabError(f"the guest said nothing; {out}/console.log has its last words")
    said = json.loads((out / "said.json").read_text())
    show(said)
    logs = {unit: (out / f"{unit}.log").read_text() for unit in UNITS}
    table = out / "guard/recorded/profiles.csv"
    profiles = list(csv.DictReader(table.open())) if table.exists() else []
    found = list(wrong(said, logs, profiles))
    for line in found:
        print(f"WRONG: {line}")
    return 1 if found else 0


def show(said: dict[str, Any]) -> None:
    """What was seen."""
    print(said["systemd"])
    for unit, words in said["security"].items():
        print(f"{unit}: {words}")
    for what, seconds in said["seconds"].items():
        print(f"{what}: {seconds} s")
    for what in ("crash", "unpacked", "out_of_memory"):
        one = said.get(what) or {}
        print(f"{what}: {one.get('title')}: {one.get('seconds')} s, {one.get('cpu_seconds')} s CPU")
    for what in ("boot_service", "crash_service", "unpacked_service", "guard_service",
                 "guard_status", "profile_service", "profile"):  # fmt: skip
        print(f"{what}: {said.get(what)}")


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"systemd-try: {error}")
