# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cost of struct pages: the vmemmap, HVO, device memory, page_ext."""
