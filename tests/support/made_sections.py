# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mocks of sections, for tests of what reads them."""

from collections.abc import Callable
from typing import Any

from mmscope.drgn.sections.section import Command, Found, Section


def made_section(
    name: str,
    from_memory: Callable[[Any], Found],
    from_files: Callable[[Any], Found] | None = None,
    **more: Any,
) -> Section:
    """A section that is read so, of files in the same way if not otherwise."""
    return Section(
        name=name,
        title=name.title(),
        intro="",
        command=Command(name),
        from_memory=from_memory,
        from_files=from_files or from_memory,
        **more,
    )
