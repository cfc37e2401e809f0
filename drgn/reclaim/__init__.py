# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reclaim: LRU lists, generations of the multi-gen LRU, kswapd."""
