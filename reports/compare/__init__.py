# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two bundles, or two groups of hosts, held against each other."""
