# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners of memory: page_owner, slab caches and their user tracks."""
