# SPDX-License-Identifier: LGPL-2.1-or-later
"""Folders of the checkout that the tests run in."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
