# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make inputs``: what ``mmscope why`` prints of some forty inputs, into ``docs/inputs.md``: those of
``tests/support/why_inputs.py``, and vmcores of the lab, which are taken where there are none.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from capture import capture
from packed_dump import packed_dump
from roles import resolve

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from given_inputs import LOG, put  # noqa: E402
from why_inputs import INPUTS, PAGE, Input, Make, page_with, printed, shown_as  # noqa: E402

DUMPS = "Dumps"


def linked(kernel: str, workload: str, name: str) -> Make:
    """A vmcore of the lab under a name."""
    return lambda folder: (folder / name).symlink_to(capture(resolve(kernel), workload).vmcore)


def beside_a_log(folder: Path) -> None:
    linked("stable", "fragment", "vmcore")(folder)
    put(folder, "kern.log", LOG)


def packed(folder: Path) -> None:
    """As a crash kernel compresses it."""
    packed_dump(capture(resolve("stable"), "oom").vmcore, folder / "dump.202611300808", "zlib")


def cut(folder: Path) -> None:
    """One that ended early, as on a disk that ran full."""
    vmcore = capture(resolve("stable"), "tables").vmcore
    shutil.copy(vmcore, folder / "vmcore-incomplete")
    with (folder / "vmcore-incomplete").open("r+b") as file:
        file.truncate(vmcore.stat().st_size * 15 // 16)


# Each with the kernel that has it.
OF_LAB: tuple[tuple[str, Input], ...] = (
    (
        "stable",
        Input("vmcore", "A module has leaked pages", linked("stable", "leak", "vmcore")),
    ),
    (
        "stable",
        Input("vmcore kern.log", "A dump with a log beside it; both are joined", beside_a_log),
    ),
    (
        "stable",
        Input(
            "dump.202611300808",
            "Compressed (kdump); a process is really called `a) b, (c`",
            packed,
        ),
    ),
    ("stable", Input("vmcore-incomplete", "Cut short", cut)),
    (
        "stable",
        Input(
            "vmcore-queue", "Tasks queue for a lock", linked("stable", "rmap_stall", "vmcore-queue")
        ),
    ),
    ("5.10", Input("vmcore-5.10", "Linux 5.10", linked("5.10", "tables", "vmcore-5.10"))),
    ("7.2", Input("vmcore-7.2", "Linux 7.2", linked("7.2", "slab", "vmcore-7.2"))),
    ("7.3", Input("vmcore-7.3", "Linux 7.3", linked("7.3", "fragment", "vmcore-7.3"))),
    (
        "arm64-6.12",
        Input("vmcore-arm64", "arm64", linked("arm64-6.12", "tables", "vmcore-arm64")),
    ),
)


def of_each(inputs: Iterable[Input], say: Callable[[str], None]) -> str:
    """What is printed of some inputs, each in a folder of its own."""
    text = ""
    for one in inputs:
        say(one.given)
        with tempfile.TemporaryDirectory(prefix="mmscope-inputs-") as folder:
            one.make(Path(folder))
            text += shown_as(one, printed(one.given, Path(folder)))
    return text


def main() -> None:
    """Write the page."""
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    shown = {DUMPS: of_each((one for _, one in OF_LAB), say)}
    shown |= {group: of_each(inputs, say) for group, inputs in INPUTS.items()}
    PAGE.write_text(page_with(shown))


if __name__ == "__main__":
    main()
