# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Debian's archive, as the lab uses it: apt with lists and a cache of its own, which installs nothing,
needs no root, and asks the mirror that the machine's own configuration names.

Costs: the package lists of one suite (some MB), fetched on every :func:`updated`; kept in
``$XDG_CACHE_HOME/mmscope/lab/apt``.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class LabError(Exception):
    """What the lab needs is missing, or a guest failed. The first line says what to do."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/mmscope/lab``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmscope" / "lab"


def newest_first(releases: Iterable[str]) -> list[str]:
    """Sorted by the numbers in them."""
    return sorted(
        releases,
        key=lambda release: [int(part) for part in re.findall(r"\d+", release)],
        reverse=True,
    )


def left(name: str) -> bool:
    """
    Whether a release or a package is of a series that is to count as gone from archive and cache.

    ``MMSCOPE_LAB_WITHOUT=7.2,7.3`` makes today a day on which these have left.
    """
    gone = [series for series in os.environ.get("MMSCOPE_LAB_WITHOUT", "").split(",") if series]
    return any(re.search(rf"(?<![\d.]){re.escape(series)}(?!\d)", name) for series in gone)


def apt_options(suite: str, architecture: str = "amd64") -> list[str]:
    """
    Options that make apt see one suite of the machine's mirror, with state of its own.

    :param architecture: whose packages; they are fetched, and run nowhere but in a guest.
    """
    folder = cache_folder() / "apt" / f"{suite}-{architecture}"
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not KEYRING.exists():
        raise LabError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": os.devnull,  # what the machine has installed is no concern of ours
        "Dir::Cache": folder,
        "Acquire::Languages": "none",
        # As root, apt would else hand downloads to a user who cannot reach the cache.
        "APT::Sandbox::User": "root",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def updated(suite: str, architecture: str = "amd64") -> list[str]:
    """
    The same options, with the suite's package lists as they are now.

    :raises LabError: the suite cannot be read.
    """
    options = apt_options(suite, architecture)
    # apt does not wait for its own lock.
    with (cache_folder() / "apt" / f"lock-{suite}-{architecture}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("apt-get", *options, "update", "--quiet=2", "--error-on=any")
    return options


def _mirror() -> str:
    """The Debian mirror of the machine's own apt configuration."""
    found = run(
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN)|$(LABEL)|$(REPO_URI)",
        "Created-By: Packages",
    )
    for line in found.splitlines():
        origin, label, uri = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return uri
    raise LabError(
        "apt knows no Debian mirror on this machine: add one to its sources and run apt-get update"
    )


def run(*command: str, cwd: Path | None = None) -> str:
    """What *command* prints; a :class:`LabError` with its last words if it fails."""
    # Words are searched for in what apt prints.
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        raise LabError(
            f"{command[0]} is not on this machine: the lab takes its kernels from Debian's archive"
        ) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or error.stdout.strip()
        words = " ".join(word for word in command if "=" not in word and word != "-o")
        raise LabError(f"{words[:80]} failed: {said[-500:]}") from None
