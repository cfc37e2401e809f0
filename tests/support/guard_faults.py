# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What guard's resident does when a call fails: any one that it makes of the system, once or from then
on, while it begins, samples, captures, clears up and ends.

    python tests/support/guard_faults.py FOLDER ERRNO FIRST STEP

From the call of number FIRST on each STEPth one fails; prints the number of the last. An exception
that is not passed over, a line that is said twice, or a guard that does not capture again
afterwards ends it with a traceback.
"""

import contextlib
import io
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "tests/lab")]

# What Python tells no audit hook of.
NOT_AUDITED = (
    *("fsync", "fdatasync", "fchmod", "ftruncate", "fstat", "lstat", "stat", "statvfs", "pwrite"),
    *("replace", "write", "read", "lseek", "dup"),
)
AUDITED = ("open", "os.", "shutil.", "tempfile.", "fcntl.")


class Faults:
    """
    :ivar left: calls until one fails; None: none does.
    """

    def __init__(self, error: int) -> None:
        self.error, self.left, self.once = error, None, False
        self.calls: Counter[str] = Counter()
        os.fsync = lambda _: None  # power is not what fails here
        sys.addaudithook(self._audit)
        for name in NOT_AUDITED:
            setattr(os, name, self._failing(name, getattr(os, name)))

    def hit(self, name: str) -> None:
        """A call is made: it may fail."""
        if self.left is None:
            return
        self.left -= 1
        if self.left == 0 or (self.left < 0 and not self.once):
            self.calls[name] += 1
            raise OSError(self.error, os.strerror(self.error))

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if event.startswith(AUDITED):
            self.hit(event)

    def _failing(self, name: str, call: Any) -> Any:
        def failing(*words: Any, **more: Any) -> Any:
            self.hit(name)
            return call(*words, **more)

        return failing

    def spared(self, call: Any) -> Any:
        """A call within which none fails."""

        def spared(*words: Any) -> Any:
            left, self.left = self.left, None
            try:
                return call(*words)
            finally:
                self.left = left

        return spared

    @contextlib.contextmanager
    def at(self, number: int, *, once: bool) -> Any:
        """Within, the call of that number fails; if not *once*, all that come later as well."""
        self.left, self.once = number, once
        try:
            yield
        finally:
            self.left = None


class Captures:
    """In place of a process that makes a capture: it takes its name, and ends."""

    pid, returncode = 2**22 + 1, 0

    def __init__(self, faults: Faults, words: list[str]) -> None:
        from mmscope.reports.guard import captures

        faults.hit("Popen")
        faults.spared(captures.publish)(Path(words[0]))

    def poll(self) -> int:
        return 0


def main() -> int:
    from watched_host import make_host

    from mmscope.reports.commands.command import build_parser
    from mmscope.reports.guard import captures
    from mmscope.reports.guard import guard as module

    folder, faults = Path(sys.argv[1]), Faults(int(sys.argv[2]))
    number, stride = map(int, sys.argv[3:])
    make_host(folder / "root")
    output = folder / "captures"
    words = ["guard", "run", "-o", output, "--text", "--proc-root", folder / "root", "--distance",
             "0", "--openmetrics", folder / "guard.prom"]  # fmt: skip
    args = build_parser(["guard"]).parse_args(list(map(str, words)))
    module.RESERVE = 1 << 16
    module.capture.process = lambda place, settings: [str(place)]  # type: ignore[assignment]
    module.subprocess.Popen = lambda words, **_: Captures(faults, words)  # type: ignore

    def one_capture(guard: module.Guard) -> None:
        guard._want(module.BY_HAND, module.BY_HAND.title)
        guard.step(0.0)
        guard.step(0.0)

    sample = module.Guard(args, []).sampler.take()
    failed = True
    while failed:
        failed = False
        for once in (True, False):
            shutil.rmtree(output, ignore_errors=True)
            said = io.StringIO()
            guard = module.Guard(args, [])
            before = faults.calls.total()
            if faults.error not in module.PASSING:
                guard.begin()
            if number > 1:  # what is not read is in the sample: of calls from there one will do
                guard.sampler.take = lambda _: {**sample, "mono": time.monotonic(), "unread": {}}  # type: ignore
            with contextlib.redirect_stderr(said), faults.at(number, once=once):
                if guard.lock is None:
                    guard.begin()
                one_capture(guard)
            failed |= faults.calls.total() > before
            lines = [line for line in said.getvalue().splitlines() if "watching goes on" in line]
            assert len(lines) == len({*lines}), lines
            with contextlib.redirect_stderr(io.StringIO()):
                guard.step(0.0)
                there = len(list(captures.captures(output)))
                one_capture(guard)
                guard.step(0.0)
                states = [said["state"] for _, said in captures.captures(output)]
                assert len(states) > there and {*states} == {captures.CUT}, (number, states)
                assert not guard.wrong, (number, once, guard.wrong)
                assert "by-hand" in (output / "index.html").read_text()
                with faults.at(1, once=False):
                    guard.end()
        number += stride
    print(*faults.calls, sep="\n", file=sys.stderr)
    print(number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
