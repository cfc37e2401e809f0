# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The Debian packages under the systemd of Debian 13, in an emulated guest: a dump of the lab's real
kdump comes to /var/crash as kdump-tools writes it, and becomes a report without a person; guard
runs under its hardening and captures by hand; others are told in the journal.

    make systemd-try

The root is made by mmdebstrap, with the packages of ``make deb`` and what they depend on; the
kernel is the lab's. ``programs/systemd_guest.py`` runs in it. Costs: ROOM on disk while it runs, a
root (150 MB fetched), and a quarter of an hour. Needs root.

Ends with 1 where something is not as it should be; how long it took is printed, not held. Cannot:
see a crash kernel boot this root: the lab's kdump has its own (``crashed.py``).
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tools")]

import kernels  # noqa: E402
import machine  # noqa: E402
from architectures import AMD64  # noqa: E402
from archive import LabError  # noqa: E402
from children import DIES_WITH_US  # noqa: E402
from crashed import crashed  # noqa: E402
from make_deb import MMDEBSTRAP, SUITE  # noqa: E402
from roles import resolve  # noqa: E402

PROGRAMS = HERE / "programs"
PACKAGES = ("systemd", "systemd-sysv")
UNITS = ("mmscope-guard.service", "mmscope-crash.service", "mmscope-crash.path")
SECONDS = 5400
ROOM = 3 << 30
# live.py says why: AVX2 is emulated wrongly, "rep movsb" slowly.
MACHINE = (
    *("-accel", "tcg,thread=single", "-cpu", "max,-avx2,-erms,-fsrm", "-machine", "q35"),
    *("-smp", "1", "-m", "2G", "-no-reboot", "-nodefaults", "-display", "none"),
)
LINE = (
    "console=ttyS0 loglevel=4 panic=-1 systemd.firstboot=off systemd.show_status=0 "
    "systemd.mask=serial-getty@ttyS0.service systemd.mask=getty@tty1.service"
)
# The dump that lies there when the machine boots: as KDUMP_COMPRESSION=gzip leaves it.
EARLIER = "var/crash/202611230100/dump.202611230100.gz"
SERVICE = """[Unit]
After=mmscope-crash.path

[Service]
Type=exec
ExecStart=/usr/bin/python3 -I /try/systemd_guest.py

[Install]
WantedBy=multi-user.target
"""
# An emulated CPU is some fifty times as slow.
SLOW = """[Service]
ExecStart=
ExecStart=/usr/bin/mmscope guard run --cpu 90 --timeout 3000
"""


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


def make_root(tree: Path) -> None:
    """Debian with systemd as its init and the packages in it."""
    debs = packages()
    hooks = (
        'mkdir "$1/debs"',
        *(f"copy-in {deb} /debs" for deb in debs),
        'chroot "$1" sh -c "apt-get -qq -y --no-install-recommends install /debs/*.deb"',
        'rm -r "$1/debs"',
        'chroot "$1" systemctl enable mmscope-crash.path mmscope-crash.service',
        'chroot "$1" systemd-machine-id-setup',
    )
    words = [*MMDEBSTRAP, "--variant=apt", f"--include={','.join(PACKAGES)}"]
    words += [f"--customize-hook={hook}" for hook in hooks]
    subprocess.run([*words, SUITE, str(tree)], check=True)


def add_trial(tree: Path, core: Path) -> None:
    """What is tried there: the program, the dump as kdump-tools writes it, and an earlier one."""
    (tree / "try").mkdir()
    shutil.copy(PROGRAMS / "systemd_guest.py", tree / "try")
    with (tree / "try/flat").open("wb") as flat:
        words = ["makedumpfile", "-F", "-c", "-d", "31", str(core)]
        subprocess.run(words, stdout=flat, stderr=subprocess.DEVNULL, check=True)
    (tree / EARLIER).parent.mkdir(parents=True)
    with (tree / EARLIER).open("wb") as packed:
        subprocess.run(["gzip", "-c", __file__], stdout=packed, check=True)
    units = tree / "etc/systemd/system"
    (units / "try.service").write_text(SERVICE)
    (units / "multi-user.target.wants/try.service").symlink_to("../try.service")
    (units / "mmscope-guard.service.d").mkdir()
    (units / "mmscope-guard.service.d/emulated.conf").write_text(SLOW)


def boot(folder: Path, kernel: kernels.Kernel, image: Path) -> None:
    """
    Boot the image; the guest powers itself off.

    :raises LabError: it does not.
    """
    init, console = folder / "init", folder / "console.log"
    source = PROGRAMS / "switch_root.c"
    words = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, source]
    subprocess.run(words, check=True)
    initramfs = machine.build_initramfs(folder, init, kernel.modules)
    line = f"{LINE} {AMD64.options} clearcpuid=141"
    drive = f"file={image},format=raw,if=virtio,cache=unsafe"
    qemu = subprocess.Popen(
        [
            *(*DIES_WITH_US, "qemu-system-x86_64", *MACHINE, "-serial", f"file:{console}"),
            *("-kernel", kernel.vmlinuz, "-initrd", initramfs, "-append", line, "-drive", drive),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        shown = 0
        for _ in range(SECONDS):
            text = console.read_text(errors="replace") if console.exists() else ""
            lines = text[: text.rfind("\n") + 1].splitlines()
            for one in lines[shown:]:
                if one.startswith("try: "):
                    say(one)
            shown = len(lines)
            try:
                qemu.wait(1)
                return
            except subprocess.TimeoutExpired:
                pass
        raise LabError("the guest takes too long:\n" + "\n".join(lines[-20:]))
    finally:
        qemu.kill()
        qemu.wait()


def wrong(said: dict[str, Any]) -> Iterator[str]:
    """What is not as it should be."""
    yield from said.get("failed", [])
    if said["verify"].strip():
        yield f"systemd-analyze verify: {said['verify'].strip()}"
    boot_line = (said["boot"] or {}).get("not_read", "")
    if "is compressed; unpack it first: gunzip -k" not in boot_line:
        yield "the compressed dump that was there at boot is not said to be one"
    if said["path"]["ActiveState"] != "active":
        yield f"mmscope-crash.path is {said['path']['ActiveState']}"
    if said["while_it_was_written"] != "active" or said["too_early"] is not None:
        yield "a dump that is being written is not waited for"
    crash = said["crash"] or {}
    if not crash.get("title", "").startswith("The kernel crashed: Kernel panic"):
        yield f"the dump has no report: {crash.get('title')}"
    if said["crash_service"]["Result"] != "success" or said["rebuilt_left"]:
        yield f"mmscope-crash.service: {said['crash_service']['Result']}, {said['rebuilt_left']}"
    hand = said["by_hand"] or {}
    if hand.get("source") != "live":
        yield f"guard did not read the kernel's memory: {hand.get('source')}: {hand.get('log')}"
    for name, one in (("crash", crash), ("by-hand", hand)):
        if not {"bundle", "report.html", "findings.txt"} <= one.get("files", {}).keys():
            yield f"{name}: {sorted(one.get('files', {}))}"
        events = [e for e in said["events"] if e.get("MMSCOPE_CAPTURE") == one.get("folder")]
        if [event.get("MMSCOPE_TRIGGER") for event in events] != [name]:
            yield f"{name}: the journal does not have it: {said['events']}"
    if said["guard_status"]["VmLck"].split()[0] == "0":
        yield "guard is not locked in memory"
    if said["guard_ended"]["Result"] != "success":
        yield f"mmscope-guard.service: {said['guard_ended']}"


def main() -> int:
    role = resolve("stable", say)
    kernel = kernels.get(role, say, symbols=False)
    core = crashed(role, say)[0] / "core"
    with tempfile.TemporaryDirectory(prefix="mmscope-systemd-") as made:
        folder = Path(made)
        tree, image = folder / "tree", folder / "disk.ext4"
        say("making the root")
        make_root(tree)
        add_trial(tree, core)
        size = str(ROOM >> 10)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, image, size], check=True)
        shutil.rmtree(tree)
        boot(folder, kernel, image)
        out = ROOT / "build/systemd-try"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for what in ("/try/said.json", *(f"/try/{unit}.log" for unit in UNITS)):
            dump = f"dump {what} {out / Path(what).name}"
            subprocess.run(["debugfs", "-R", dump, image], check=True, capture_output=True)
        subprocess.run(
            ["debugfs", "-R", f"rdump /var/lib/mmscope/guard {out}", image],
            check=True,
            capture_output=True,
        )
        shutil.copy(folder / "console.log", out)
    if not (out / "said.json").exists():
        raise LabError(f"the guest said nothing; {out}/console.log has its last words")
    said = json.loads((out / "said.json").read_text())
    show(said)
    found = list(wrong(said))
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
    for what in ("crash", "by_hand"):
        one = said.get(what) or {}
        print(f"{what}: {one.get('title')}: {one.get('seconds')} s, {one.get('cpu_seconds')} s CPU")
    for what in ("boot_service", "crash_service", "guard_service", "guard_status"):
        print(f"{what}: {said.get(what)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"systemd-try: {error}")
