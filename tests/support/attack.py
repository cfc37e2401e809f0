# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make attack``: what strangers may send, made by chance, and what the commands make of it.

Each attack is a number of its own: it chooses one of :data:`KINDS` (bundles, trees of /proc, texts
of page_owner and of perf, lakes, guard's folders and triggers, headers of dumps, names that are to
be replaced, text for the terminal, archives, any text as it comes), spoils a good input, and runs
commands that read it, each in a process of its own. Counted is what no command may do:
:data:`FAILURES`.

Ends with 1 where there is any. The seed is printed; the same seed gives the same attacks:

    python tests/support/attack.py --attacks 300 --seed 7
    python tests/support/attack.py --attacks 10000 --seconds 28800     # as many as a night has
    python tests/support/attack.py --seed 7 --only 41      # one, with what it said; its files stay

Costs a second of CPU an attack, and 1 GiB of memory at most. Cannot know: what an input does
that is not among these, or what a command does as another user.
"""

import argparse
import atexit
import collections
import concurrent.futures
import contextlib
import csv
import gzip
import html.parser
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests/support", "tests/lab", "tests", ".")]

import archive_files  # noqa: E402
import children  # noqa: E402
import hostile  # noqa: E402
import log_forms  # noqa: E402
import log_made  # noqa: E402
import perf_forms  # noqa: E402
from elf_files import vmcore  # noqa: E402
from kdump_files import kdump  # noqa: E402
from made_lake import small  # noqa: E402
from report_bundle import tables, write_bundle  # noqa: E402

from mmscope.perf import recipe  # noqa: E402
from mmscope.reports.lake.adding import add  # noqa: E402

FAILURES = ("traceback", "signal", "hang", "over 1 GiB", "escape", "live markup", "followed link",
            "name left", "flood")  # fmt: skip
SECONDS, MOST_KIB, MOST_READ, MOST_SAID = 120, 1 << 20, 64 << 20, 1 << 16
HUNG = (-signal.SIGPROF, -signal.SIGALRM)
CORPUS = ROOT / "tests/corpus"
TAG = "zqattack"
SECRET = "zqsecret"
# Texts that anybody may give a process, a cgroup, a file or a host.
NASTY = (
    f"<{TAG} onload=x>", f"</script><{TAG}>", f"\"><{TAG} x=\"", f"'><{TAG}", f"--><{TAG}><!--",
    f"</style><{TAG}>", "\x1b]52;c;eA==\x07", "\x1b[31m", "\x9b31m", "\u202etxt", "\u2066", "\0",
    "\r", "a\nmmscope: done", "'; drop table zones; --", "{{7*7}}", "{0.__class__}", "%s%n", "=c()",
    "../../../../etc/passwd", "/dev/zero", "x" * 5000, "\ud800", "[k]", "a;b;c 7", "-1", "1e400",
    "NaN", "9" * 400, "-" + "9" * 30, "0x" + "f" * 40, "true", "", " ", ",", '"', "\t", "\\", "**",
)  # fmt: skip
JUNK: tuple[Any, ...] = (*NASTY, None, True, -1, 0, 1 << 80, 1.5, [], {}, [[]], {"a": {}}, "zones")
# What a terminal may act on: controls, and marks that turn the direction.
CONTROLS = {*map(chr, range(32)), *map(chr, range(127, 160)), *"\u200e\u200f\u061c\u202a\u202b"} | {
    *"\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}
CONTROLS -= {"\n", "\t"}
# Made once; attacks spoil copies.
GOOD = Path(tempfile.mkdtemp(prefix="mmscope-attack."))
atexit.register(shutil.rmtree, GOOD, ignore_errors=True)


class Scene:
    """
    One attack: its folder, its dice, and files that nothing may touch.

    :ivar commands: what is run, in this order.
    :ivar gone: a word that none of what they write may have.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = folder, dice
        self.commands: list[list[Any]] = []
        self.gone: str | None = None
        (folder / "canary").mkdir()
        (folder / "canary/file").write_text("untouched\n")

    def touched(self) -> bool:
        canary = self.folder / "canary"
        return os.listdir(canary) != ["file"] or (canary / "file").read_text() != "untouched\n"

    def link(self, path: Path, target: str | Path) -> None:
        """Put a link there; of root's own inputs, it is another user's."""
        path.symlink_to(target)
        if os.geteuid() == 0:
            os.lchown(path, 65534, 65534)

    def text(self) -> str:
        """Some nasty text, alone or within another."""
        one = self.dice.choice(NASTY)
        return self.dice.choice((one, f"a{one}b", one + self.dice.choice(NASTY)))

    def bytes(self, path: Path) -> None:
        """Spoil bytes of a file: some flip, some are missing, some are there twice."""
        data = bytearray(path.read_bytes()) or bytearray(b"x")
        for _ in range(self.dice.choice((1, 3, 30))):
            at = self.dice.randrange(len(data))
            how = self.dice.randrange(5)
            if how == 0:
                data[at] ^= 1 << self.dice.randrange(8)
            elif how == 1:
                del data[at : at + self.dice.choice((1, 9, 900))]
            elif how == 2:
                data[at:at] = data[: self.dice.choice((1, 90, 9000))]
            elif how == 3:
                data[at:at] = self.text().encode("utf-8", "surrogatepass")
            else:
                data[at : at + 8] = self.dice.choice((b"\xff", b"\0", b"9", b"\x7f")) * 8
            data = data[: 4 << 20] or bytearray(b"x")
        path.write_bytes(data)

    def other(self, path: Path) -> None:
        """Put something else in a file's place: a pipe, a link, a folder, a device, or nothing."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        how = self.dice.randrange(7)
        if how == 0:
            os.mkfifo(path)
        elif how == 1:
            self.link(path, self.folder / "canary/file")
        elif how == 2:
            self.link(path, self.folder / "canary")
        elif how == 3:
            self.link(
                path, self.dice.choice(("/dev/zero", "/dev/null", path.name, "/proc/self/mem"))
            )
        elif how == 4:
            path.mkdir()
        elif how == 5:
            with path.open("wb") as file:
                file.truncate(1 << 40)

    def json(self, path: Path) -> None:
        """Spoil some values of a JSON file, wherever they are."""
        data = json.loads(path.read_text())
        if not isinstance(data, dict | list):  # of guard's files some are a text of anybody's
            return
        for _ in range(self.dice.choice((1, 1, 3, 9))):
            here = data
            while True:
                keys = list(here) if isinstance(here, dict) else list(range(len(here)))
                if not keys:
                    break
                key = self.dice.choice(keys)
                if isinstance(here[key], dict | list) and here[key] and self.dice.random() < 0.8:
                    here = here[key]
                    continue
                here[key] = self.dice.choice((*JUNK, self.text()))
                break
        text = json.dumps(data)
        if self.dice.random() < 0.1:
            text = text.replace("1", "1e999", 1).replace("2", "[" * 5000, self.dice.randrange(2))
        path.write_text(text)

    def cells(self, path: Path, make: Callable[[], str], only: Callable[[str], bool]) -> None:
        """Spoil cells of a table, of the columns that are wanted."""
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        columns = [n for n, name in enumerate(rows[0]) if only(name)]
        if not columns:
            return
        for _ in range(self.dice.choice((1, 5, 50))):
            if rows[1:]:
                self.dice.choice(rows[1:])[self.dice.choice(columns)] = make()
        with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)

    def spoil(self, folder: Path) -> None:
        """Spoil some files of a folder."""
        for _ in range(self.dice.choice((1, 2, 5))):
            # Not through a link that an earlier turn put there.
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            files = [path for path in files if path.lstat().st_size < 8 << 20]
            files = [path for path in files if not path.is_symlink()]
            if not files:
                return
            path = self.dice.choice(files)
            how = self.dice.randrange(6)
            if how == 0:
                self.other(path)
            elif how == 1 and path.suffix == ".json":
                with contextlib.suppress(ValueError, RecursionError):
                    self.json(path)
            elif how < 4 and path.suffix == ".csv":
                with contextlib.suppress(ValueError, IndexError, csv.Error):
                    self.cells(path, self.text, lambda _: True)
            else:
                self.bytes(path)

    def asked(self, bundle: Path) -> list[list[Any]]:
        """The commands over a bundle."""
        table = self.dice.choice(("zones", "free_blocks", "page_tables", "profiles", "settings"))
        form = self.dice.choice(("table", "csv", "json"))
        return [
            ["show", table, bundle, "--format", form],
            ["redact", bundle, "-o", "redacted"],
            *self.one_of(
                [["show", "tables", bundle]],
                [["findings", bundle, "-a"]],
                [["why", bundle]],
                [["report", bundle, "-o", "report.html"]],
                [["compare", good("bundle"), "-o", "c.html", "--", bundle]],
            ),
        ]

    def one_of(self, *commands: list[list[Any]]) -> list[list[Any]]:
        """Of commands that ask the same of an input: another attack asks by another."""
        return self.dice.choice(commands)


def bundles(scene: Scene) -> None:
    """A bundle of a stranger's."""
    bundle = scene.folder / "bundle"
    shutil.copytree(good("bundle"), bundle)
    if scene.dice.random() < 0.15:
        hostile.BUNDLES[scene.dice.choice(sorted(hostile.BUNDLES))](bundle)
    else:
        scene.spoil(bundle)
    scene.commands = scene.asked(bundle)


def trees(scene: Scene) -> None:
    """A tree of /proc and /sys."""
    tree = scene.folder / "tree"
    shutil.copytree(ROOT / "tests/data/7.2", tree)
    scene.spoil(tree)
    scene.commands = scene.one_of(
        [["collect", "--proc-root", tree, "-o", "c"], ["report", "c", "-o", "report.html"]],
        [["watch", "--count", "2", "--interval", "0.01", "--proc-root", tree, "-o", "w"]],
        [["why", tree]],
    )


def texts(scene: Scene) -> None:
    """A text of page_owner's."""
    path = scene.folder / "text"
    shutil.copy(corpus(scene, "page_owner", "counts"), path)
    scene.other(path) if scene.dice.random() < 0.1 else scene.bytes(path)
    scene.commands = [
        ["page-owner", path, "-o", "b"],
        ["show", "page_owner", path],
        ["why", path],
    ]


def recordings(scene: Scene) -> None:
    """A text of perf's."""
    path = scene.folder / "text"
    path.write_bytes(corpus(scene, "perf").read_bytes()[1:])
    scene.other(path) if scene.dice.random() < 0.1 else scene.bytes(path)
    name = scene.dice.choice(recipe.names())
    scene.commands = [
        ["record", name, "--input", path, "-o", "b"],
        ["report", "b", "-o", "report.html"],
        ["show", "profiles", "b", "--format", scene.dice.choice(("folded", "speedscope", "csv"))],
    ]


def lakes(scene: Scene) -> None:
    """A lake that somebody spoiled."""
    lake = scene.folder / "lake"
    shutil.copytree(good("lake"), lake)
    if scene.dice.random() < 0.2:
        inside = [path for path in sorted(lake.rglob("*")) if path.is_dir()]
        place = scene.dice.choice([*inside, lake / ".stage"])
        shutil.rmtree(place, ignore_errors=True)
        scene.link(place, scene.folder / "canary")
    else:
        scene.spoil(lake)
    scene.commands = [
        *scene.one_of(
            [["lake", "findings", lake, "--format", "csv"]],
            [["lake", "show", lake], ["lake", "show", lake, "zones"]],
            [["lake", "report", lake, "-o", "report.html"]],
            [["why", lake]],
        ),
        ["lake", "add", good("small"), lake],
        ["lake", "show", lake, "bundles"],
    ]


TRIGGER = """title = {title}
severity = "notice"
hold = {hold}
sql = {sql}
"""
QUERIES = (
    "select 1", "select hex(zeroblob(400000000))", "select * from marks", "attach 'canary/x' as x",
    "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n",
    "with recursive n(i) as (select 1 union all select i + 1 from n) select randomblob(8000) as b "
    "from n order by b",
    "vacuum into 'canary/x'", "pragma writable_schema = 1", "select load_extension('x')",
)  # fmt: skip


def guards(scene: Scene) -> None:
    """A folder of captures, and triggers."""
    folder, triggers = scene.folder / "guard", scene.folder / "triggers"
    capture = folder / "2026-11-23T02-46-58Z-oom-kill"
    capture.mkdir(parents=True)
    triggers.mkdir()
    incident = {"name": capture.name, "title": scene.text(), "trigger": "x", "state": "running"}
    incident |= {"severity": "notice", "at": "2026-11-23T02:46:58+00:00", "host": scene.text()}
    (capture / "incident.json").write_text(json.dumps(incident))
    (capture / "report.html").write_text("<p>")
    for name in (".guard.pid", ".capture.lock", ".left-alone", ".dumps.json"):
        (folder / name).write_text(scene.text().encode("utf-8", "replace").decode())
        (folder / name).chmod(0o600)
    scene.spoil(folder)
    if scene.dice.random() < 0.2:
        place = scene.dice.choice((folder, capture))
        shutil.rmtree(place)
        scene.link(place, scene.folder / "canary")
    words = {
        "title": json.dumps(scene.text()),
        "hold": scene.dice.choice(("1", "1e999", "-1", '"x"')),
        "sql": json.dumps(scene.dice.choice((*QUERIES, scene.text()))),
    }
    (triggers / "mine.toml").write_text(TRIGGER.format(**words), errors="replace")
    if scene.dice.random() < 0.3:
        scene.spoil(triggers)
    (scene.folder / "crashes/202611230100").mkdir(parents=True)
    (scene.folder / "crashes/202611230100/dump.202611230100").write_bytes(vmcore())
    # Its folder is a file: triggers are looked at before.
    scene.commands = [
        ["guard", "crash", "-o", folder, "--settled", "0", "crashes"],
        ["guard", "trigger", "-o", folder],
        ["guard", "run", "--text", "--triggers", triggers, "-o", scene.folder / "canary/file"],
    ]


def dumps(scene: Scene) -> None:
    """Headers of a dump."""
    path = scene.folder / "dump"
    how = scene.dice.randrange(3)
    if how == 0:
        path.write_bytes(vmcore())
    elif how == 1:
        path.write_bytes(kdump([(20480 + 4096 * n, 4096) for n in range(9)]))
    else:
        shutil.copy(corpus(scene, "core"), path)
    scene.bytes(path)
    # Of numbers in headers most are powers of two, or one less.
    data = bytearray(path.read_bytes())
    for _ in range(scene.dice.randrange(4)):
        at = scene.dice.randrange(0, min(len(data), 4600) // 4 * 4 + 4, 4)
        value = (1 << scene.dice.randrange(64)) - scene.dice.randrange(2)
        data[at : at + 8] = value.to_bytes(8, "little")
    path.write_bytes(data)
    scene.commands = [
        ["collect", "--core", path, "-o", "c"],
        ["show", "zones", "--core", path],
        ["why", path],
    ]


def redactions(scene: Scene) -> None:
    """Names that are to be replaced, in every place where somebody may write one."""
    bundle = scene.folder / "bundle"
    shutil.copytree(good("everything"), bundle)
    scene.gone = SECRET
    forms = (
        *(SECRET, f"{SECRET}-7", f"a {SECRET} b", f"/x/{SECRET}/y.c", f"{SECRET}.slice"),
        *(f"f [{SECRET}]", f"<{SECRET}>", f"x={SECRET}", f"{SECRET}(12:b)", f"kmalloc-{SECRET}"),
    )
    description = json.loads((bundle / "datapackage.json").read_text())
    for resource in scene.dice.sample(description["resources"], 9):
        resource["title"] = scene.dice.choice(forms)
        if resource.get("format") == "folded" or resource["name"] == "sections":
            continue
        fields = {
            f["name"]
            for f in resource["schema"]["fields"]
            if f["type"] == "string"
            and (f.get("holds") != "kernel" or f["name"] in ("cache", "module"))
        }
        scene.cells(
            bundle / resource["path"], lambda: scene.dice.choice(forms), fields.__contains__
        )
    description["target"] |= {"hostname": SECRET, SECRET: SECRET, "source": f"/x/{SECRET}"}
    (bundle / "datapackage.json").write_text(json.dumps(description))
    for path in sorted(bundle.glob("*.folded"))[:3]:
        with path.open("a") as file:
            file.write(f"{SECRET};{SECRET}_main;[{SECRET}.so];sys_read_[k] 7\n")
            file.write(f"java;{SECRET} [{SECRET}]_[k] 7\n")
    scene.commands = [["redact", bundle, "-o", "redacted"], ["report", "redacted", "-o", "r.html"]]


def terminals(scene: Scene) -> None:
    """Names of folders, hosts and processes that a terminal might act on."""
    name = "".join(c for c in scene.text()[:100] if c not in "/\0").encode("utf-8", "surrogatepass")
    bundle = scene.folder / (os.fsdecode(name) or "b") / "bundle"
    shutil.copytree(good("bundle"), bundle)
    for path in scene.dice.sample(sorted(bundle.glob("*.csv")), 4):
        scene.cells(path, scene.text, lambda _: True)
    scene.commands = [
        *scene.asked(bundle),
        ["lake", "add", bundle, "lake"],
        ["collect", "--core", bundle],
    ]


def archives(scene: Scene) -> None:
    """An archive: its names, links, devices, bombs, and how many of them."""
    path = scene.folder / "archive"
    tree = {f"x/{name}": content for name, content in archive_files.tree().items()}
    made = archive_files.archive(scene.dice, tree, scene.text, str(scene.folder / "canary/file"))
    path.write_bytes(made)
    if scene.dice.random() < 0.3:
        scene.bytes(path)
    scene.commands = scene.one_of(
        [["collect", path, "-o", "c"], ["report", "c", "-o", "report.html"]],
        [["why", path]],
    )


def any_text(dice: random.Random) -> bytes:
    """A text that ``why`` recognises: of /proc, of page_owner, of perf, a log or a journal."""
    how = dice.randrange(4)
    if how == 0:
        return dice.choice(sorted(archive_files.tree().items()))[1]
    if how == 1:
        name = dice.choice(sorted(each.name for each in CORPUS.iterdir() if each.name != "core"))
        data = dice.choice(sorted((CORPUS / name).iterdir())).read_bytes()
        return data[name == "perf" :]
    if how == 2:
        return perf_forms.render(perf_forms.samples(dice, 60), perf_forms.random_form(dice, 60))
    made = [log_made.CGROUP_V1, log_made.GLOBAL_3_10, log_made.FAILURE]
    records = log_forms.records_of("".join(dice.sample(made, 2)))
    if dice.random() < 0.5:
        lines = log_forms.with_prefix(dice.choice(sorted(log_forms.PREFIXES)), records)
    else:
        lines = log_forms.STRUCTURED[dice.choice(sorted(log_forms.STRUCTURED))](records)
    mangle = dice.choice([*log_forms.PLAIN.values(), *log_forms.LOSSY.values()])
    return mangle(lines, dice).encode()


def doors(scene: Scene) -> None:
    """Texts as they come, one or some, whatever they are called, packed or in a folder."""
    given = []
    for number in range(scene.dice.choice((1, 1, 2, 5))):
        name = scene.dice.choice(("meminfo", "dmesg", "vmcore", "smaps", "x.json", "text"))
        path = scene.folder / scene.dice.choice(("", "in", "in/proc")) / f"{name}{number or ''}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(any_text(scene.dice))
        for _ in range(scene.dice.randrange(3)):
            scene.bytes(path)
        if scene.dice.random() < 0.2:
            path.write_bytes(gzip.compress(path.read_bytes()))
            if scene.dice.random() < 0.5:
                scene.bytes(path)
        if scene.dice.random() < 0.1:
            scene.other(path)
        given.append(path if path.parent == scene.folder else scene.folder / "in")
    given = [*dict.fromkeys(given)]
    scene.commands = scene.one_of(
        [["collect", *given, "-o", "c"], ["report", "c", "-o", "report.html"]],
        [["why", *given]],
        [["why", "--json", *given]],
    )


KINDS = (
    *(bundles, trees, texts, recordings, lakes, guards, dumps, redactions, terminals),
    *(archives, doors),
)


def corpus(scene: Scene, *names: str) -> Path:
    """An input that was a defect once, or is good."""
    return scene.dice.choice([p for name in names for p in sorted((CORPUS / name).iterdir())])


def good(name: str) -> Path:
    return GOOD / name


def make_good() -> None:
    """What is spoiled."""
    hostile.base(good("bundle"))
    write_bundle(good("everything"), tables())
    small(good("small"), "other", kills=3)
    hosts = [small(GOOD / f"host{n}", f"host{n}", kills=n) for n in range(3)]
    add(good("lake"), [*hosts, good("bundle")], lambda line: None, jobs=1)


class Tags(html.parser.HTMLParser):
    """What a browser takes for an element, or for an address that is run."""

    live = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = [(name, (value or "").strip().lower()) for name, value in attrs]
        runs = any(name in ("href", "src") and v.startswith("javascript:") for name, v in values)
        self.live |= tag.startswith(TAG) or any(n == "onload" for n, _ in values) or runs


class Runner(threading.local):
    """The process that begins each command of a thread's attacks."""

    def __init__(self) -> None:
        words = [sys.executable, str(ROOT / "tests/support/each_alone.py"), str(SECONDS)]
        self.process = subprocess.Popen(
            [*children.DIES_WITH_US, *words], cwd=ROOT, text=True, stdin=-1, stdout=-1
        )

    def __call__(self, folder: Path, command: list[Any]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        words = [str(word) for word in command]
        self.process.stdin.write(json.dumps([str(folder), words]) + "\n")
        self.process.stdin.flush()
        result: dict[str, Any] = json.loads(self.process.stdout.readline())
        return result


def wrong_with(command: list[Any], ran: dict[str, Any]) -> Iterator[str]:
    """What a command did that none may do."""
    # CSV that goes into a file or a pipe has what the kernel has, byte for byte.
    printed = "" if "csv" in command else ran["head"]
    if "Traceback" in ran["stderr"] or "-v shows where" in ran["stderr"] or ran["code"] > 3:
        yield "traceback"
    if ran["code"] in HUNG:
        yield "hang"
    elif ran["code"] < 0:
        yield "signal"
    if ran["kib"] > MOST_KIB:
        yield "over 1 GiB"
    if CONTROLS & {*ran["stderr"], *printed}:
        yield "escape"
    if len(ran["stderr"]) > MOST_SAID:
        yield "flood"


def written(folder: Path) -> Iterator[Path]:
    """Files that commands wrote."""
    for name in ("report.html", "r.html", "c.html", "redacted", "guard/index.html"):
        path = folder / name
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (one for one in path.iterdir() if one.is_file())


def attack(seed: str, number: int, run: Runner, keep: bool = False) -> dict[str, list[str]]:
    """Make one attack; returns what went wrong, by what it is."""
    folder = Path(tempfile.mkdtemp(prefix="mmscope-attack."))
    scene = Scene(folder, random.Random(f"{seed} {number}"))
    found: dict[str, list[str]] = collections.defaultdict(list)
    try:
        KINDS[number % len(KINDS)](scene)
        for command in scene.commands:
            ran = run(folder, command)
            words = " ".join(map(str, command)).encode("unicode_escape").decode()[:200]
            for what in wrong_with(command, ran):
                found[what].append(
                    f"{words}: {ran['code']}, {ran['kib'] >> 10} MiB, {ran['stderr'][-300:]!r}"
                )
            if keep:
                print(words, ran["code"], f"{ran['kib'] >> 10} MiB", ran["stderr"], sep="\n  ")
        for path in written(folder):
            with path.open(errors="replace") as file:
                text = file.read(MOST_READ)
            tags = Tags()
            if path.suffix == ".html":
                tags.feed(text)
            if tags.live:
                found["live markup"].append(path.name)
            if scene.gone and scene.gone in text:
                at = text.index(scene.gone)
                found["name left"].append(f"{path.name}: {text[max(at - 80, 0) : at + 40]!r}")
        if scene.touched():
            found["followed link"].append("canary")
    finally:
        if keep:
            print(f"its files are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", type=int, default=300)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="this attack, and keep its files"
    )
    parser.add_argument(
        "--kinds",
        default=",".join(kind.__name__ for kind in KINDS),
        help="of these alone, with commas between",
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="no attack begins after")
    args = parser.parse_args()
    begin, run = time.monotonic(), Runner()
    counts, done = collections.Counter[str](), collections.Counter[str]()
    kinds = [kind.__name__ for kind in KINDS]
    numbers = [n for n in range(args.attacks) if kinds[n % len(kinds)] in args.kinds.split(",")]
    print(f"seed {args.seed}, {len(numbers):,} attacks: {args.kinds}", flush=True)
    make_good()
    if args.only is not None:
        return 1 if attack(args.seed, args.only, run, keep=True) else 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # Those that are left when the time is over are not made.
        made = pool.map(
            lambda n: (
                attack(args.seed, n, run) if time.monotonic() < begin + args.seconds else None
            ),
            numbers,
        )
        for number, found in zip(numbers, made, strict=True):
            if found is None:
                break
            done[kinds[number % len(kinds)]] += 1
            for what, where in found.items():
                counts[what] += 1
                kind = kinds[number % len(kinds)]
                print(f"{kind}, --seed {args.seed} --only {number}: {what}: {where[0]}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{done.total():,} attacks in {seconds:,.0f} s ({json.dumps(done)}): "
          + ", ".join(f"{counts[what]} {what}" for what in FAILURES))  # fmt: skip
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
