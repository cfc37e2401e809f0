# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sections: what they read and find, and what reading its files costs a running host.

A probe declares its :class:`section.Section` in its own file, or in ``sections.py`` of its folder
where several share one pass over the memory. :mod:`registry` finds them all and has their order.
"""
