# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings: the meaning of tables, one TOML file each, and their evaluation."""
