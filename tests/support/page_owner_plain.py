# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The plain way to read page_owner's text: a regular expression a line, a hash a stack.

What the benchmark holds the readers against. A process of its own:
``page_owner_plain.py page_owner FILE``, ``… stacks FILE…`` or ``… handles RESOLVER FILE…``.
"""

import re
import sys

ALLOCATED = re.compile(r"^Page allocated via order ([0-9]+)")
FRAME = re.compile(r"^ ")
BLANK = re.compile(r"^$")
PAGES = re.compile(r"^nr_base_pages: ([0-9]+)")
HANDLE = re.compile(r"^handle: ([0-9]+)")


def plain_page_owner(path: str) -> None:
    """Pages by stack of one ``page_owner`` file."""
    pages: dict[int, int] = {}
    stacks: dict[int, str] = {}
    stack, order = "", 0
    with open(path, errors="replace") as file:
        for line in file:
            if FRAME.match(line):
                stack += line
                continue
            if match := ALLOCATED.match(line):
                order = int(match.group(1))
                stack = ""
                continue
            if BLANK.match(line):
                key = hash(stack)
                if key in pages:
                    pages[key] += 1 << order
                else:
                    pages[key] = 1 << order
                    stacks[key] = stack
    for key, stack in stacks.items():
        print(f"{stack}nr_base_pages: {pages[key]}\n")


def plain_stacks(paths: list[str]) -> None:
    """Pages by stack of a series of ``show_stacks``."""
    pages: dict[int, dict[int, int]] = {}
    stacks: dict[int, str] = {}
    for position, path in enumerate(paths):
        stack, count = "", 0
        with open(path, errors="replace") as file:
            for line in file:
                if FRAME.match(line):
                    stack += line
                    continue
                if match := PAGES.match(line):
                    count = int(match.group(1))
                    continue
                if BLANK.match(line):
                    key = hash(stack)
                    if key not in stacks:
                        stacks[key] = stack
                        pages[key] = {}
                    pages[key][position] = count
                    stack = ""
    print_series(stacks, pages, len(paths))


def plain_handles(resolver: str, paths: list[str]) -> None:
    """Pages by handle of a series of ``show_handles``, with the stacks of the resolver."""
    pages: dict[int, dict[int, int]] = {}
    stacks: dict[int, str] = {}
    handle = count = 0
    for position, path in enumerate(paths):
        with open(path, errors="replace") as file:
            for line in file:
                if match := HANDLE.match(line):
                    handle = int(match.group(1))
                    continue
                if match := PAGES.match(line):
                    count = int(match.group(1))
                    continue
                if BLANK.match(line):
                    pages.setdefault(handle, {})[position] = count
    stack = ""
    with open(resolver, errors="replace") as file:
        for line in file:
            if FRAME.match(line):
                stack += line
                continue
            if match := HANDLE.match(line):
                handle = int(match.group(1))
                continue
            if BLANK.match(line):
                stacks[handle] = stack
                stack = ""
    print_series({handle: stacks[handle] for handle in pages}, pages, len(paths))


def print_series(stacks: dict[int, str], pages: dict[int, dict[int, int]], count: int) -> None:
    """A stack, and a line of its pages in every file."""
    for key, stack in stacks.items():
        series = pages[key]
        print(f"{stack}{' '.join(str(series.get(n, 0)) for n in range(count))}\n")


if __name__ == "__main__":
    if sys.argv[1] == "page_owner":
        plain_page_owner(sys.argv[2])
    elif sys.argv[1] == "stacks":
        plain_stacks(sys.argv[2:])
    else:
        plain_handles(sys.argv[2], sys.argv[3:])
