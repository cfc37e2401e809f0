# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine of a tree of text files: of a live host's root, an unpacked sosreport."""

import contextlib
import datetime
import os
import re
import time

from mmscope.drgn.free.zones import Zone, read_zoneinfo
from mmscope.drgn.opening.target import Target
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be
from mmscope.drgn.tables.rows import MOST_PAGES, columns
from mmscope.drgn.text.meminfo import read_sizes


def describe_files(files: Files) -> Target:
    """Describe the machine of a tree of text files; what it does not say is None."""
    try:
        zones = read_zoneinfo(files.read("proc/zoneinfo"))
    except (Absent, ValueError):
        zones = []  # its section will say why
    total = sum(zone.present_pages for zone in zones)
    marked = rows_that_cannot_be("zones", columns(Zone), zones, Machine())
    if any(mark.column_name == "present_pages" for mark in marked) or total > MOST_PAGES:
        total = 0  # of a damaged text, unknown
    elif not total and not files.lxcfs and (page := files.page_size()):
        with contextlib.suppress(Absent, OSError, ValueError):
            total = read_sizes(files.read("proc/meminfo"))["MemTotal"] // page

    def first(*paths: str) -> str | None:
        for path in paths:
            with contextlib.suppress(OSError):
                return files.open(path).strip()
        return None

    version = (first("proc/version") or "").split()
    kernel = os.uname() if files.here else None
    seconds = re.match(r"[0-9]{1,12}(\.[0-9]+)? ", first("proc/uptime") or "")
    taken = time.time() if files.here else files.taken()
    return Target(
        kind="files",
        release=first("proc/sys/kernel/osrelease") or next(iter(version[2:]), None),
        architecture=kernel.machine if kernel else None,
        page_size=files.page_size(),
        hostname=kernel.nodename if kernel else first("proc/sys/kernel/hostname", "hostname"),
        captured_at=None
        if taken is None
        else datetime.datetime.fromtimestamp(int(taken), datetime.UTC).isoformat(),
        uptime_seconds=float(seconds.group()) if seconds else None,
        total_pages=total or None,
        online_cpus=os.cpu_count() if files.here else None,
        source=str(files.root) if files.here else files.root.name,
    )
