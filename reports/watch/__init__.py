# SPDX-License-Identifier: LGPL-2.1-or-later
"""A running host over time: samples, their tables, metrics."""
