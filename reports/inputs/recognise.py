# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Kinds of files, by what they begin with, and never by their name.

Cannot know: what a text is that has none of the marks below in its first 64 KiB; it is said what it
looks like.
"""

import re
from dataclasses import dataclass

from mmscope.drgn.cgroups.cgroup_files import GIVEN
from mmscope.drgn.dumps.core_file import KDUMP
from mmscope.drgn.dumps.wrapped import FLATTENED
from mmscope.drgn.log.log_places import KERNEL_LINE
from mmscope.drgn.machine.settings import OF_SYSCTL
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.text.meminfo import KSTATS
from mmscope.drgn.text.packed import JOURNAL, UTF_16
from mmscope.drgn.text.program_kills import KILL
from mmscope.drgn.text.text_source import recognise as recognise_page_owner
from mmscope.perf.perf_record import PERF_DATA as PERF_MAGICS
from mmscope.perf.perf_script import is_perf_text

HEAD_BYTES = 64 << 10
TAR, ZIP = "tar", "zip"
# Kinds: each is read by another part of mmscope.
VMCORE, LOG, PERF_DATA, PERF_TEXT, PAGE_OWNER, TREE, PASTED, UNKNOWN = (
    *("vmcore", "log", "perf.data", "perf text", "page_owner", "tree", "pasted", ""),
)

EMPTY = "an empty file"


@dataclass(frozen=True)
class Kind:
    """
    Kind of a file.

    :ivar name: one of those above, ``tar`` or ``zip``; empty: it is not recognised.
    :ivar words: what it was taken for, or looks like.
    :ivar place: of what a tree of /proc and /sys has: where.
    """

    name: str
    words: str
    place: str = ""


# The pressure of the CPU and of I/O has the same form: the name of a file tells which it is.
PRESSURE = "proc/pressure/memory"
# Lines of these two, which are known without their first ones.
_SLAB = rb"\S.{0,62}?(?: +\d+){5} : tunables(?: +\d+){3} : slabdata(?: +\d+){3}"
# A row of slabtop, without the blanks before it.
_OF_SLABTOP = rb"\d+ +\d+ +\d+% +\d+[.,]\d\dK +\d+ +\d+ +\d+K \S{1,63}"
_TAG = rb" *-?\d+ +\d+ \S.{0,300}?:\d+ (?:\[\S{1,64}\] )?func:\S[^\n]{0,300}"
# The first line of `sysctl -a`, or of a part of it: other settings have such names, too.
_SYSCTL = (
    rb"\A(?:(?:abi|kernel|vm)\.[\w.-]+ = |crypto\.fips_|debug\.(?:exception-trace|kprobes)"
    rb"|dev\.(?:cdrom|hpet|raid|scsi|tty)\.|fs\.(?:aio-|binfmt_misc|dentry-state|file-|inode-)"
    rb"|net\.(?:core|ipv4|ipv6|netfilter)\.|user\.max_)"
)
_MAPPING = rb"\A[0-9a-f]{4,16}-[0-9a-f]{4,16} [r-][w-][x-][sp-] [0-9a-f]{8,16} \S+ \d+"
# What a tree has: a pattern of its beginning, and its path. PID stands for an unknown process.
TEXTS = (
    (rb"\A(?:allocinfo - version: |" + _TAG + rb"$)", "proc/allocinfo"),
    (rb"\A(?:slabinfo - version: |# name +<active_objs> |" + _SLAB + rb" *\r?$)", "proc/slabinfo"),
    (rb"\AMemTotal:[ \t]+\d+ kB\r?$", "proc/meminfo"),
    (rb"\APage block order: ", "proc/pagetypeinfo"),
    (rb"\ALinux version \d[^\n]*\n?\Z", "proc/version"),
    (rb"\ANode +\d+, zone +\S+(?: +\d+){4,} *\r?$", "proc/buddyinfo"),
    (rb"\ANode +\d+, zone +\S+ *\r?\n(?:.*\n){0,80} +pages free", "proc/zoneinfo"),
    (rb"\Anr_free_pages \d+\r?$", "proc/vmstat"),
    (rb"\AFilename\s+Type\s+Size", "proc/swaps"),
    (rb"\A0x[0-9a-f]+-0x[0-9a-f]+ +\d+ ", "proc/vmallocinfo"),
    (rb"\A *[0-9a-f]{8,16}-[0-9a-f]{8,16} : \w", "proc/iomem"),
    (rb"\AName:\s.*\n(?:Umask|State):\s", "proc/PID/status"),
    (rb"\Asome avg10=[\d.]+ avg60=[\d.]+ avg300=[\d.]+ total=\d+\r?$", PRESSURE),
    (_MAPPING + rb" +\[rollup\]", "proc/PID/smaps_rollup"),
    (_MAPPING + rb".*\nSize: ", "proc/PID/smaps"),
    (_MAPPING, "proc/PID/maps"),
    (
        rb"\A\d+ 1 0x[0-9a-f]+(?: \d+){4} *\r?\nname +type +data *\r?\n(?:.*\n){0,120}?c_max ",
        KSTATS[1],
    ),
    (rb"\A(?:anon \d+\r?\nfile|file \d+\r?\nanon) \d+\r?$", f"sys/fs/cgroup/{GIVEN}/memory.stat"),
    (rb"\Acache \d+\r?\nrss \d+\r?$", f"sys/fs/cgroup/memory/{GIVEN}/memory.stat"),
    (_SYSCTL, OF_SYSCTL),
    (rb"\Alow \d+\r?\nhigh \d+\r?\nmax \d+\r?$", f"sys/fs/cgroup/{GIVEN}/memory.events"),
)
# What /proc/vmstat has, and the vmstat of a NUMA node in /sys has not (vmstat_text, mm/vmstat.c).
_OF_ALL_NODES = re.compile(rb"^[> \t]*(?:pgfault|nr_dirty_threshold) \d+\r?$", re.MULTILINE)
_OF_KILL = re.compile(rb"Memory cgroup stats for [^\n]*\n\Z")
_CUT_VMSTAT = (
    "the vmstat of a NUMA node, or the beginning of /proc/vmstat, and which cannot be told: bring "
    "/proc/vmstat as a whole"
)
# The same among other words, quoted or indented: how such a text begins, and how it goes on.
# Tables whose lines mails have wrapped go on with numbers, or with names of migratetypes.
_NUMBERS = rb" *\d+(?: +\d+)*"
_PASTED = {
    "proc/meminfo": (rb"MemTotal: +\d+ kB", rb"[A-Za-z]\S{0,39}: +\d+(?: kB)?", 1),
    "proc/vmstat": (rb"nr_free_pages \d+", rb"[a-z]\w{0,60} \d+", 4),
    "proc/buddyinfo": (
        rb"Node +\d+, zone +\w+(?: +\d+){4,}",
        rb"(?:Node +\d+, zone +\w+(?: +\d+){4,}|" + _NUMBERS + rb")",
        0,
    ),
    "proc/zoneinfo": (rb"Node +\d+, zone +\w+", rb"(?: +\S[^\n]*|Node +\d+, zone +\w+)", 4),
    "proc/pagetypeinfo": (
        rb"Page block order: \d+",
        rb"(?:(?:Page block|Pages per block|Free pages count|Number of|Node +\d+, zone)[^\n]*"
        rb"|" + _NUMBERS + rb"|(?: *(?:Unmovable|Movable|Reclaimable|HighAtomic|CMA|Isolate)\b)+|)",
        4,
    ),
    "proc/slabinfo": (
        rb"(?:slabinfo - version: [^\n]*\n(?P=before)#[^\n]*|"
        + _SLAB
        + rb"|"
        + _OF_SLABTOP
        + rb")",
        rb"(?:#[^\n]*|" + _SLAB + rb"|" + _OF_SLABTOP + rb")",
        0,
    ),
    "proc/allocinfo": (
        rb"(?:allocinfo - version: [^\n]*\n(?P=before)#[^\n]*|" + _TAG + rb")",
        rb"(?:#[^\n]*|" + _TAG + rb")",
        0,
    ),
    "proc/PID/smaps_rollup": (
        rb"[0-9a-f]{4,16}-[0-9a-f]{4,16} ---p 0{8,16} 00:00 0 +\[rollup\]",
        rb"[A-Z]\w{1,30}: +\d+ kB",
        2,
    ),
    OF_SYSCTL: (rb"vm\.\w{1,60} = -?\d+", rb"[a-z][\w.-]{1,100} = [^\n]{0,200}", 0),
    f"sys/fs/cgroup/{GIVEN}/memory.stat": (
        rb"anon \d+ *\r?\n(?P=before)file \d+",
        rb"[a-z]\w{0,60} \d+",
        2,
    ),
    f"sys/fs/cgroup/memory/{GIVEN}/memory.stat": (
        rb"cache \d+ *\r?\n(?P=before)rss \d+",
        rb"[a-z]\w{0,60} \d+",
        2,
    ),
}
PASTED_TEXTS = {
    place: re.compile(
        rb"^(?P<before>(?:> ?){0,4}%b)(?>%b *\r?)$"
        rb"(?:\n(?:(?P=before)|>*(?=[ \t\r]*$))(?>%b *\r?)$){%d,}"
        % (b"" if first.endswith(_TAG + b")") else rb"[ \t]{0,80}", first, more, least),
        re.MULTILINE,
    )
    for place, (first, more, least) in _PASTED.items()
}
_WRAPPED = re.compile(
    rb"(?<=\S) *\r?\n *((?:\d+(?: +\d+)*|(?:Unmovable|Movable|Reclaimable|HighAtomic|CMA|Isolate)"
    rb"(?: +(?:Movable|Reclaimable|HighAtomic|CMA|Isolate))*) *\r?)$",
    re.MULTILINE,
)
# Of slabinfo: what goes on with a row, or with the names of its columns.
_REST_OF_SLAB = re.compile(
    rb"(?<=\S)[ \t]*\r?\n(?:> ?){0,4}[ \t]*(?="
    rb"(?:(?:\d+|<\w+>) +)*(?:: *)?(?:tunables|slabdata)\b|<\w+>(?: +<\w+>)* *\r?$)",
    re.MULTILINE,
)
_END_OF_SLAB = re.compile(
    rb"( : tunables(?: +\d+){3} : slabdata(?: +\d+){0,2})[ \t]*\r?\n(?:> ?){0,4}[ \t]*"
    rb"(?=\d+(?: +\d+){0,2} *\r?$)",
    re.MULTILINE,
)
# The numbers of slabtop are aligned to the right.
_BEFORE_SLABTOP = re.compile(rb"^((?:> ?){0,4})[ \t]*(?=" + _OF_SLABTOP + rb" *\r?$)", re.MULTILINE)
# What each of them has, which is found sooner in a long log.
MARKS = {
    "proc/meminfo": (b"MemTotal:",),
    "proc/vmstat": (b"nr_free_pages ",),
    "proc/buddyinfo": (b", zone ",),
    "proc/zoneinfo": (b", zone ",),
    "proc/pagetypeinfo": (b"Page block order: ",),
    "proc/slabinfo": (b"slabdata", b"OBJ/SLAB"),
    "proc/allocinfo": (b" func:",),
    "proc/PID/smaps_rollup": (b"[rollup]",),
    OF_SYSCTL: (b"vm.",),
    f"sys/fs/cgroup/{GIVEN}/memory.stat": (b"anon ",),
    f"sys/fs/cgroup/memory/{GIVEN}/memory.stat": (b"rss ",),
}
# What is met often, and not read, in words that say what to do: output of other tools, at the
# beginning or among other words; and LOOKS, at the beginning alone.
OUTPUTS = (
    (rb"^ +total +used +free", "the output of free: bring /proc/meminfo"),
    (rb"^Node \d+ MemTotal:", "the meminfo of a NUMA node: bring /proc/meminfo"),
    (
        rb"^ *Active / Total Objects|^ *OBJS ACTIVE  USE ",
        "the output of slabtop without its rows: bring /proc/slabinfo",
    ),
    (rb"^CACHE +(?:NAME +)?OBJSIZE +ALLOCATED", "crash's kmem -s: bring the vmcore"),
    (rb"^ +PAGES +TOTAL +PERCENTAGE", "crash's kmem -i: bring the vmcore"),
    (
        rb"^(?:-+time-+ )?-*procs-* -+memory|^ +\d+ K total memory",
        "the output of vmstat: bring /proc/vmstat",
    ),
    (rb"^(?:```)?top - \d\d:", "the output of top: bring /proc/meminfo"),
    (rb"^USER +PID +%CPU|^UID +PID +PPID +C ", "the output of ps: bring /proc/meminfo"),
    (rb"^\d+: .*\nAddress +Kbytes", "the output of pmap: bring /proc/PID/smaps"),
    (
        rb"^[0-9a-f]{8,16} (?:default|bind|interleave|prefer)\S*(?: \S+)* kernelpagesize_kB=",
        "a process's numa_maps: bring its smaps",
    ),
    (
        rb" (?:kbmemfree|kbswpfree|kbhugfree|pgpgin/s|pswpin/s) ",
        "the output of sar: bring /proc/meminfo, or watch",
    ),
    (rb" minflt/s +majflt/s ", "the output of pidstat: bring /proc/PID/smaps_rollup, or watch"),
    (
        rb"^ *(?:Last )?State: +Terminated *\r?\n *Reason: +OOMKilled",
        "kubectl's words of a container that was killed at a limit or for the node's memory: bring "
        "the node's kernel log, which says which: journalctl -k",
    ),
    (
        rb"^(?:NAMESPACE +)?(?:POD +)?NAME +CPU\(cores\) +(?:CPU% +)?MEMORY\(bytes\)",
        "kubectl top's output: bring memory.stat of the pod's cgroup",
    ),
    (
        rb"^CONTAINER ID +NAME +CPU % +MEM USAGE",
        "docker stats' output: bring memory.stat of the container's cgroup",
    ),
    (
        rb"^(?:Control Group|CGroup) +Tasks +%CPU +Memory",
        "systemd-cgtop's output: bring memory.stat of the cgroup",
    ),
    (
        rb"^(?:Applications Memory Usage|Total PSS by process)",
        "dumpsys meminfo's output: bring /proc/meminfo",
    ),
    (
        rb"^# (?:Overhead|Samples: )|^ +\d+[.,]\d+% .*\[[k.]\] |^ *PerfTop: |^Samples: .* of event",
        "perf report's or perf top's output: bring perf script's text",
    ),
    (rb"^Swap Used Limit: ", "oomctl's output: bring the journal"),
    (
        rb"^ +pages free +\d+ *\r?\n +(?:boost|min) ",
        "a part of /proc/zoneinfo without the name of its zone: bring all of it",
    ),
    (
        rb"^[ \t]*(?:MemFree|MemAvailable|Cached|Slab|SReclaimable|SUnreclaim):[ \t]+\d+ kB",
        "some lines of a meminfo: bring /proc/meminfo",
    ),
    (
        rb"^[ \t]*(?:inactive_anon|slab_unreclaimable|workingset_refault_anon) \d+ *\r?$",
        "a part of a cgroup's memory.stat: bring all of it",
    ),
    (
        rb"^ *\d+(?:\.\d+)?[KMGT]i? +\d+ \S+:\d+ (?:\[\S+\] )?func:",
        "allocinfo after numfmt, whose sizes are rounded: bring /proc/allocinfo",
    ),
    (
        rb"^ +\d+\.\d{3} (?:\( *[\d.]+ ms\): )?\S+/\d+ [\w:]+\(",
        "perf trace's output: bring perf script's text",
    ),
    (rb"outstanding allocations", "memleak's output: bring page_owner or /proc/allocinfo"),
)
LOOKS = (
    (rb"\x7fELF", "an ELF file, but no dump of a kernel: a vmlinux is for --symbols"),
    (JOURNAL, "a journal's own file that is packed: unpack it before"),
    (rb"%PDF-", "a PDF: bring the text"),
    (
        rb"(?:[\t\r\n -~]\0){8}",
        "UTF-16 without its mark: convert it before: iconv -f UTF-16LE -t UTF-8 FILE",
    ),
    (
        rb"(?:\0[\t\r\n -~]){8}",
        "UTF-16 without its mark: convert it before: iconv -f UTF-16BE -t UTF-8 FILE",
    ),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0\0\0\0", "a picture: bring the text"),
    (rb"7z\xbc\xaf|Rar!|0707|\xed\xab\xee\xdb", "an archive that is not read: unpack it before"),
    (rb"\x04\x22\x4d\x18", "compressed with lz4: unpack it before: lz4 -d FILE"),
    (rb"(?i)\s*<(?:!doctype|html)", "a web page: bring the text itself"),
    (rb" +node0\b|\s*Per-node ", "the output of numastat: bring /proc/zoneinfo and vmstat"),
    (rb"# tracer: ", "text of ftrace: record it with perf, and bring perf script's"),
    (rb"(?:[^;\s][^;\n]*;)+[^;\n]* \d+\n", "folded stacks: bring the text of perf script"),
)
MOST_LINES = 0.5
LOG_LINE = re.compile(
    rb"^(?:<\d{1,3}>|\[)?(?:(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d"
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|\[? *\d{1,8}\.\d{3,6}\])",
    re.MULTILINE,
)
# Entries of a log store: the kernel's may come later than what is looked at here.
OF_ENTRIES = re.compile(
    rb'"(?:@?message|MESSAGE|log|textPayload|_raw|stringValue)" ?: ?"'
    rb'|"values" ?: ?\[\s*\[\s*"\d{19}"'
)
# Lines of the kernel about memory, behind any prefix.
ABOUT_MEMORY = re.compile(
    rb"oom-killer|Killed process \d+|page allocation failure|total-vm:\d+kB|Mem-[Ii]nfo:"
    rb"|active_anon:\d|Tasks state \(memory values|\[ *pid *\] +uid +tgid|lowmem_reserve\[\]:"
    rb"|oom_reaper: |Call [Tt]race:|Kernel panic - not syncing|BUG: "
)


def recognise(head: bytes) -> Kind:
    """
    Tell the kind of a file.

    :param head: its first bytes, at most :data:`HEAD_BYTES`, of one that is packed unpacked.
    """
    if kind := _binary(head):
        return kind
    head = as_utf8(head)
    if not head.strip(b"\0 \t\r\n"):
        return Kind(UNKNOWN, "nothing but zeros and spaces" if head else EMPTY)
    if kind := _text(head):
        return kind
    if several := pasted(head):
        names = ", ".join(dict.fromkeys(named(place, text) for place, text in several))
        return Kind(PASTED, f"a text with {names} in it")
    for pattern, words in LOOKS:
        if re.match(pattern, head):
            return Kind(UNKNOWN, words)
    among = [words for pattern, words in OUTPUTS if re.search(pattern, head, re.MULTILINE)]
    if among:
        return Kind(UNKNOWN, f"a text with {'; '.join(among)}")
    if b"\0" in head[:4096]:
        return Kind(UNKNOWN, f"something binary, which begins with {head[:8].hex(' ')}")
    first = visible(" ".join(head[:200].decode("utf-8", "replace").split()))[:50]
    return Kind(UNKNOWN, f"a text that mmscope does not know: {first!r}")


def named(place: str, text: bytes = b"") -> str:
    """A file of a tree, or what has the same in it, as one calls it where it stands alone."""
    if place == "proc/slabinfo" and text and b"slabdata" not in text:
        return "slabtop's output"
    if place == OF_SYSCTL:
        return "sysctl's output"
    name = place.rpartition("/")[2]
    if "/PID/" in place:
        return f"a process's {name}"
    return f"a cgroup's {name}" if f"/{GIVEN}/" in place else f"/{place}"


def pasted(text: bytes) -> list[tuple[str, bytes]]:
    """Files of /proc among other words, without what is before each line, by their path."""
    if b"slabdata" in text:
        text = unwrapped("proc/slabinfo", text)
    if b"OBJ/SLAB" in text:
        text = _BEFORE_SLABTOP.sub(rb"\1", text)
    found = [
        (match, place)
        for place, each in PASTED_TEXTS.items()
        if any(mark in text for mark in MARKS[place])
        for match in each.finditer(text)
    ]
    texts, end = [], 0
    for match, place in sorted(found, key=lambda each: each[0].start()):
        if match.start() < end or _OF_KILL.search(text[: match.start()][-300:]):
            continue  # zoneinfo has lines of vmstat, a kill those of memory.stat
        width, end = len(match["before"]), match.end()
        lines = [line[width:].rstrip() for line in match[0].splitlines()]
        whole = unwrapped(place, b"\n".join(lines).rstrip(b"\n") + b"\n")
        if place != "proc/vmstat" or _OF_ALL_NODES.search(whole):
            texts.append((place, whole))
    return texts


def unwrapped(place: str, text: bytes) -> bytes:
    """A table of /proc whose lines were wrapped, or whose blanks are tabs, as it was."""
    if place == "proc/meminfo":
        return text.replace(b"\t", b" ")
    if place == "proc/slabinfo":
        return _END_OF_SLAB.sub(rb"\1 ", _REST_OF_SLAB.sub(b" ", text))
    if place not in ("proc/pagetypeinfo", "proc/buddyinfo"):
        return text
    return _WRAPPED.sub(rb" \1", text)


def without_cut_line(place: str, text: bytes) -> bytes:
    """A text without its last line where that is a row of fewer columns than the others."""
    lines = text.rstrip(b"\n").split(b"\n")
    cut = place == "proc/buddyinfo" and len(lines[-1].split()) < len(lines[0].split())
    return b"\n".join(lines[:-1]) + b"\n" if cut else text


def as_utf8(data: bytes) -> bytes:
    """A text as UTF-8, also of a program that writes UTF-16 with its mark."""
    if data.startswith(tuple(UTF_16)):
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(b"\xef\xbb\xbf")


def _binary(head: bytes) -> Kind | None:
    if head.startswith((KDUMP, FLATTENED)):
        return Kind(VMCORE, "a vmcore")
    if head.startswith(b"\x7fELF") and head[16:18] in (b"\x04\0", b"\0\x04"):  # ET_CORE
        return Kind(VMCORE, "a vmcore")
    if head.startswith(PERF_MAGICS):
        return Kind(PERF_DATA, "a recording of perf")
    if head.startswith(b"PK\3\4"):
        return Kind(ZIP, "an archive")
    if head[257:262] == b"ustar":
        return Kind(TAR, "an archive")
    return None


def _text(text: bytes) -> Kind | None:
    if page_owner := recognise_page_owner(text):
        return Kind(PAGE_OWNER, f"page_owner's {page_owner}".replace("'s page_owner", "'s text"))
    for pattern, place in TEXTS:
        if re.match(pattern, text, re.MULTILINE):
            if place in PASTED_TEXTS and len({other for other, _ in pasted(text)}) > 1:
                return None  # one behind the other
            if place == "proc/vmstat" and not _OF_ALL_NODES.search(text):
                return Kind(UNKNOWN, _CUT_VMSTAT)
            return Kind(TREE, named(place), place)
    journal = text.startswith(b"{") and b'"MESSAGE"' in text
    if journal or b"__REALTIME_TIMESTAMP=" in text[:400]:
        return Kind(LOG, "a journal's export")
    if is_perf_text(text):
        return Kind(PERF_TEXT, "text of perf script")
    return _log(text)


def _log(text: bytes) -> Kind | None:
    """A log, by the lines in it or by how most of them begin."""
    if ABOUT_MEMORY.search(text) or KERNEL_LINE.search(text.decode("utf-8", "replace")):
        return Kind(LOG, "a kernel log")
    if KILL.search(text.decode("utf-8", "replace")):
        return Kind(LOG, "a log of a program that ends processes to have memory")
    if re.match(rb"\s*[\[{]", text) and OF_ENTRIES.search(text):
        return Kind(LOG, "a log in JSON")
    if _most(LOG_LINE, text):
        return Kind(LOG, "a log")
    return None


def _most(pattern: re.Pattern[bytes], text: bytes) -> bool:
    """True if most lines begin so."""
    lines = sum(1 for line in text[:8192].split(b"\n") if line.strip() and line[:1] != b"#")
    return len(pattern.findall(text[:8192])) > MOST_LINES * lines
