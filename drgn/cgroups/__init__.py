# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups: the tree of them, limits and events, what they have and what keeps dying ones."""
