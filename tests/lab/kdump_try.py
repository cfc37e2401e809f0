# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The Debian packages beside kdump-tools of Debian 13, in an emulated guest: kdump-tools loads the
crash kernel, with the crashkernel=256M of docs/guard.md, the machine crashes by sysrq, in the crash
kernel systemd runs ``mmscope-crash-kernel`` before the dump, and the machine reboots. What the unit
read there is, cell by cell, what is read here of the dump that kdump-tools wrote behind it.

    make kdump-try

All of the machine is Debian's, by mmdebstrap: kernel, systemd, initramfs-tools, kexec-tools,
makedumpfile, and the packages of ``make deb``. ``programs/kdump_guest.py`` runs in it. Nothing but
the unit's time is changed: an emulated CPU is some fifty times as slow. Costs: ROOM on disk while
it runs, a root (150 MB fetched), three boots and ten minutes of a quiet machine. Needs root.

Ends with 1 where something is not as it should be.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
from architectures import AMD64
from archive import LabError
from crash_kernel import ROOT, bundles
from systemd_try import LINE, NUMPY, follow, make_root, say

from mmscope.reports.bundle.bundle import Bundle

PROGRAMS = Path(__file__).resolve().parent / "programs"
PACKAGES = ("systemd", "systemd-sysv", "udev", "linux-image-cloud-amd64", "initramfs-tools", "zstd",
            "kdump-tools", "makedumpfile")  # fmt: skip
UNIT = "mmscope-crash-kernel.service"
ROOM = 3 << 30
SECONDS = 3 * 3600
MEMORY = "1536M"
# systemd_try.py says why; with a reboot, which is what is tried.
MACHINE = (
    *("-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm", "-machine", "q35"),
    *("-smp", "1", "-m", MEMORY, "-nodefaults", "-display", "none"),
)
SERVICE = """[Unit]
After=kdump-tools.service

[Service]
Type=exec
ExecStart=/usr/bin/python3 -I /try/kdump_guest.py

[Install]
WantedBy=multi-user.target
"""
SLOW = f"""[Service]
ExecStart=
ExecStart=-/usr/libexec/mmscope/crash-kernel /var/crash 6000
TimeoutStartSec=6600
{NUMPY}
"""


def add_trial(tree: Path) -> None:
    """What is tried there, and a journal that outlasts a boot."""
    (tree / "try").mkdir()
    shutil.copy(PROGRAMS / "kdump_guest.py", tree / "try")
    (tree / "var/log/journal").mkdir(exist_ok=True)
    (tree / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 0\n")
    units = tree / "etc/systemd/system"
    (units / "try.service").write_text(SERVICE)
    (units / "multi-user.target.wants/try.service").symlink_to("../try.service")
    (units / f"{UNIT}.d").mkdir()
    (units / f"{UNIT}.d/emulated.conf").write_text(SLOW)


def boot(folder: Path, image: Path) -> list[str]:
    """
    Boot the image as its boot loader would; the guest crashes, reboots and powers itself off.
    Returns what was on its console.

    :raises LabError: it does not.
    """
    console = folder / "console.log"
    line = f"root=/dev/vda rw {LINE} {AMD64.options} clearcpuid=141 crashkernel=256M"
    drive = f"file={image},format=raw,if=virtio,cache=unsafe"
    qemu = children.start(
        [
            *("qemu-system-x86_64", *MACHINE, "-serial", f"file:{console}"),
            *("-kernel", folder / "vmlinuz", "-initrd", folder / "initrd.img"),
            *("-append", line, "-drive", drive),
        ],
        stdin=subprocess.DEVNULL,
    )
    return follow(qemu, console, "try: |kdump-tools|mmscope|verdict", SECONDS)


def messages(journal: str, boot_id: str, unit: str) -> list[str]:
    """What a unit said in one boot, of the journal as JSON."""
    entries = [json.loads(line) for line in journal.splitlines() if line.startswith("{")]
    return [
        str(entry.get("MESSAGE"))
        for entry in entries
        if entry["_BOOT_ID"] == boot_id and unit in (entry.get("_SYSTEMD_UNIT"), entry.get("UNIT"))
    ]


def wrong(boots: list[dict[str, str]], journal: str, crash: Path) -> Iterator[str]:
    """What is not as it should be, by what the guest said and left."""
    if len({boot["boot_id"] for boot in boots}) != 2:
        yield f"the machine did not come back: {boots}"
        return
    if boots[0]["loaded"] != "1" or "ready to kdump" not in boots[0]["kdump"]:
        yield f"kdump-tools loaded no crash kernel: {boots[0]}"
    for one in boots:
        if one["hook"].splitlines() != ["ActiveState=inactive", "ConditionResult=no"]:
            yield f"the unit runs where nothing crashed: {one['hook']}"
    ids = re.findall(r'"_BOOT_ID":"([0-9a-f]+)"', journal)
    between = [each for each in dict.fromkeys(ids) if each not in {b["boot_id"] for b in boots}]
    if len(between) != 1:
        yield f"the journal has not one boot between the two, but {len(between)}"
    said = [line for each in between for line in messages(journal, each, UNIT)]
    print(f"{UNIT} in the crash kernel:", *said, sep="\n  ")
    left = bundles(crash)
    if left.keys() != {"first", "all"}:
        yield f"the unit left {[*left]}"
    if sum(line.startswith("verdict ") for line in said) != 2:
        yield "`why` did not say what it should"
    dumps = list(crash.glob("2*/dump.2*"))
    if len(dumps) != 1:
        yield f"kdump-tools left {[path.name for path in crash.glob('2*/*')]}"
        return
    yield from unlike(left, rebuilt(dumps[0]), crash / "dump")


def rebuilt(flat: Path) -> Path:
    """A flattened dump as it is read."""
    core = flat.with_name("core")
    with flat.open("rb") as source:
        children.run(
            ["makedumpfile", "-R", core], stdin=source, check=True, stdout=subprocess.DEVNULL
        )
    return core


def unlike(left: dict[str, Any], core: Path, folder: Path) -> Iterator[str]:
    """
    Tables of what was read in the crash kernel that those of the dump are not. The dump lacks the
    pages of processes and files (``-d 31``), which no table needs.
    """
    words = [sys.executable, "-m", "mmscope", "collect", "--core", core, "-o", folder]
    done = children.run([*words, "--no-findings", "--jobs", "1"], cwd=ROOT)
    if done.returncode:
        yield f"the dump is not read in full: exit status {done.returncode}"
    if done.returncode > 1:
        return
    dump = Bundle(folder)
    for name, bundle in left.items():
        failed = (s for s in bundle.sections if s.status == "failed")
        yield from (f"{name}: {s.section}: {s.message}" for s in failed)
        tables = bundle.tables.keys() - {"sections"}
        unlike = {
            table for table in tables
            if table not in dump.tables or list(bundle.rows(table)) != list(dump.rows(table))
        }  # fmt: skip
        print(f"{name}: {len(tables - unlike)} tables are those of the dump")
        yield from (f"{name}: {table} is not that of the dump" for table in sorted(unlike))
    if missing := dump.tables.keys() - left.get("all", dump).tables.keys():
        yield f"all: not there: {sorted(missing)}"


def make_image(folder: Path) -> Path:
    """The disk, and beside it the kernel and the initramfs, as a boot loader would take them."""
    tree, image = folder / "tree", folder / "disk.ext4"
    say("making the root")
    make_root(tree, PACKAGES, (UNIT,))
    add_trial(tree)
    for name in ("vmlinuz", "initrd.img"):
        (path,) = (tree / "boot").glob(f"{name}-*")
        shutil.copy(path, folder / name)
    children.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, image, str(ROOM >> 10)], check=True)
    shutil.rmtree(tree)
    return image


def tried(folder: Path) -> list[str]:
    """Boot it, and take off it what it left; what is wrong with that."""
    image, out = make_image(folder), folder / "out"
    say("booting")
    lines = boot(folder, image)
    out.mkdir()
    for place in ("/try", "/var/crash"):
        words = ["debugfs", "-R", f"rdump {place} {out}", image]
        children.run(words, check=True, capture_output=True)
    journal = out / "try/journal.json"
    if not journal.exists():
        raise LabError("the guest did not come to its end:\n" + "\n".join(lines[-30:]))
    boots = json.loads((out / "try/said.json").read_text())
    return list(wrong(boots, journal.read_text(), out / "crash"))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mmscope-kdump-") as made:
        try:
            found = tried(Path(made))
        finally:  # before their folder goes
            children.end_all()
    for line in found:
        print(f"WRONG: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"kdump-try: {error}")
