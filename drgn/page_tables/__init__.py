# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page tables of processes: how many, what is in them, what their end will cost."""
