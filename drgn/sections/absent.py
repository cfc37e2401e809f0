# SPDX-License-Identifier: LGPL-2.1-or-later
"""The error of what a target does not have, for those who handle it without loading sections."""


class Absent(Exception):
    """The target has no such thing. The words say why, and what would change that."""
