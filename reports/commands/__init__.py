# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the user types: one file a command, and the commands of drgn."""
