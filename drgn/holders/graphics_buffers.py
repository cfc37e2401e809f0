# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Buffers of graphics cards that lie in the machine's own memory, of drivers on TTM (amdgpu, nouveau,
radeon, xe, vmwgfx, qxl): GTT, and what was moved out of the card's memory.

Every device (``ttm_glob``, drivers/gpu/drm/ttm/ttm_device.c) has lists of what lies where, and of
what is pinned. A buffer whose ``ttm_tt`` has pages has one for each page of its size; those of
another driver (dma-buf) are that one's. The process is the first that has a handle of the buffer
(``drm_file.object_idr``). The types are those of the modules' BTF.

Costs a read of each buffer's pointers, and some for each handle.

Cannot know: buffers of drivers that have them in files of shmem (i915, virtio-gpu), which are
shmem; who has a buffer without a handle, as the driver itself; kernels before 5.16.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from drgn import Object, Program, offsetof
from drgn.helpers.linux.idr import idr_for_each
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import Holder, Holdings, by_holder, pointers
from mmscope.drgn.opening.btf import struct_of
from mmscope.drgn.processes.open_files import NO_PROCESS, Opener, OpenFiles
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.linked_lists import walk_list
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reading.symbols import variable_of

MOST_DEVICES, MOST_BUFFERS, MOST_HANDLES = 1 << 8, 1 << 20, 1 << 20
MOST_PAGES = 1 << 24  # of a buffer
EXTERNAL = np.uint32(1 << 2)  # TTM_TT_FLAG_EXTERNAL
# "drm/ttm: Move swapped objects off the manager's LRU list" (fc5d96670eb2, in v6.13)
PINNED = ("unevictable", "pinned")


def add_graphics_buffers(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """Buffers with pages by driver, device and process."""
    if (address := variable_of(prog, "ttm", "ttm_glob")) is None:
        return
    buffer, table = struct_of(prog, "ttm_buffer_object", "ttm"), struct_of(prog, "ttm_tt", "ttm")
    resources = np.array([*islice(_resources(prog, address, found), MOST_BUFFERS)], np.uint64)
    rows, read = read_members(
        prog, resources, struct_of(prog, "ttm_resource", "ttm"), {"bo": "bo"}, found.gaps
    )
    buffers = np.unique(rows["bo"][read & (rows["bo"] != 0)])
    columns = {"device": "base.dev", "table": "ttm"}
    rows, read = read_members(prog, buffers, buffer, columns, found.gaps)
    read &= rows["table"] != 0
    buffers, rows = buffers[read], rows[read]
    columns = {"pages": "pages", "count": "num_pages", "flags": "page_flags"}
    tables, read = read_members(prog, rows["table"], table, columns, found.gaps)
    read &= (tables["flags"] & EXTERNAL) == 0
    openers = _openers(prog, files, found.gaps)
    names = {each: _name(prog, each) for each in np.unique(rows["device"]).tolist()}
    at_base = np.uint64(offsetof(buffer, "base"))
    holders = [
        Holder("graphics", names[device], openers.get(gem, NO_PROCESS))
        for device, gem in zip(rows["device"].tolist(), (buffers + at_base).tolist(), strict=True)
    ]
    for holder, here in by_holder(holders):
        pages, objects = [np.empty(0, np.uint64)], 0
        for at in here[read[here]].tolist():
            count = min(int(tables["count"][at]), MOST_PAGES)
            its_pages = pointers(prog, int(tables["pages"][at]), count, found.gaps)
            pages.append(its_pages)
            objects += bool(its_pages.any())
        if objects:
            found.pages(holder, kind, np.concatenate(pages), objects)


def _resources(prog: Program, address: int, found: Holdings) -> Iterator[int]:
    """Addresses of every ``struct ttm_resource``: what a buffer has of a kind of memory."""
    known = Object(prog, struct_of(prog, "ttm_global", "ttm"), address=address)
    devices = list_for_each_entry(
        struct_of(prog, "ttm_device", "ttm"), known.device_list.address_of_(), "device_list"
    )
    resource = struct_of(prog, "ttm_resource", "ttm")
    link = offsetof(resource, "lru")
    # "drm/ttm: Use LRU hitches" (in v6.12): of the cursors, which are on the lists too
    marked = resource.member("lru").type.has_member("type")
    for device in islice(devices, MOST_DEVICES):
        pinned = next(getattr(device, name) for name in PINNED if hasattr(device, name))
        heads = [pinned.address_]
        for manager in device.man_drv:
            if manager:
                heads += [each.address_ for each in manager.lru]
        for head in heads:
            places, whole = walk_list(prog, head, link, MOST_BUFFERS)
            if not whole:
                found.missing.append("graphics: a list of buffers could not be followed to the end")
            for each in places:
                if not marked or not Object(prog, resource, address=each).lru.type.value_():
                    yield each


def _openers(prog: Program, files: OpenFiles, gaps: Gaps) -> dict[int, Opener]:
    """The process of each ``struct drm_gem_object`` that one has a handle of."""
    if (opening := variable_of(prog, "drm", "drm_open")) is None:
        return {}
    operations = np.unique(files.files["f_op"])
    type_ = prog.type("struct file_operations")
    rows, read = read_members(prog, operations, type_, {"open": "open"}, gaps)
    of_drm = operations[read & (rows["open"] == np.uint64(opening))]
    clients, who = files.of_kind(prog, *of_drm.tolist())
    openers = dict[int, Opener]()
    for address, process in zip(clients.tolist(), who, strict=True):
        client = Object(prog, struct_of(prog, "drm_file", "drm"), address=address)
        for _, gem in islice(idr_for_each(client.object_idr.address_of_()), MOST_HANDLES):
            openers.setdefault(gem.value_(), process)
    return openers


def _name(prog: Program, address: int) -> str:
    """The driver of a device, and its name on its bus."""
    device = Object(prog, struct_of(prog, "drm_device", "drm"), address=address)
    names = [name_at(device.driver.name)]
    if device.unique:
        names.append(name_at(device.unique))
    return " ".join(names)
