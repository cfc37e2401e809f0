# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A probe's results and how they are shown: rows, columns and their bounds, tables on a terminal.
"""
