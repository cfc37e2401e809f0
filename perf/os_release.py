# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Which distribution this is, by ``os-release(5)``: its ID, then what ID_LIKE says it is made of.

Looks, and changes nothing. Cannot know whose kernel runs: a container has the kernel of another
host.
"""

import re
from pathlib import Path


def read_os_release(text: str) -> dict[str, str]:
    """The variables of an ``os-release`` file."""
    found = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"([A-Z_0-9]+)=(['\"]?)(.*?)\2", line.strip()):
            found[match[1]] = re.sub(r"\\(.)", r"\1", match[3])
    return found


def os_release() -> dict[str, str]:
    """Those of this machine; empty if it has no such file."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            return read_os_release(Path(path).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return {}


def names(system: dict[str, str]) -> list[str]:
    """
    What it is called, and what it is like, the nearest first; all of SUSE's are ``suse``.

    :param system: of :func:`os_release`.
    """
    said = [system.get("ID", ""), *system.get("ID_LIKE", "").split()]
    return ["suse" if "suse" in name or name.startswith("sle") else name for name in said]
