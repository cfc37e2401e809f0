# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The BTF in the image that boots: all there is of a kernel whose debug info has left the archive.

Costs: a second. Needs zstd, by which Debian packs them.
"""

import struct
import subprocess
from pathlib import Path

from mmscope.drgn.dumps.core_file import elf_section
from mmscope.drgn.opening.btf import LIMITS

# struct setup_header, arch/x86/include/uapi/asm/bootparam.h: a byte, and two words.
SETUP_SECTS, PAYLOAD = 0x1F1, 0x248


def write_btf(image: Path, target: Path) -> None:
    """Write the BTF of a bzImage's kernel."""
    data = image.read_bytes()
    offset, size = struct.unpack_from("<II", data, PAYLOAD)
    begin = (data[SETUP_SECTS] + 1) * 512 + offset
    packed = data[begin : begin + size - 4]  # behind it is how long it was
    unpacked = subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE, check=True)
    target.write_bytes(unpacked.stdout)
    target.write_bytes(elf_section(target, ".BTF", LIMITS["bytes"]))
