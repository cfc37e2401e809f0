# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reverse maps: anon_vma trees, mapped files, KSM, and what walks over them cost."""
