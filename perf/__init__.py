# SPDX-License-Identifier: LGPL-2.1-or-later
"""
CPU profiles: recording by a recipe, and folding what was recorded.

Recipes (``recipes/*.toml``) and parts of stacks (``parts/*.toml``) are data. Nothing here knows of
``mmscope.drgn`` or ``mmscope.reports``.
"""
