# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a stranger may send, one attack each: bundles, logs of a watch, texts of page_owner and trees
of /proc. Made here, since most are gigabytes that take no room on disk, or are no files at all.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import report_bundle
from checkout import TESTS
from page_owner_inputs import make_stacks, show_handles, show_stacks

from mmscope.reports.watch.sample_log import NAME

Attack = Callable[[Path], None]
GIB = 1 << 30
# More than any reader keeps of a text (512 MiB), and than the memory that a command may have.
LARGE = 640 << 20
COUNTS = [(stack, 7) for stack in make_stacks(9)]


# Whose tables are spoiled, and what findings and pictures join with them.
SECTIONS = ("zones", "free_lists", "pageblocks", "page_tables", "vm_counters", "settings",
            "profiles")  # fmt: skip


def base(path: Path, sections: tuple[str, ...] = SECTIONS) -> None:
    """The bundle that is spoiled."""
    contents = report_bundle.tables() | report_bundle.profile_rows()
    report_bundle.write_bundle(
        path, {name: table for name, table in contents.items() if table[-1] in sections}
    )


def described(change: Callable[[dict[str, Any]], object]) -> Attack:
    """Another description."""

    def attack(bundle: Path) -> None:
        path = bundle / "datapackage.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return attack


def written(name: str, pieces: Callable[[bytes], Iterator[bytes]]) -> Attack:
    """Another file; made of its first line."""

    def attack(bundle: Path) -> None:
        path = bundle / name
        header = path.read_bytes().partition(b"\n")[0] + b"\n"
        with path.open("wb") as file:
            file.writelines(pieces(header))

    return attack


def sparse(name: str, size: int) -> Attack:
    """A file that says to have so many bytes: zeros, and no end of the line."""

    def attack(bundle: Path) -> None:
        with (bundle / name).open("ab") as file:
            file.truncate(size)

    return attack


def numbers(value: int, *tables: str) -> Attack:
    """Tables whose amounts are all the same."""

    def attack(bundle: Path) -> None:
        for table in tables:
            path = bundle / f"{table}.csv"
            header, *lines = path.read_text().splitlines()
            keys = 4 if table == "free_blocks" else 2
            path.write_text(header + "\n")
            with path.open("a") as file:
                for line in lines:
                    cells = line.split(",")
                    cells[keys:] = [str(value) if c.isdigit() else c for c in cells[keys:]]
                    file.write(",".join(cells) + "\n")

    return attack


def edited(name: str, old: bytes, new: bytes) -> Attack:
    """A file with other bytes in one place."""

    def attack(bundle: Path) -> None:
        path = bundle / name
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return attack


def together(*attacks: Attack) -> Attack:
    """All of them in one bundle."""

    def attack(bundle: Path) -> None:
        for each in attacks:
            each(bundle)

    return attack


def _surrogates(data: dict[str, Any]) -> None:
    data["target"] |= {"hostname": "h\ud800", "kind": "k\udfff", "release": "\ud800", "k\ud801": 1}
    for resource in data["resources"]:
        resource["title"] += "\ud800"


def _all_texts(length: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for resource in data["resources"][:3]:
            resource["title"] = resource["section"] = "t" * length

    return change


def _many_tables(data: dict[str, Any]) -> None:
    one = {"path": "x.csv", "schema": {"fields": [{"name": "x", "type": "integer"}]}}
    data["resources"] += [{**one, "name": f"t{n}", "path": f"t{n}.csv"} for n in range(9_000)]


def _stacks(name: str, stacks: Callable[[], Iterator[str]]) -> Attack:
    return written(f"{name}.folded", lambda _: (f"{stack} 1\n".encode() for stack in stacks()))


def _names(rows: int, distinct: int) -> Callable[[bytes], Iterator[bytes]]:
    def pieces(header: bytes) -> Iterator[bytes]:
        yield header
        block = b"".join(b"n%d,1\n" % number for number in range(distinct))
        for _ in range(rows // distinct):
            yield block

    return pieces


STACKS = "exit_path_never_cpu_clock"
BUNDLES: dict[str, Attack] = {
    "surrogates in the description": described(_surrogates),
    "a description that is no UTF-8": edited("datapackage.json", b"lab-guest", b"lab-\xff"),
    "a deep description": edited(
        "datapackage.json", b'"target": {', b'"x": ' + b"[" * 9**5 + b"]" * 9**5 + b', "target": {'
    ),
    "a description of a gigabyte": sparse("datapackage.json", GIB),
    "a hostname of megabytes": described(lambda d: d["target"].update(hostname="h" * 3_000_000)),
    "a number of 10,000 digits": edited("datapackage.json", b"393086", b"9" * 10_000),
    "titles of a megabyte": described(_all_texts(1_000_000)),
    "9,000 tables": described(_many_tables),
    "sections in one line": sparse("sections.csv", 200 << 20),
    "sections of 4 GiB": sparse("sections.csv", 4 * GIB),
    "100,000 sections": written(
        "sections.csv",
        lambda header: iter((header, *(b"s%d,failed,0,0,0,%s\n" % (n, b"m" * 900)
                                       for n in range(100_000)))),
    ),
    "a table in one line": sparse("zones.csv", 200 << 20),
    "a table of 4 TiB": sparse("zones.csv", 4096 * GIB),
    "a line of commas": written(
        "zones.csv", lambda header: iter((header, *[b"," * (1 << 20)] * 64, b"\n"))
    ),
    "rows of commas": written(
        "zones.csv", lambda header: iter((header, *[b"," * (2_000_000) + b"\n"] * 3))
    ),
    "a row of many lines": written(
        "zones.csv", lambda header: iter((header, *[b'"\n",' * 250_000] * 8))
    ),
    "a quote that never ends": written(
        "zones.csv", lambda header: iter((header, b'"', *[b"a\n" * 500_000] * 8))
    ),
    "texts that are no UTF-8, or have NUL": together(
        edited("page_tables.csv", b",reader,", b",\xff\xfe\xed\xa0\x80a\0b,"),
        edited(f"{STACKS}.folded", b";", b";\xff\xed\xa0\x80;"),
    ),
    "a cell of a megabyte": written(
        "settings.csv",
        lambda header: iter((header, b"a," + b"y" * 1_000_000 + b"\n",
                             b"b," + "é ".encode() * 500_000 + b"\n")),
    ),
    # More than is read at once, or kept of a column's texts.
    "300,000 rows": written("settings.csv", _names(300_000, 150_000)),
    "numbers of 10^12": numbers(10**12, "free_blocks", "page_tables"),
    "numbers of 2^63 - 1": numbers(2**63 - 1, "free_blocks", "page_tables", "zones"),
    "numbers of 2^63": numbers(2**63, "free_blocks", "page_tables"),
    "numbers of -2^63": numbers(-(2**63), "free_blocks", "page_tables"),
    "stacks that become longer": _stacks(
        STACKS, lambda: (";".join(map(str, range(n))) for n in range(1, 4_000))
    ),
    "stacks as long as may be": _stacks(
        STACKS, lambda: (f"c{n};" + "ab;" * 2_000 + f"f{n}" for n in range(600))
    ),
    "210,000 stacks": _stacks(STACKS, lambda: (f"c{n};a_[k];f{n}_[k]" for n in range(210_000))),
    "stacks in one line": sparse(f"{STACKS}.folded", 4 * GIB),
}  # fmt: skip
# What they are is not what they say, or DuckDB takes them for a pattern, a home or a partition.
FOLDERS = (
    "**",
    "case*",
    "a[b]",
    "?",
    "[",
    "\\*",
    "b\\s",
    "q'\"$x",
    "~",
    "x=1",
    "{a,b}",
    "é *",
    "%s",
)


def log(folder: Path, lines: list[bytes]) -> None:
    """What a watch left."""
    folder.mkdir()
    (folder / NAME).write_bytes(b"".join(lines))


HEADER: dict[str, Any] = {
    "watch": 1, "interval": 1.0, "thp_order": 9, "page_owner": "not compiled in",
    "target": {"kind": "live", "release": "7.2", "architecture": "x86_64", "page_size": 4096,
               "hostname": "h", "total_pages": 1000, "online_cpus": 2, "source": "watch"},
}  # fmt: skip


def sample(number: int, **more: Any) -> bytes:
    """A line of a log."""
    clocks = dict.fromkeys(("wall", "mono", "boot"), 1000.0 + number)
    costs = {"late": 0.0, "read": 0.01, "cpu": 0.01, "cpu_total": 0.01 * number}
    vmstat = {"vmstat": {"pgfault": 100 * number}, "vmstat_at": 1000.0 + number}
    line = {**clocks, **costs, "number": number, "unread": {}, **vmstat, **more}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _log(header: dict[str, Any] = HEADER, *between: bytes) -> Callable[[Path], None]:
    lines = [json.dumps(header).encode() + b"\n", *map(sample, (1, 2)), *between, sample(3)]
    return lambda folder: log(folder, lines)


def _copies(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        _log({**HEADER, "page_owner": None})(folder)
        (folder / "show_stacks.1001.000000").write_text(show_stacks(COUNTS))
        make(folder / "show_stacks.1002.000000")

    return attack


def _sparse_log(folder: Path) -> None:
    _log()(folder)
    with (folder / NAME).open("ab") as file:
        file.truncate(LARGE)


def _sparse_file(text: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(text)
        os.truncate(path, LARGE)

    return make


# Name to (what makes the folder of samples, whether samples can be had from it all the same).
LOGS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "deep JSON": (_log(HEADER, b'{"wall":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n"), True),
    "surrogates in the header": (
        _log({**HEADER, "target": {**HEADER["target"], "kind": "\ud800", "release": "\udfff"}}),
        True,
    ),
    "a number of 10,000 digits": (_log(HEADER, b'{"wall":' + b"9" * 10_000 + b"}\n"), True),
    "a number beyond 64 bits": (_log(HEADER, sample(9, vmstat={"pgfault": 1 << 70})), True),
    "no number at all": (_log(HEADER, sample(9).replace(b"1009.0", b"NaN")), True),
    "surrogates in a sample": (_log(HEADER, sample(9, unread={"\ud800": "\udfff"})), True),
    "a last line of 640 MiB": (_sparse_log, True),
    "a target of another kind": (_log({**HEADER, "target": {"page_size": []}}), False),
    "a header without all": (_log({"watch": 1}), False),
    "a pipe for a copy": (_copies(os.mkfifo), True),
    "a copy of 640 MiB": (_copies(_sparse_file(show_stacks(COUNTS))), True),
    "a copy of something else": (_copies(lambda path: path.write_bytes(b"x")), True),
}


def counts_of_millions(path: Path) -> None:
    """More handles than any kernel has."""
    with path.open("wb") as file:
        for begin in range(0, 3_000_000, 100_000):
            file.write(
                b"".join(
                    b"handle: %d\nnr_base_pages: 7\n\n" % n for n in range(begin, begin + 100_000)
                )
            )


TEXTS: dict[str, Callable[[Path], None]] = {
    "show_handles and 640 MiB": _sparse_file(show_handles(COUNTS)),
    "show_stacks and 640 MiB": _sparse_file(show_stacks(COUNTS)),
    "show_stacks_handles and 640 MiB": _sparse_file(" f+0x1/0x2\nhandle: 1\n\n"),
    "page_owner and 640 MiB": _sparse_file("Page allocated via order 0, mask 0x0(GFP)"),
    "640 MiB of nothing": _sparse_file(""),
    "three million handles": counts_of_millions,
}


def tree(path: Path, names: tuple[str, ...], make: Callable[[Path], None]) -> None:
    """A tree of /proc and /sys with something else in the place of some files."""
    shutil.copytree(TESTS / "data" / "7.2", path)
    for name in names:
        (path / name).unlink(missing_ok=True)
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        make(path / name)
