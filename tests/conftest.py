# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What tests share: Hypothesis that repeats itself, and one browser
(Playwright runs one at a time in a process).
"""

import atexit
import ctypes
import errno
import gc
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import hypothesis
import pytest

# The same few each time: `make fuzz` is there for volume. A test's folder is one for all of its
# examples: to make one takes longer than most of them.
hypothesis.settings.register_profile(
    "same",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("same")


children.as_in_the_foreground()
# Power does not fail here: a test of what is left is of what the kernel was given.
os.fsync = lambda descriptor: None
os.environ["MMSCOPE_CONFIG"] = ""  # not what this host has set
# What a test of a helper module compares is shown, too.
pytest.register_assert_rewrite("lake_truth", "ledger_lab", "printed_memory")

CLONE_NEWNS, MS_REC, MS_PRIVATE = 1 << 17, 1 << 14, 1 << 18


def mounts_of_our_own() -> None:
    """What tests mount, as root, is gone with them, whatever ends them."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


mounts_of_our_own()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that open a browser, whole: their reports are made once."""
    files = {item.path for item in items if "browser" in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in files:
            item.add_marker("browser")


def pytest_collection_finish() -> None:
    """What is there until the end is not to be looked through again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def ends_with_its_test() -> Iterator[None]:
    """Whatever a test started is over when it is; and so is pytest, if it was told to end."""
    children.end_if_asked()
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
    from browser_page import PATIENCE
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(f"no {' or '.join(BROWSERS)} here: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, timeout=PATIENCE)
        yield running
        running.close()


@pytest.fixture
def opening(browser: Any) -> Iterator[Any]:
    """Opens a report offline, in a browser of its own: ``opening(path, size, scheme)``."""
    from browser_page import WIDE, Opened

    contexts = []

    def open_page(
        path: Path, size: tuple[int, int] = WIDE, scheme: str = "light", script: bool = True
    ) -> Opened:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            offline=True,
            java_script_enabled=script,
        )
        contexts.append(context)
        return Opened(context.new_page(), path)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def old_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the lab's guest as 0.1.0 read it: a real one, and small."""
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.bundle.database import open_database
    from mmscope.reports.findings.findings import ask
    from mmscope.reports.findings.question import OURS
    from mmscope.reports.page.report import render, write

    path = tmp_path_factory.mktemp("old") / "r.html"
    bundle = Bundle(Path(__file__).parent / "bundles" / "v0.1.0")
    write(render(bundle, ask(open_database(bundle), OURS())), path)
    return path


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that this process forks."""
    forks: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or fork())
    return forks


@pytest.fixture
def no_forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A mock of a machine that has no room for a process more; a number for each that is asked."""
    asked: list[int] = []

    def fork() -> int:
        asked.append(1)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    return asked


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """16 KiB of disk; where nothing can be mounted, files of no more than 4 KiB."""
    libc, folder = ctypes.CDLL(None, use_errno=True), tmp_path / "disk"
    folder.mkdir()
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=16k") == 0:
        yield folder
        libc.umount2(bytes(folder), 2)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The files of a guest, with memory pressure and KSM."""
    from watched_host import make_host

    make_host(tmp_path / "host")
    return tmp_path / "host"


@pytest.fixture(scope="session")
def whole_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a bundle with every table."""
    import report_bundle
    from page_tree import NOTHING

    from mmscope.reports.page.report import render

    folder = tmp_path_factory.mktemp("whole")
    return render(report_bundle.write_bundle(folder / "b", report_bundle.tables()), NOTHING)
