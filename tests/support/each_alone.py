# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope`` run many times, each in a process of its own, which begins with everything imported.

Reads the commands from stdin, each a line of JSON: [folder, [word, …]]. Prints a line of JSON for
each when it has ended: code (below 0: by that signal), what it wrote on stderr, how many bytes on
stdout and how they begin, and the most memory that it had, in KiB. A command that hangs is ended
after so many seconds of CPU as the first argument says, or 900; one that sleeps, after 30 times as
many by the clock.
"""

import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

SECONDS = int(sys.argv[1]) if __name__ == "__main__" and sys.argv[1:] else 900
ASLEEP = 30  # a busy machine may give a command a thirtieth of a CPU
HEAD = 1 << 20
# Beyond it a command fails, and the machine is not taken down with it.
MOST_ADDRESSES = 6 << 30


def run(folder: str, words: list[str], out: int, err: int, parent: int) -> None:
    """The command, in this process, which does not come back."""
    from mmscope.drgn.workers.workers import die_with
    from mmscope.reports.commands.command import main

    die_with(parent)
    # By the CPU, as the machine may be busy with others.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(ASLEEP * SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(descriptor, target)
    os.chdir(folder)
    sys.argv = ["mmscope", *words]
    try:
        code = main()
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 99
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    os._exit(code)


def main() -> None:
    # Once for all runs. DuckDB has threads once it is used, not before.
    import mmscope.reports.bundle.redact
    import mmscope.reports.commands.command
    import mmscope.reports.commands.redact_command
    import mmscope.reports.commands.show_command
    import mmscope.reports.findings.findings_text
    import mmscope.reports.page.report
    import mmscope.reports.watch.page_owner
    import mmscope.reports.watch.watch  # noqa: F401
    from mmscope.reports.bundle.redact import vocabulary
    from mmscope.reports.findings.question import OURS
    from mmscope.reports.page.environment import environment

    vocabulary()
    OURS()
    templates = environment()
    for name in templates.list_templates(["html"]):
        templates.get_template(name)
    for line in sys.stdin:
        folder, words = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sys.stdout.flush()
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                run(folder, words, out.fileno(), err.fileno(), parent)
            _, status, usage = os.wait4(child, 0)
            err.seek(0)
            out.seek(0)
            result = {
                "code": os.waitstatus_to_exitcode(status),
                "stderr": err.read().decode("utf-8", "backslashreplace"),
                "head": out.read(HEAD).decode("utf-8", "backslashreplace"),
                "stdout": out.seek(0, os.SEEK_END),
                "kib": usage.ru_maxrss,
            }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
