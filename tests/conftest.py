# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What tests share: Hypothesis that repeats itself, and one browser
(Playwright runs one at a time in a process).
"""

import atexit
import os
import shutil
from collections.abc import Iterator
from typing import Any

import children
import hypothesis
import pytest

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")


children.as_in_the_foreground()


@pytest.fixture(autouse=True)
def ends_with_its_test() -> Iterator[None]:
    """Whatever a test started is over when it is."""
    yield
    children.end_all()


@atexit.register
def silence_the_last_words() -> None:
    """
    DuckDB's binding lists on stderr what is alive when the interpreter ends, which is its module
    itself: a hundred lines below pytest's own last line.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(f"no {' or '.join(BROWSERS)} here: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path)
        yield running
        running.close()
