# SPDX-License-Identifier: LGPL-2.1-or-later
"""What pictures and tables are drawn with: charts, flame graphs, cells, downloads."""
