# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of the hosts of a lake: by DuckDB or Spark, on a terminal or as a page."""
