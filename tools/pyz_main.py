# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What ``mmscope.pyz`` runs: unpacks itself once for each user, then starts the command from there.

Python cannot import compiled modules out of a zip. They go to ``$XDG_CACHE_HOME/mmscope/pyz`` (or
``~/.cache``), in a folder named by the hash of what is in it: 200 MB, readable by this user alone,
each part checked by its SHA-256 before, and renamed into place when it is whole. A folder that
somebody else could have written is not used, since what is in it would run as this user, often
root.

Runs on any Python 3.6 or newer, so that one that does not fit can be told why.
"""

import errno
import hashlib
import io
import json
import os
import pwd
import shutil
import sys
import tempfile
import zipfile
from typing import Any

ARCHIVE = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    """Unpack what is needed, and run the command; returns its exit code."""
    try:
        with zipfile.ZipFile(ARCHIVE) as archive:
            text = archive.read("manifest.json")
            manifest = json.loads(text.decode())
            abi = "cp{}{}{}".format(*sys.version_info[:2], sys.abiflags)
            reason = misfit(manifest, abi)
            if reason:
                return complain(reason)
            name = "{}-{}-{}".format(
                manifest["version"], abi, hashlib.sha256(text).hexdigest()[:16]
            )
            folder = os.path.join(cache(), name)
            if not is_whole(folder):
                unpack(archive, manifest, abi, folder)
    except zipfile.BadZipFile as error:
        return complain(f"is damaged ({error}); copy it again")
    except Refused as error:
        return complain(str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return complain(
            "cannot unpack itself: {}: {}; set XDG_CACHE_HOME to a folder {}".format(
                error.filename or "its cache folder",
                error.strerror,
                "with 250 MB free" if full else "that you may write to",
            )
        )
    sys.path[:1] = [os.path.join(folder, "app"), os.path.join(folder, "site")]
    if sys.argv[1:2] == ["drgn"]:
        from drgn.cli import _main  # what the script of that name calls

        del sys.argv[0]
        _main()
        return 0
    from mmscope.reports.commands.command import main as command

    return command()


class Refused(Exception):
    """It must not or cannot run from there. One line that says what to do."""


def complain(reason: str) -> int:
    """Say in one line why it does not run; the exit code."""
    print(f"{os.path.basename(ARCHIVE)}: {reason}", file=sys.stderr)
    return 2


def misfit(manifest: "dict[str, Any]", abi: str) -> "str | None":
    """Why this machine or its Python cannot use what is in the file; None if it can."""
    machine = os.uname().machine
    if machine != manifest["machine"]:
        return f"is for {manifest['machine']}; this machine is {machine}"
    if abi not in manifest["pythons"] or sys.implementation.name != "cpython":
        fitting = " or ".join(manifest["pythons"][name] for name in sorted(manifest["pythons"]))
        this = "{} {}.{}{}".format(sys.implementation.name, *sys.version_info[:2], sys.abiflags)
        return (
            f"is for CPython {fitting}; {sys.executable} is {this}; run it with one that fits, or "
            "build it with 'make dist DIST_PYTHON=…' (3.11 or newer)"
        )
    try:
        libc, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        here = tuple(map(int, version.split(".")[:2]))
    except (ValueError, OSError):
        libc, version, here = "no glibc", "", (0, 0)
    if here < tuple(manifest["glibc"]):
        needed = "{}.{}".format(*manifest["glibc"])
        return f"needs glibc {needed} or newer; this machine has {libc} {version}".rstrip()
    return None


def cache() -> str:
    """
    The folder to unpack to.

    :raises Refused: it, or one above it, can be written by another user; or it is mounted noexec.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            # Not $HOME, which sudo may leave to be the home of the user that called it.
            base = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache")
        except KeyError:
            raise Refused("this user has no home; set XDG_CACHE_HOME to a folder") from None
    folder = os.path.join(os.path.realpath(base), "mmscope", "pyz")
    umask = os.umask(0o077)
    os.makedirs(folder, exist_ok=True)
    os.umask(umask)
    above = os.path.realpath(folder)
    while True:
        status = os.stat(above)
        shared = status.st_mode & 0o022 and not status.st_mode & 0o1000
        if shared or status.st_uid not in (0, os.geteuid()):
            raise Refused(
                f"{above}: another user may write there, and so choose what runs here; set "
                "XDG_CACHE_HOME to a folder of your own"
            )
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise Refused(f"{folder}: is mounted noexec; set XDG_CACHE_HOME to a folder that is not")
    return folder


def is_whole(folder: str) -> bool:
    """Whether the folder is there with all its files in their size."""
    try:
        if os.lstat(folder).st_uid != os.geteuid():
            return False
        with open(os.path.join(folder, "sizes.json")) as file:
            sizes = json.load(file)
        return all(os.path.getsize(os.path.join(folder, name)) == sizes[name] for name in sizes)
    except (OSError, ValueError):
        return False


def unpack(archive: zipfile.ZipFile, manifest: "dict[str, Any]", abi: str, folder: str) -> None:
    """
    Make the folder, whole or not at all.

    :raises BadZipFile: a part is not what it was when the file was built.
    """
    beside = os.path.dirname(folder)
    temporary = tempfile.mkdtemp(prefix=".unpacking-", dir=beside)  # mode 0700
    replaced = tempfile.mkdtemp(prefix=".replaced-", dir=beside)
    try:
        sizes = {}
        for part in manifest["parts"]:
            if part["python"] not in (None, abi):
                continue
            data = archive.read(part["file"])
            if hashlib.sha256(data).hexdigest() != part["sha256"]:
                raise zipfile.BadZipFile(f"wrong hash of {part['file']}")
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                for info in inner.infolist():
                    name = f"{part['folder']}/{info.filename}"
                    if info.is_dir() or "/tests/" in name:
                        continue
                    inner.extract(info, os.path.join(temporary, part["folder"]))
                    sizes[name] = info.file_size
        with open(os.path.join(temporary, "sizes.json"), "w") as file:
            json.dump(sizes, file)
        if os.path.lexists(folder) and not is_whole(folder):
            os.rename(folder, os.path.join(replaced, "it"))
        try:
            os.rename(temporary, folder)
        except OSError:
            if not is_whole(folder):  # another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
