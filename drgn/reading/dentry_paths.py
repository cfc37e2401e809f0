# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Paths out of ``struct dentry`` and ``struct mount``, as ``d_path()`` makes them (fs/d_path.c).

Costs a read of each component. Cannot know: the path that a process in a chroot or in another
mount namespace sees.
"""

from collections.abc import Mapping

from drgn import Object, Program, container_of, offsetof

from mmscope.drgn.reading.kernel_arrays import TORN, member_path
from mmscope.drgn.reading.kernel_names import name_at

# PATH_MAX is 4,096; a damaged chain of dentries would have no end.
MAX_COMPONENTS = 2048


def dentry_name(dentry: Object) -> str:
    """A component of a path; a newline as /proc/PID/maps writes it."""
    return name_at(dentry.d_name.name).replace("\n", "\\012")


def _component(dentry: Object) -> str:
    """
    The name of a dentry that is in a directory.

    :raises ValueError: it is empty, which none is.
    """
    if not (name := dentry_name(dentry)):
        raise ValueError("a name in a directory is empty")
    return name


def is_unhashed(dentry: Object) -> bool:
    """``d_unlinked()``: hashed nowhere, and not a root."""
    return bool(not dentry.d_hash.pprev and dentry != dentry.d_parent)


def alias_offset(prog: Program) -> int:
    """Offset in a dentry of ``d_alias``, by which it is on the list of its inode."""
    type_ = prog.type("struct dentry")
    # The union has no name in 7.2.
    return int(offsetof(type_, member_path(type_, ("d_alias", "d_u.d_alias"))))


def mounted_path(dentry: Object, mnt: Object) -> str | None:
    """
    The path of a dentry from the root of a mount's namespace; from where it was mounted, if it is
    no longer. None if it has no end.

    :param dentry: ``struct dentry *``; *mnt*: the ``struct mount *`` that it is seen through.
    :raises FaultError: a part of it cannot be read.
    :raises ValueError: a name is empty, or a mount is damaged.
    """
    dentry, mnt = dentry.read_(), mnt.read_()
    parts: list[str] = []
    for _ in range(MAX_COMPONENTS):
        if dentry == mnt.mnt.mnt_root:
            above = mnt.mnt_parent.read_()
            if above == mnt:
                return "/" + "/".join(reversed(parts))
            dentry, mnt = mnt.mnt_mountpoint.read_(), above
            continue
        if dentry == dentry.d_parent:  # unmounted lazily
            if mnt.mnt.mnt_root.d_sb != dentry.d_sb:
                raise ValueError("the root of a mount is in another file system")
            return "/".join(reversed(parts))
        parts.append(_component(dentry))
        dentry = dentry.d_parent.read_()
    return None


def path_of(prog: Program, file: int) -> str | None:
    """
    The path of a ``struct file``, as ``d_path()`` and /proc/PID/maps have it (fs/d_path.c); None if
    it cannot be read, or has no end.

    From the root of the mount namespace, not that of a process that is in a chroot.
    """
    try:
        path = Object(prog, "struct file", address=file).f_path
        dentry = path.dentry.read_()
        if dentry.d_op and dentry.d_op.d_dname:
            # Files that are in no directory: memfd, SysV shared memory, MAP_HUGETLB.
            return f"/{dentry_name(dentry)} (deleted)"
        found = mounted_path(dentry, container_of(path.mnt, "struct mount", "mnt"))
        return f"{found} (deleted)" if found is not None and is_unhashed(dentry) else found
    except TORN:
        return None


def path_below(
    prog: Program, address: int, roots: Mapping[int, str]
) -> tuple[str | None, bool | None]:
    """
    The path of a dentry: below the first of *roots* that is on its way up, else from the root of
    its file system.

    :param roots: where dentries are mounted, by their address.
    :return: (the path, None if it cannot be read or has no end; whether it is below a root).
    """
    parts: list[str] = []
    try:
        dentry = Object(prog, "struct dentry", address=address).address_of_()
        for _ in range(MAX_COMPONENTS):
            if (mounted := roots.get(dentry.value_())) is not None:
                return "/".join([mounted.rstrip("/"), *reversed(parts)]) or "/", True
            parent = dentry.d_parent.read_()
            if parent == dentry:
                return "/" + "/".join(reversed(parts)), False
            parts.append(_component(dentry))
            dentry = parent
    except TORN:
        return None, None
    return None, None
