# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundles of many hosts as Parquet, asked as one."""
