# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Members whose type is none that a known kernel gives them.

BTF does not contradict a damaged number of a type, if what it becomes fits where the member is: a
pointer to something else, a smaller integer before a gap. ``known_types.txt`` has what each member
that sections ask for is on the kernels of the lab (``tests/lab/asks.py``). One that is something
else is read all the same, as a newer kernel may have meant it; what was read of it is partial, and
the reason is said.

Of about 700 such members, a kernel that is left out differs from all the others in 0 to 3.
"""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from drgn import Program

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import Btf
from mmscope.drgn.opening.foretold import Asked, known
from mmscope.drgn.opening.no_debug_info import TYPES

KNOWN = Path(__file__).with_name("known_types.txt")
UNLIKE = "mmscope unlike known kernels"  # of a program's cache
FORMS = "; "


def known_types() -> dict[str, list[str]]:
    """Forms (:meth:`Btf.member_form`) of members on known kernels: of ``struct zone.name``."""
    lines = (line.partition(": ") for line in KNOWN.read_text().splitlines())
    return {ask: forms.split(FORMS) for ask, _, forms in lines if not ask.startswith("#")}


def forms_of(types: Btf, asks: Iterable[str]) -> dict[str, str]:
    """Forms of members, of those that a kernel has."""
    found = {}
    for ask in asks:
        name, _, path = ask.rpartition(" ")[2].partition(".")
        # What is damaged otherwise is for who needs it to say.
        with contextlib.suppress(NoDebugInfoError):
            if path and (form := types.member_form(name, path)):
                found[ask] = form
    return found


def unlike_known(types: Btf) -> dict[str, str]:
    """Members that are of no known type, each with a sentence."""
    forms = known_types()
    return {
        ask: f"{ask} is {form} by this kernel's BTF, and {' or '.join(forms[ask])} on all known "
        "kernels: it changed, or BTF is damaged"
        for ask, form in forms_of(types, forms).items()
        if form not in forms[ask]
    }


def unlike_in(prog: Program, section: str) -> list[str]:
    """Sentences of what a section asks for that is of no known type; none without BTF."""
    if UNLIKE not in prog.cache:
        types = prog.cache.get(TYPES)
        prog.cache[UNLIKE] = unlike_known(types) if types else {}
    unlike: dict[str, str] = prog.cache[UNLIKE]
    return of_section(unlike, section, known()) if unlike else []


def of_section(unlike: Mapping[str, str], section: str, asked: Asked) -> list[str]:
    """Sentences of what a section asks for."""
    asks = set[str]().union(*asked.asked.get(section, {}).values())
    return [words for ask, words in unlike.items() if ask in asks]
