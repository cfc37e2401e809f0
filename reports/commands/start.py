# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Where ``mmscope`` begins.

Commands that read text alone start without drgn, numpy and rich.
"""

import gc
import io
import os
import signal
import sys
from collections.abc import Callable

from mmscope import __version__

LIGHT = ("page-owner", "watch")
# What reads bundles, and no kernel.
OF_BUNDLES = ("findings", "report", "compare", "redact", "lake")
# Of these nothing is left to be done when they are: no thread, no process, no file of theirs.
DONE_WITH = ("findings", "report", "compare")


def process() -> int:
    """The command as all that its process does; returns its exit code, if it returns."""
    code = main()
    if sys.argv[1:2] and sys.argv[1] in DONE_WITH:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # which Python says as it ends
            return code
        # Python would take every object apart, and DuckDB its tables: a twelfth of all CPU.
        os._exit(code)
    return code


def main() -> int:
    """Run the command; returns its exit code."""
    if sys.argv[1:] == ["--version"]:  # asked for by scripts: nothing is imported for it
        print(f"mmscope {__version__}")
        return 0
    # A terminal or pipe that is not UTF-8 gets what it can show, and the rest written out.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Where SIGINT is ignored, as nohup and a shell's background jobs have it, it stays so.
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:
        # While modules are imported, Python may lose a KeyboardInterrupt: what is raised in a
        # callback of its import locks is printed and forgotten. Nothing is to be undone by then.
        signal.signal(signal.SIGINT, _end)
    run = _command()
    gc.freeze()  # what is imported stays
    try:
        if catches:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # before the command sees to it, or behind it
        print("mmscope: interrupted", file=sys.stderr)
        return 130
    finally:
        if sys.modules.get("duckdb"):  # frozen, it would say at the end that it leaks
            gc.unfreeze()
        else:
            # Python looks through all objects three times before it ends, a tenth of all CPU.
            gc.freeze()


def _end(*_: object) -> None:
    os.write(2, b"mmscope: interrupted\n")
    os._exit(130)


def _refuse(why: str) -> int:
    print(f"mmscope: {why}", file=sys.stderr)
    return 2


def _command() -> Callable[[], int]:
    """What does it, imported."""
    # Classes, rows and tuples by the million, and hardly a cycle: to look for those takes a
    # twentieth of the time.
    gc.set_threshold(100_000)
    if sys.argv[1:2] and sys.argv[1] in LIGHT:
        from mmscope.reports.commands.page_owner_command import main as light

        return light
    if sys.argv[1:2] == ["guard"]:
        from mmscope.reports.guard.options import main as guard

        return guard
    if sys.argv[1:2] == ["record"]:
        from mmscope.reports.commands.record_command import main as record

        return lambda: record(sys.argv[2:])
    # Of numpy's linear algebra nothing is used; its threads spin before they sleep.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:2] and sys.argv[1] not in OF_BUNDLES:
        from mmscope.drgn.opening.quick_start import (
            helpers_one_by_one,
            leave_out_plugins,
            too_old,
        )

        leave_out_plugins()
        if why := too_old():
            return lambda: _refuse(why)
        helpers_one_by_one()
    from mmscope.reports.commands.command import main as full

    return full


if __name__ == "__main__":
    sys.exit(process())
