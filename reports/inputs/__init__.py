# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inputs as people bring them: recognised by content, read as far as it goes, a line each."""
