# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine and the kernel as a whole: physical memory, counters, settings, features."""
