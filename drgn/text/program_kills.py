# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Processes that a program ended to have memory, in its own words, in a log: systemd-oomd and what
systemd says of it, earlyoom, nohang, kubelet, Talos, Android's lmkd and, in the kernel's log, the
lowmemorykiller that its kernels had before.

Lines of systemd 247 to 258 (src/oom/oomd-manager.c, oomd-util.c; src/core/unit.c), earlyoom 1.0 to
1.9 (kill.c), Kubernetes 1.20 to 1.34 (pkg/kubelet/eviction), Talos 1.12, Android 11 to 16
(lmkd.cpp, in logcat) and drivers/staging/android/lowmemorykiller.c (until 4.11). Cannot know: kills
of other programs, and what a program of these does not write.
"""

import re
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20


class ProgramKill(NamedTuple):
    """
    A process or cgroup that a program ended.

    :ivar cgroup: the cgroup, unit or pod that it ended.
    :ivar why: in the program's words.
    :ivar held_bytes: resident memory, as it says.
    """

    program: str
    cgroup: str | None = None
    comm: str | None = None
    pid: int | None = None
    held_bytes: int | None = None
    why: str | None = None


_OOMD = re.compile(
    r"\bsystemd-oomd\b[^:]{0,20}: Killed (?P<cgroup>/\S+)(?: (?:due to )?(?P<why>.+))?"
)
_UNIT = re.compile(r"\b(?P<cgroup>[^\s:]+): systemd-oomd (?P<why>killed (?:\d+|some) process.*)")
# earlyoom names itself in a journal alone.
_EARLYOOM = re.compile(
    r"\b[Ss]ending SIG(?:TERM|KILL) to process (?P<pid>\d{1,10})(?: uid \d+)? "
    r"\"(?P<comm>[^\"]{0,64})\": (?P<why>[^\"]{1,300})"
)
_EVICTED = re.compile(
    r"[Ee]viction manager: pod (?:is |(?P<old>\S+) is )?evicted successfully"
    r"(?:\" pod=\"(?P<pod>[^\"]+)\")?"
)
_TALOS = re.compile(r'\[talos\] Sending SIGKILL to cgroup \{.*"cgroup": ?"(?P<cgroup>[^"]+)"')
# The driver has the size in a line of its own.
_LMKD = re.compile(
    r"\blowmemorykiller: Kill(?:ing)? '(?P<comm>[^']{0,64})' \((?P<pid>\d{1,10})\),"
    r"(?: \(tgid \d+\),)?(?: uid \d+,)? (?:oom_score_)?adj (?P<adj>-?\d{1,4})"
    r"(?: to free (?P<kib>\d{1,12})kB rss.{0,40}; reason: (?P<why>.{1,200}))?"
)
# CACHED_APP_MIN_ADJ: from here on a process is kept for as long as there is room, and no longer.
_CACHED = 900
_OTHERS = re.compile(
    r"\b(?P<program>oomd|nohang)\b[^:]{0,20}: (?:.{0,40}\b[Kk]illed |.{0,20}[Ss]ending SIG)"
)
_HELD = re.compile(r"VmRSS:? (\d{1,9}) ?MiB")
# What shows that a text has such a line.
KILL = re.compile(
    r"systemd-oomd\b.{0,30} [Kk]illed |ending SIG(?:TERM|KILL) to process \d"
    r"|viction manager: pod .{0,80}evicted|\[talos\] Sending SIGKILL|lowmemorykiller: Kill"
)
# One of these is in each line.
LOWMEMORYKILLER = "lowmemorykiller: Kill"
_MARKS = ("oomd", "nohang", "ending SIG", "viction manager: pod", LOWMEMORYKILLER)


def program_kill(line: str) -> ProgramKill | None:
    """The process or cgroup that a program ended, by a line of it; None: it says nothing such."""
    if not any(map(line.__contains__, _MARKS)):
        return None
    if found := _OOMD.search(line) or _UNIT.search(line):
        why = (found["why"] or "").strip() or None
        return ProgramKill("systemd-oomd", cgroup=found["cgroup"], why=why)
    if found := _EARLYOOM.search(line):
        held = _HELD.search(found["why"])
        return ProgramKill(
            "earlyoom",
            comm=found["comm"],
            pid=int(found["pid"]),
            held_bytes=int(held[1]) * MIB if held else None,
            why=found["why"].rstrip(" ,").removesuffix(", cmdline"),
        )
    if found := _EVICTED.search(line):
        return ProgramKill("kubelet", cgroup=found["pod"] or found["old"], why="evicted")
    if found := _TALOS.search(line):
        where = found["cgroup"].removeprefix("/sys/fs/cgroup")
        return ProgramKill("Talos", cgroup=where, why="its OOM controller sent SIGKILL")
    if (found := _LMKD.search(line)) and int(found["adj"]) < _CACHED:
        return ProgramKill(
            "lowmemorykiller",
            comm=found["comm"],
            pid=int(found["pid"]),
            held_bytes=int(found["kib"]) * KIB if found["kib"] else None,
            why=found["why"],
        )
    if found := _OTHERS.search(line):
        return ProgramKill(found["program"], why=line[found.start() :][:200].strip())
    return None


def same(one: ProgramKill, other: ProgramKill) -> bool:
    """True if both are of one kill: a second signal, or systemd's word for systemd-oomd's."""
    if one.program != other.program:
        return False
    if one.pid is not None:
        return (one.pid, one.comm) == (other.pid, other.comm)
    names = [(each.cgroup or "").rpartition("/")[2] for each in (one, other)]
    return bool(names[0]) and names[0] == names[1] and "/" in f"{one.cgroup}{other.cgroup}"
