# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kernel's own image is to its direct map."""

from capture import Capture
from drgn import Program


def out_of_direct_map(taken: Capture, prog: Program) -> int:
    """
    Bytes of the image that are not in the direct map: arm64's 7.3 has its data and bss, from
    ``__init_end`` to ``__bss_stop``, at their own addresses alone.
    """
    if taken.architecture.name != "arm64" or taken.series != "7.3":
        return 0
    return prog.symbol("__bss_stop").address - prog.symbol("__init_end").address
