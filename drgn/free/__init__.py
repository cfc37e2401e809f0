# SPDX-License-Identifier: LGPL-2.1-or-later
"""Free memory: zones, free lists, per-CPU lists, pageblocks."""
