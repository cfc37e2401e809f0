# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kprobes of a recording: made in tracefs, removed again whatever happens, their misses counted.

Each has the pid of its recording in its name, ``mmscope:rmap_walk_4711``: recordings side by side
do not meet, ``kprobe_profile`` (which prints names without groups) tells them apart, and what a
killed one left shows as such.

Costs: a kprobe that is not enabled costs nothing; perf enables it. A return probe takes some
hundred bytes for each call that may be under way.
"""

import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mmscope.perf import probe_guard
from mmscope.perf.probe_guard import GROUP
from mmscope.perf.recipe import Probe

# As many calls as may be under way at once, all of which a return probe has to remember: a walk may
# sleep on its lock, so that there may be as many as tasks. More the kernel does not take
# (KRETPROBE_MAXACTIVE_MAX in kernel/trace/trace_kprobe.c, 5.10 to 7.3); its own choice is two for
# each CPU.
MAXACTIVE = 4096
_WITH_PID = re.compile(rf"({GROUP}:\w+?)_\d+")


@dataclass
class Probes:
    """
    The kprobes of a recording.

    :ivar names: of a recipe's event to that of this recording.
    :ivar refused: of a recipe's event to why the kernel has none.
    """

    tracefs: Path
    names: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def missed(self) -> dict[str, int]:
        """
        Times that a probe was met and could not run, by a recipe's event: a return probe without
        room for one more call, a probe inside of another.
        """
        counted = {}
        with contextlib.suppress(OSError):
            text = (self.tracefs / "kprobe_profile").read_text(encoding="utf-8", errors="replace")
            lines = re.findall(r"^\s*(\S+)\s+\d+\s+(\d+)\s*$", text, re.MULTILINE)
            counted = {f"{GROUP}:{name}": int(number) for name, number in lines}
        return {event: counted[name] for event, name in self.names.items() if name in counted}


def plain(event: str) -> str:
    """The name of an event as recipes have it."""
    match = _WITH_PID.fullmatch(event)
    return match[1] if match else event


@contextlib.contextmanager
def made(probes: Iterable[Probe], tracefs: Path) -> Iterator[Probes]:
    """Kprobes, for as long as the block."""
    found = Probes(tracefs)
    try:
        for probe in probes:
            if probe.entry:
                _make(found, probe, probe.name, "p", probe.fetch)
            if probe.returns:
                # Of a probe with both it is the entry that takes something along.
                fetch = ("",) if probe.entry else probe.fetch
                _make(found, probe, f"{probe.name}_return", f"r{MAXACTIVE}", fetch)
        yield found
    finally:
        names = [name.partition(":")[2] for name in found.names.values()]
        probe_guard.remove(tracefs, names, 1.0)


def _make(found: Probes, probe: Probe, name: str, kind: str, fetches: Iterable[str]) -> None:
    own = f"{name}_{os.getpid()}"
    for function, fetch in itertools.product(probe.function, fetches):
        fetch, _, symbol = fetch.partition(" if ")
        if symbol and not _has_function(symbol):
            continue
        try:
            line = f"{kind}:{GROUP}/{own} {function} {fetch}"
            probe_guard.command(found.tracefs, line.strip())
        except OSError as error:
            named = " or ".join(f"{function}()" for function in probe.function)
            found.refused[f"{GROUP}:{name}"] = (
                f"the kernel takes no probe on {named}: {error.strerror}"
            )
            continue
        found.refused.pop(f"{GROUP}:{name}", None)
        found.names[f"{GROUP}:{name}"] = f"{GROUP}:{own}"
        return


def _has_function(name: str) -> bool:
    with contextlib.suppress(OSError), open("/proc/kallsyms", "rb") as file:
        return any(line.split()[2] == name.encode() for line in file)
    return False


def clear_up(tracefs: Path) -> list[str]:
    """
    Remove what recordings left that were killed together with their guard.

    :return: what is left of them, in words.
    """
    left = []
    for name, pid in probe_guard.there(tracefs):
        alive = pid is not None and pid != os.getpid() and Path(f"/proc/{pid}").exists()
        # In use, and so refused: by a recording in another container, or a perf that goes on.
        if not alive and probe_guard.remove(tracefs, [name], 0.0):
            left.append(f"{GROUP}:{name}")
    if not left:
        return []
    return [
        f"kprobes of another recording are in use and stay: {', '.join(left)}; the next recording "
        "removes them, once no perf uses them"
    ]


class ProbeGuard:
    """A process that ends perf and removes this process's kprobes when this process is gone."""

    def __init__(self, tracefs: Path) -> None:
        words = [sys.executable, "-I", "-S", probe_guard.__file__, str(tracefs), str(os.getpid())]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """There is a perf to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), f"{pid}\n".encode())

    def close(self) -> None:
        """The recording is over."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * probe_guard.PATIENCE)
