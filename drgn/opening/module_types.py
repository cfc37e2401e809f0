# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The types of a loaded module, by the BTF that the kernel keeps of it.

``btf_modules`` (kernel/bpf/btf.c, since "bpf: Load and verify kernel module BTFs", 36e68442d1af, in
v5.11; with CONFIG_DEBUG_INFO_BTF_MODULES). A module's BTF has what the kernel's lacks, and counts
on from it. No file of the module is needed, also where the kernel is read by its vmlinux.

Costs 50 ms a module, for the index of the kernel's types and the module's.
"""

from itertools import islice

from drgn import Object, Program
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.opening.btf import LIMITS, Btf, BtfError

MAX_MODULES = 1 << 14  # a damaged list may go round


def module_types(prog: Program, module: str) -> Btf:
    """
    The types of a module, and those of the kernel.

    :raises LookupError: the kernel keeps no BTF of modules, or none of this one.
    :raises FaultError: it cannot be read.
    :raises BtfError: it is damaged.
    """
    head = prog["btf_modules"].address_of_()
    for entry in islice(list_for_each_entry("struct btf_module", head, "list"), MAX_MODULES):
        btf = entry.btf.read_()
        if btf.name.string_() == module.encode():
            return Btf(prog, _blob(btf.base_btf), _blob(btf))
    raise LookupError(f"the kernel keeps no BTF of a module {module}")


def _blob(btf: Object) -> bytes:
    """The data of a ``struct btf *``."""
    size = int(btf.data_size.value_())
    if size > LIMITS["bytes"]:
        raise BtfError(f"BTF is damaged: it has {size:,} bytes")
    return bytes(btf.prog_.read(btf.data.value_(), size))
