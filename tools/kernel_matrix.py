# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of docs/kernels.md, of what the lab's kernels have shown: ``docs/kernels-seen.json``,
which ``tests/lab/seen.py`` writes; and of what is foretold of kernels by their types:
``docs/kernels-foretold.json``, of ``tests/lab/foretell.py``.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- Made by `make docs` of kernels-seen.json: not to be edited. -->\n"
END = "<!-- Here it ends. -->\n"
TOLD = "<!-- Made by `make docs` of kernels-foretold.json: not to be edited. -->\n"

Seen = dict[str, dict[str, Any]]


def document() -> str:
    """``docs/kernels.md`` with its tables renewed."""
    text = (DOCS / "kernels.md").read_text()
    seen, told = (
        json.loads((DOCS / f"kernels-{of}.json").read_text()) for of in ("seen", "foretold")
    )
    return renewed(renewed(text, BEGIN, made(seen)), TOLD, foretold(told, seen))


def renewed(text: str, begin: str, tables: str) -> str:
    """A page with other tables behind a line."""
    before, _, rest = text.partition(begin)
    _, _, behind = rest.partition(END)
    if not behind:
        raise ValueError(f"docs/kernels.md lacks a line: {begin}{END}")
    return before + begin + "\n" + tables + END + behind


def foretold(told: Seen, seen: Seen) -> str:
    """What was foretold of kernels that were booted, and of others."""
    return held_against(told, seen) + "\n" + of_others(told, seen) + "\n"


def held_against(told: Seen, seen: Seen) -> str:
    """How often it was so."""
    of = [
        verdict(status, seen[name]["sections"][section][0])
        for name in told
        if name in seen
        for section, (status, *_) in told[name]["sections"].items()
        if section in seen[name]["sections"]
    ]
    counts = (f"{of.count(word)} {word}" for word in ("as foretold", "one of two", "unknown"))
    return f"{len(of)} sections: {', '.join(counts)}, {of.count('otherwise')} otherwise.\n"


def verdict(foretold: str, seen: str) -> str:
    """What became of what was foretold."""
    words = foretold.removeprefix("likely ").split(" or ")
    if words == ["unknown"]:
        return "unknown"
    if seen not in words:
        return "otherwise"
    return "as foretold" if len(words) == 1 else "one of two"


def of_others(told: Seen, seen: Seen) -> str:
    """Of kernels that were not booted."""
    lines = [
        "types of|ok|likely ok|absent|ok or absent|unknown",
        "---|---|---|---|---|---",
    ]
    for name in (name for name in told if name not in seen):
        of = [status for status, *_ in told[name]["sections"].values()]
        both = sum(" or " in status for status in of)
        absent = sum(status.removeprefix("likely ") == "absent" for status in of)
        counts = of.count("ok"), of.count("likely ok"), absent, both, of.count("unknown")
        lines.append("|".join([name, *map(str, counts)]))
    return "\n".join(lines) + "\n"


def made(seen: Seen) -> str:
    """All that is between the two lines."""
    parts = [machines(seen), sections(seen), without_debug_info(seen), empty(seen)]
    return "\n".join(part + "\n" for part in parts)


def machines(seen: Seen) -> str:
    """The kernels, a row each."""
    lines = [
        "kernel|release|pages|levels|built with",
        "---|---|---|---|---",
    ]
    for name, of in seen.items():
        pages = f"{of['page_bytes'] >> 10}K"
        cells = (name, of["release"], pages, of["levels"], of["about"])
        lines.append("|".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def sections(seen: Seen) -> str:
    """Every section that is not ``ok`` on every kernel, why, and on which."""
    kernels: dict[tuple[str, str, str], list[str]] = {}
    for name, of in seen.items():
        for section, (status, *why) in of["sections"].items():
            if status != "ok":
                kernels.setdefault((section, status, why[0]), []).append(name)
    lines = ["Every section is `ok` on every kernel, but for these:\n"]
    lines += ["section|status|kernels|why", "---|---|---|---"]
    for (section, status, why), names in sorted(kernels.items()):
        lines.append(f"{section}|{status}|{which(names, seen)}|{plain(why)}")
    unread: dict[str, list[str]] = {}
    for section in dict.fromkeys(name for of in seen.values() for name in of["sections"]):
        where = [name for name, of in seen.items() if section not in of["sections"]]
        if where:
            unread.setdefault(which(where, seen), []).append(section)
    lines += [f"\nNot read on {names}: {', '.join(of)}." for names, of in unread.items()]
    return "\n".join(lines) + "\n"


def which(names: list[str], seen: Seen) -> str:
    """Some of the kernels, or which they are not where that is shorter."""
    others = [name for name in seen if name not in names]
    if not others:
        return "all"
    if len(others) >= len(names):
        return in_short(names, seen)
    return f"all but {in_short(others, seen)}"


def in_short(names: list[str], seen: Seen) -> str:
    """The same kernels, with series of one kind that follow one another as from and to."""
    order, runs = list(seen), list[list[str]]()
    for name in names:
        last = runs[-1][-1] if runs else ""
        follows = last[-1:].isdigit() and order.index(name) == order.index(last) + 1
        if follows and name.rpartition("-")[0] == last.rpartition("-")[0]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def without_debug_info(seen: Seen) -> str:
    """What is otherwise where a vmcore is all that there is."""
    lines = ["Without debug info every section is the same, but for these:\n"]
    unread: dict[str, list[str]] = {}
    for name, of in seen.items():
        other = of["without_debug_info"]
        if isinstance(other, str):
            if other != "the same":
                unread.setdefault(plain(other), []).append(name)
            continue
        differ = [key for key, status in other.items() if status != of["sections"][key]]
        words = ", ".join(f"{key} {': '.join(other[key])}" for key in differ)
        lines.append(f"- {name}: {plain(words)}")
    lines += [f"- not on {', '.join(names)}: {why}" for why, names in unread.items()]
    return "\n".join(lines) + "\n"


def empty(seen: Seen) -> str:
    """What has nothing on one kernel, and something on another that did the same."""
    # One that was read before a column was there says nothing of it.
    read = Counter(of.get("columns") for of in seen.values()).most_common(1)[0][0]
    compared = {name: of for name, of in seen.items() if of.get("columns") == read}
    kernels: dict[str, list[str]] = {}
    for name, of in compared.items():
        others = [other for other in compared.values() if other["workload"] == of["workload"]]
        for section, columns in of["empty"].items():
            for column in columns:
                if any(has(other, section, column) for other in others):
                    kernels.setdefault(column, []).append(name)
    by_kernels: dict[str, list[str]] = {}
    for column, names in kernels.items():
        by_kernels.setdefault(which(names, compared), []).append(f"`{column}`")
    lines = [
        "kernels|empty there, not on others",
        "---|---",
    ]
    lines += [f"{names}|{', '.join(columns)}" for names, columns in by_kernels.items()]
    if left := [name for name in seen if name not in compared]:
        where = in_short(left, seen)
        lines.append(
            f"\nNot in this table, as they were read before some column was there: {where}."
        )
    return "\n".join(lines) + "\n"


def has(of: dict[str, Any], section: str, column: str) -> bool:
    """Whether a kernel has a table's rows, or a value in a column."""
    nothing = of["empty"].get(section, [])
    read = of["sections"].get(section, ["absent"])[0] in ("ok", "partial")
    return read and column not in nothing and column.partition(".")[0] not in nothing


def plain(text: str) -> str:
    """A message as Markdown says it."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
