# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log, and what the OOM killer wrote there."""
