# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Merges what the kernel's memory (``mmscope.drgn``) and the CPUs (``mmscope.perf``) say.

``collect`` runs the sections over a target and writes a ``bundle``; ``findings`` asks a bundle
questions in SQL; ``pictures`` and ``page`` draw it as one HTML file; ``commands`` is what is typed.
"""
