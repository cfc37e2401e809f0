# SPDX-License-Identifier: LGPL-2.1-or-later
"""The error of :mod:`target`, for those who handle it without loading drgn."""


class TargetError(Exception):
    """The target cannot be opened. One line, for the user, that says what to do."""
