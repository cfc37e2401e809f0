# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every test needs: the script folders on the path, and Hypothesis that repeats itself."""

import atexit
import os

import hypothesis

import reports  # noqa: F401  (puts drgn/ and perf/ on the path)

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")


@atexit.register
def silence_the_last_words() -> None:
    """
    DuckDB's binding lists on stderr what is alive when the interpreter ends, which is its module
    itself: a hundred lines below pytest's own last line.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
