# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait: on which lock or page, and which task holds it."""
