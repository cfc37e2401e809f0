# SPDX-License-Identifier: LGPL-2.1-or-later
"""Profiles as tables of a bundle."""
