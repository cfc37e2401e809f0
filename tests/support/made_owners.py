# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hosts whose memory is somebody's: stacks that grow, classes of the ledger."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finding_cases.case import bundle
from finding_cases.owners import SNAPSHOTS, grown
from finding_cases.rows import owned

from mmscope.drgn.ledger.memory_ledger import LedgerRow

EVIL = "<img src=x>[31m=evil_alloc"  # a function's name, by whoever wrote the bundle


def host(folder: Path, name: str, rows: Sequence[Any], at: int = 0, **more: Any) -> Path:
    """A bundle of a host that was booted at 08:00, taken so many hours after 10:00."""
    path = folder / f"{name.encode().hex()}-{at}-{len(list(folder.iterdir()))}"
    target = {
        "hostname": name,
        "captured_at": f"2026-11-22T{10 + at:02}:00:00+00:00",
        "uptime_seconds": 3600.0 * (2 + at),
        "kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 1 << 20,
    }  # fmt: skip
    bundle(path, list(rows), target=target | more)
    return path


def leak(pages: int, owner: str = "xfs_buf_alloc") -> list[Any]:
    """A stack that grew by so many pages; its handle is another on each host."""
    return [owned(pages, 100 + pages, owner), grown(pages, 100, 100 + pages, 1.0, 4), *SNAPSHOTS]


def ledger(**mebibytes: int) -> list[LedgerRow]:
    total = {"free": 4096 - sum(mebibytes.values())} | mebibytes
    return [
        LedgerRow(name.replace("_", " "), "all", 0, "Normal", mib << 8, mib << 20, 0.0, "")
        for name, mib in total.items()
    ]
