# SPDX-License-Identifier: LGPL-2.1-or-later
"""Readers that every probe uses: arrays as numpy columns, lists, struct pages, stacks, symbols."""
