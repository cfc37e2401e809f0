# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory ledger: every page of RAM has one owner, and the kernel's counters agree."""
