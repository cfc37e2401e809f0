# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real bundles: of the vmcores that the lab keeps, read as a user reads them. None is taken."""

from collections.abc import Iterator
from pathlib import Path

import archive
import children
from command_line import ROOT, RUN


def kept_bundles(folder: Path) -> Iterator[Path]:
    """A bundle of each workload, of the newest kernel that it was kept of; without debug info."""
    cores: dict[str, Path] = {}
    for core in sorted((archive.cache_folder() / "cores").glob("*/vmcore")):
        kernel_and_workload, _, _ = core.parent.name.rpartition("-")
        cores[kernel_and_workload.rpartition("-")[2]] = core
    for workload, core in cores.items():
        words = ["collect", "--core", core, "--no-findings", "-o", folder / workload]
        done = children.run(
            [*RUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        # 3: its kernel is one without BTF, or it was removed meanwhile.
        assert done.returncode in (0, 1, 3), done.stderr
        if done.returncode != 3:
            yield folder / workload
