# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening a live kernel, a vmcore or a QEMU guest: by debug info, or by the kernel's own words."""
