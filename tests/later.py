# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What came after 0.2.0, which tests of all that there is have not listed: it says so where it is
declared, and has tests of its own.
"""

from mmscope.reports.bundle.declared import HEADINGS


def later(*versions: str) -> bool:
    """Whether one of these versions, of a ``since``, came after 0.2.0."""
    return any(tuple(map(int, since.split("."))) > (0, 2, 0) for since in versions if since)


LATER_SECTIONS = {heading.name for heading in HEADINGS.values() if later(heading.since)}
