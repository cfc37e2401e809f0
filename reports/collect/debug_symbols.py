# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command that fetches debug symbols of the running kernel from its distribution.

By ``os-release(5)``: its ID, or else the first of ID_LIKE that is known here. A kernel whose
release does not look like one of the distribution's (a container on another host, a kernel of one's
own) gets the advice that its release alone gives. Where no package is known for certain, that is
said.

Names of packages and repositories: drgn's guide to debugging symbols (Debian, Ubuntu, Fedora); Red
Hat's guides for RHEL 8 to 10 (``rhel-N-for-ARCH-baseos-debug-rpms``); zypper's ``--plus-content
debug``; Oracle's archive of debuginfo; Azure Linux's ``azurelinux-repos-debug``.
"""

import re

from mmscope.drgn.opening.target import where_symbols_are
from mmscope.perf.perf_events import distributions

# ID to what its kernels' releases look like, and how to get the symbols. {flavour} is the end of
# the release, {major} the beginning of VERSION_ID.
DISTRIBUTIONS = {
    "debian": (r"-(amd64|arm64|686|\w+-(amd64|arm64))\Z", "apt install linux-image-{release}-dbg"),
    "ubuntu": (
        r"-[a-z][a-z0-9-]*\Z",
        "apt install ubuntu-dbgsym-keyring; add 'deb http://ddebs.ubuntu.com {codename} main' and "
        "the same of {codename}-updates to /etc/apt/sources.list.d/ddebs.list; apt update; "
        "apt install linux-image-{release}-dbgsym",
    ),
    "fedora": (r"\.fc[0-9]+\.", "dnf debuginfo-install kernel-{release}"),
    "ol": (
        r"\.el[0-9]+",
        "dnf install https://oss.oracle.com/ol{major}/debuginfo/{uek}-debuginfo-{release}.rpm "
        "https://oss.oracle.com/ol{major}/debuginfo/{uek}-debuginfo-common-{common}{release}.rpm",
    ),
    "rhel": (
        r"\.el[0-9]+",
        "subscription-manager repos --enable rhel-{major}-for-{machine}-baseos-debug-rpms; "
        "dnf debuginfo-install kernel-{release}",
    ),
    "centos": (r"\.el[0-9]+", "dnf debuginfo-install kernel-{release}"),
    "rocky": (r"\.el[0-9]+", "dnf debuginfo-install kernel-{release}"),
    "almalinux": (r"\.el[0-9]+", "dnf debuginfo-install kernel-{release}"),
    "amzn": (r"\.amzn[0-9]+\.", "debuginfo-install kernel-{release}"),
    "suse": (
        r"-[a-z][a-z0-9_]*\Z",
        "zypper --plus-content debug install kernel-{flavour}-debuginfo, of the version that "
        "'rpm -q kernel-{flavour}' says",
    ),
    "azurelinux": (
        r"\.azl[0-9]+\Z",
        "tdnf install azurelinux-repos-debug, and from there the distribution's debug symbols of "
        "this kernel",
    ),
    "arch": (r"", "the distribution's debug symbols of this kernel: no package of them is known"),
}
OTHERWISE = "or give --symbols VMLINUX"


def where_to_get_symbols(release: str, machine: str, system: dict[str, str]) -> str:
    """
    Advice how to get debug symbols of the running kernel.

    :param release: as ``uname -r`` says it.
    :param machine: as ``uname -m`` says it.
    :param system: of ``os_release()``.
    """
    known = next((name for name in distributions(system) if name in DISTRIBUTIONS), None)
    if known is None or not re.search(DISTRIBUTIONS[known][0], release):
        return where_symbols_are(release)
    uek = "uek" in release
    command = DISTRIBUTIONS[known][1].format(
        release=release,
        machine=machine,
        major=system.get("VERSION_ID", "").partition(".")[0],
        # A derivative of Ubuntu has a codename of its own.
        codename=system.get("UBUNTU_CODENAME") or system.get("VERSION_CODENAME") or "CODENAME",
        flavour=release.rpartition("-")[2],
        uek="kernel-uek" if uek else "kernel",
        common="" if uek else f"{machine}-",
    )
    return f"{command}; {OTHERWISE}"
