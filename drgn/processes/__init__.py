# SPDX-License-Identifier: LGPL-2.1-or-later
"""Address spaces and VMAs of all processes."""
