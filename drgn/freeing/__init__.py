# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deeds that give memory back: the end of a process, a cache dropped, a pool emptied."""
