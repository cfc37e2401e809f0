# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Opening a live kernel, a vmcore or a QEMU guest: by debug info, or by the kernel's own words.
"""


class NoDebugInfoError(ValueError):
    """The kernel cannot be read by what it says of itself; one line that says why."""


class UndeclaredError(Exception):
    """A global that the kernel has, but nothing says of what type; or of which of its files."""


class TargetError(Exception):
    """The target cannot be opened. One line, for the user, that says what to do."""
