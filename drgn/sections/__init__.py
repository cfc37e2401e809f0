# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a section is, what it reads and what it finds; what reading a running host's files costs it.

A probe declares its :class:`section.Section` in its own file, or in ``sections.py`` of its folder
where several share one pass over the memory. :mod:`registry` finds them all and has their order.
"""
