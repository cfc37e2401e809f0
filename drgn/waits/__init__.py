# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom in memory management."""
