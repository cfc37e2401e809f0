# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running the sections over a target, and what that costs a live host."""
