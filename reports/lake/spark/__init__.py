# SPDX-License-Identifier: LGPL-2.1-or-later
"""Spark as a lake's engine (``engine``), and the findings' queries in its SQL (``sql``)."""
