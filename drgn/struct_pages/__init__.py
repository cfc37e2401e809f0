# SPDX-License-Identifier: LGPL-2.1-or-later
"""What struct pages cost: the vmemmap, HVO, device memory, page_ext."""
