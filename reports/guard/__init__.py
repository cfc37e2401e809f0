# SPDX-License-Identifier: LGPL-2.1-or-later
"""Captures an incident when it happens: a small resident, its triggers, what it leaves."""
