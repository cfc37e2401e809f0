# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the memory went: every page of RAM has one owner, and the kernel's counters agree."""
