# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every probe reads with: arrays as numpy columns, lists, struct pages, stacks, symbols."""
