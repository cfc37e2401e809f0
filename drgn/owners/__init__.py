# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who allocated the memory: page_owner, slab caches and their user tracks."""
