# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts, flame graphs, cells, downloads: parts of pictures and tables."""
