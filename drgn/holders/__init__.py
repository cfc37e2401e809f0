# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of pages that nothing in the struct pages names: pipes, sockets, rings."""
