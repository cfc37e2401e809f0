# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands: one file each, and the commands of drgn."""
