# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a probe returns and how it is shown: rows, their columns and bounds, and tables on a terminal.
"""
