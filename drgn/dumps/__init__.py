# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps as files: what they say of themselves, unpacking them, and reading much of one at once."""
