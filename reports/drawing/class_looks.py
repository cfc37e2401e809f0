# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The look of each class of memory, the same in every picture: a colour and a texture.

``templates/report.css`` has the colours, for light and dark. Two classes of one colour differ by
their texture, so that no more colours are needed than a reader can distinguish who sees two of the
three primaries.
"""

TEXTURES = ("", "hatched", "dotted")
# A row is a texture, a column a colour: plain is what fills machines.
LOOKS = (
    ("anonymous", "page cache", "slab", "hugetlb", "page tables", "vmalloc", "driver"),
    ("compressed", "shmem", "kernel memory", "percpu", "kernel stacks", "tracing", "network"),
    ("pipes", "boot", "memory about memory", "kernel reserves", "guard", "given away", "rings"),
)
OWN = {
    "free": "mem-free",
    "unexplained": "mem-odd striped",
    "bad": "mem-gone striped",
    "not the kernel's": "mem-free striped",
}
UNKNOWN = "mem-gone"  # a class of a newer mmscope
CLASSES = OWN | {
    name: f"class-{column} {texture}".rstrip()
    for texture, names in zip(TEXTURES, LOOKS, strict=True)
    for column, name in enumerate(names)
}
# What a reader calls a class; tables of a bundle keep its name.
LABELS = {"memory about memory": "page metadata"}


def label(name: str) -> str:
    """The name of a class of memory for a reader."""
    return LABELS.get(name, name)


def look(name: str) -> str:
    """The classes of the stylesheet that give a class of memory its look."""
    return CLASSES.get(name, UNKNOWN)
