# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables that no probe has: of profiles, and of a watch over time."""
