# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bundles and lakes for programs: questions and answers as plain data, of bounded size."""
