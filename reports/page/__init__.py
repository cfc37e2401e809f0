# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report as one HTML file."""
