# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook of deploy/crash-kernel as RHEL's and Fedora's own scripts call it: ``kdump.sh`` of
kdump-utils runs in the initramfs that its dracut module makes, with what docs/guard.md writes into
/etc/kdump.conf, over what the lab's real crash kernel saved.

    make kdump-utils-try KDUMP_UTILS=FOLDER      a checkout of github.com/rhkdump/kdump-utils

The machine is Debian 13's root with the packages of ``make deb``, mounted as /sysroot, and Debian's
dracut. Tried are ``kdump_post`` behind a dump that was saved and one that was not, ``kdump_pre``, a
root that cannot be written yet, and a command that fails. Costs: a root (200 MB fetched), 2 GiB of
disk while it runs, and three minutes. Needs root.

Cannot: boot it. It runs in namespaces of its own, where /proc has no vmcore: that is a file in
/dev, and so it is called in ``kdump.sh``. Nobody reboots: ``systemctl`` says what it was asked for.
Ends with 1 where something is not as it should be.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import children
from archive import LabError
from crash_kernel import ROOT, bundles, unlike
from crashed import crashed
from roles import resolve
from systemd_try import ALONE, make_root, say

from mmscope.reports.bundle.bundle import Bundle

PACKAGES = ("systemd", "systemd-sysv", "udev", "linux-image-cloud-amd64", "dracut",
            "squashfs-tools", "kexec-tools", "makedumpfile", "gawk")  # fmt: skip
CORE = "/dev/vmcore"
HOOK = "usr/libexec/mmscope/crash-kernel"
# Its words, of mkdumprd, but for those about the devices of the machine that it runs on.
DRACUT = (
    "dracut --force --quiet --no-hostonly --no-hostonly-default-device --no-compress "
    "--no-early-microcode --no-kernel --add kdumpbase --omit 'rdma plymouth resume ifcfg' "
    "--install 'grep id' "  # which Fedora's dracut brings
    "--mount '/dev/vda /sysroot ext4 rw' /kdump.img $(ls /lib/modules)"
)
# $1: the root, $2: a command in it.
IN_ROOT = """set -e
for each in proc sys dev; do mount --rbind /$each "$1/$each"; done
exec chroot "$1" /bin/bash -c "$2"
"""
# $1: the initramfs, $2: the root, $3: the dump, $4: options that the root is mounted with. As
# things are mounted there when systemd starts kdump-capture.service.
AS_BOOTED = f"""set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount -t tmpfs -o size=4G dev "$1/dev"
mount -t tmpfs run "$1/run"
mount -t tmpfs tmp "$1/tmp"
for each in null zero urandom; do cp -a /dev/$each "$1/dev/"; done
mkdir "$1/dev/shm"
cp --sparse=always "$3" "$1{CORE}"
mount --bind "$2" "$1/sysroot"
mount -o "remount,bind,$4" "$1/sysroot"
cd "$1"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DRACUT_SYSTEMD=1 NEWROOT=/sysroot \\
  MMSCOPE_CORE={CORE} setpriv --bounding-set=-sys_boot --inh-caps=-all chroot "$1" /bin/kdump.sh
"""
# name, lines of kdump.conf beside the document's, words that change in it, options of /sysroot
CASES = (
    ("kdump_post", "", ("", ""), "rw"),
    ("not_saved", "core_collector false", ("", ""), "rw"),
    ("kdump_pre", "", ("kdump_post", "kdump_pre"), "rw"),
    ("read_only", "", ("kdump_post", "kdump_pre"), "ro"),
    ("command_fails", "", ("", ""), "rw"),
)


def documented() -> str:
    """What docs/guard.md writes into /etc/kdump.conf."""
    (lines,) = re.findall(
        r"^```\n([^`]*kdump_post [^`]*)^```", (ROOT / "docs/guard.md").read_text(), re.M
    )
    return str(lines)


def add_kdump_utils(tree: Path, checkout: Path) -> None:
    """Its files, as its Makefile installs them, and the document's lines of kdump.conf."""
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "source"
        shutil.copytree(checkout, source)
        words = ["make", "-s", "-C", source, "install", f"DESTDIR={tree}"]
        children.run(words, check=True, stdout=subprocess.DEVNULL)
    with (tree / "etc/kdump.conf").open("a") as conf:
        conf.write(documented())
    # Where RHEL has it.
    (tree / "usr/sbin/makedumpfile").symlink_to("../bin/makedumpfile")
    # Time is not tried here, on a machine that is busy.
    hook = tree / HOOK
    hook.write_text(hook.read_text().replace(" seconds=150\n", " seconds=1500\n"))


def make_initramfs(tree: Path, folder: Path) -> Path:
    """The initramfs of the crash kernel, unpacked."""
    words = [*ALONE, "sh", "-c", IN_ROOT, "sh", tree, f"IN_KDUMP=1 {DRACUT}"]
    children.run(words, check=True)
    initramfs = folder / "initramfs"
    initramfs.mkdir()
    with (tree / "kdump.img").open("rb") as image:
        words = ["cpio", "--extract", "--quiet", "--make-directories", "--no-absolute-filenames"]
        children.run(words, cwd=initramfs, stdin=image, check=True)
    script = initramfs / "usr/bin/kdump.sh"
    script.write_text(script.read_text().replace("/proc/vmcore", CORE))
    said = initramfs / "usr/bin/systemctl"
    said.unlink()
    said.write_text('#!/bin/sh\necho "systemctl $*" >> /asked\n')
    said.chmod(0o755)
    return initramfs


def tried(tree: Path, initramfs: Path, core: Path, dump: Bundle) -> Iterator[str]:
    """What is not as it should be."""
    conf, crash = initramfs / "etc/kdump.conf", tree / "var/crash"
    # Before the path stands the device of the root, which is that of this machine: without, it is
    # what is mounted as /sysroot.
    *lines, _, path = conf.read_text().splitlines(keepends=True)
    written = "".join([*lines, path])
    command = tree / "usr/bin/mmscope"
    for name, more, (old, new), options in CASES:
        shutil.rmtree(crash, ignore_errors=True)
        crash.mkdir()
        (initramfs / "asked").unlink(missing_ok=True)
        conf.write_text(written.replace(old, new) + more + "\n")
        if name == "command_fails":
            command.write_text("#!/bin/sh\nexit 3\n")
        words = [*ALONE, "sh", "-c", AS_BOOTED, "sh", initramfs, tree, core, options]
        done = children.run(words, capture_output=True, text=True, timeout=3600)
        asked = (initramfs / "asked").read_text() if (initramfs / "asked").exists() else ""
        saved = [path.name for path in crash.glob("*/vmcore")]
        left = bundles(crash)
        print(
            f"{name}: exit status {done.returncode}; {asked.split()}; saved {saved}; left {[*left]}"
        )
        print(done.stdout + done.stderr)
        if (done.returncode == 0) != (name != "not_saved"):
            yield f"{name}: kdump.sh ended with {done.returncode}"
        if ("reboot -f" in asked) != (name != "not_saved"):
            yield f"{name}: the machine is not to reboot: {asked}"
        if bool(saved) != (name != "not_saved"):
            yield f"{name}: the dump"
        if {*left} != (set() if name in ("read_only", "command_fails") else {"first", "all"}):
            yield f"{name}: left {[*left]}"
        if done.stdout.count("verdict ") != {"command_fails": 0, "read_only": 1}.get(name, 2):
            yield f"{name}: `why` did not say what it should"
        for which, bundle in left.items():
            yield from (f"{name}: {which}: {what}" for what in unlike(bundle, dump))


def main() -> int:
    """Make the root and its initramfs, and run kdump.sh there."""
    with tempfile.TemporaryDirectory(prefix="mmscope-kdump-utils-") as made:
        folder = Path(made)
        try:
            core = crashed(resolve("stable", say), say)[0] / "core"
            say("making the root")
            make_root(folder / "tree", PACKAGES, ())
            add_kdump_utils(folder / "tree", Path(sys.argv[1]))
            say("making the initramfs")
            initramfs = make_initramfs(folder / "tree", folder)
            words = [sys.executable, "-m", "mmscope", "collect", "--core", core, "--no-findings"]
            children.run([*words, "--jobs", "1", "-o", folder / "dump"], cwd=ROOT, check=True)
            found = list(tried(folder / "tree", initramfs, core, Bundle(folder / "dump")))
        except LabError as error:
            sys.exit(f"kdump-utils-try: {error}")
        finally:
            children.end_all()
    for line in found:
        print(f"WRONG: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    children.exit_if_killed()
    os.umask(0o022)
    sys.exit(main())
