# SPDX-License-Identifier: LGPL-2.1-or-later
"""The host itself as a target: for what is measured on it, not read out of its kernel's memory."""

import os
from dataclasses import asdict
from pathlib import Path

from mmscope.reports.bundle.description import Cell


def this_host() -> dict[str, Cell]:
    """The host's row, from /proc."""
    # With drgn and numpy behind them, which take longer to start than a sample takes.
    from mmscope.drgn.machine.file_tree import describe_files
    from mmscope.drgn.sections.files import Absent, Files

    try:
        return {**asdict(describe_files(Files(Path("/")))), "kind": "live"}
    except (Absent, ValueError):
        kernel = os.uname()
        return {"kind": "live", "release": kernel.release, "hostname": kernel.nodename}
