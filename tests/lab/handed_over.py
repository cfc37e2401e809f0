# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore of a kernel with scratch areas of Kexec Handover, and where it said that they are.

Costs: a boot (half a minute), the first time; 1.5 GiB of disk.
"""

from pathlib import Path

import machine
from capture import Capture
from kept_captures import Say, kept
from kernels import Kernel
from pairs import build_init

GUEST = machine.GUEST / "pair" / "handover.c"


def handed_over(say: Say) -> Capture:
    """
    The capture.

    :raises LabError: the guest failed.
    """

    def take(kernel: Kernel, folder: Path) -> None:
        init = build_init(folder, GUEST)
        machine.run(kernel, "handover", folder, say, init=init)
        init.unlink()

    folder, kernel = kept("handover", "handover", [Path(__file__), GUEST], take, say)
    return Capture(
        kernel="handover",
        release=kernel.release,
        workload="handover",
        vmcore=folder / "vmcore",
        vmlinux=kernel.vmlinux,
        truth_a=folder / "truth" / "A",
        truth_b=folder / "truth" / "B",
        console=folder / "console.log",
    )
