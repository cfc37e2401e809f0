# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Names are anybody's: comms, symbols of binaries, file names. Here they become frames of folded
stacks, where ``;`` parts frames and a line ends a stack.
"""

MAX_NAME = 256


def plain_name(name: str) -> str:
    r"""
    A name that is safe between semicolons on one line: what would break it is written out, as
    ``\\x3b``, and so is what would command a terminal.
    """
    if len(name) > MAX_NAME:
        name = name[:MAX_NAME] + "…"
    if name.isprintable() and ";" not in name:
        return name
    return "".join(
        c if c.isprintable() and c != ";" else ascii(c)[1:-1] if c != ";" else "\\x3b" for c in name
    )
