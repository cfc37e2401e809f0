# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bundle: a folder of tables. Writing, reading, redacting it, and its tables in DuckDB."""
