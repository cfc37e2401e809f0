# SPDX-License-Identifier: LGPL-2.1-or-later
"""Readers of what the kernel prints: /proc, and the files of page_owner. They need no debugger."""
