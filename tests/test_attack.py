# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make attack`` sees what no command may do; and a few of its attacks."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import attack
import pytest

CLEAN: dict[str, Any] = {"code": 1, "stderr": "mmscope: no", "head": "", "kib": 1 << 10}


@pytest.mark.parametrize(
    ("what", "ran"),
    [
        ("traceback", {"stderr": "Traceback (most recent call last):"}),
        ("traceback", {"stderr": "mmscope: KeyError: 'x'; -v shows where"}),
        ("signal", {"code": -11}),
        ("hang", {"code": -14}),
        ("over 1 GiB", {"kib": (1 << 20) + 1}),
        ("escape", {"head": "a\x1b[31m"}),
        ("escape", {"stderr": "a\u202e"}),
        ("escape", {"head": "a\x9b"}),
    ],
)
def test_what_a_command_may_not_do_is_counted(what: str, ran: dict[str, Any]) -> None:
    assert [*attack.wrong_with(["why"], CLEAN)] == []
    assert [*attack.wrong_with(["why"], CLEAN | ran)] == [what]


def test_csv_in_a_pipe_is_as_the_kernel_has_it() -> None:
    show = ["show", "zones", "bundle", "--format", "csv"]
    assert [*attack.wrong_with(show, CLEAN | {"head": "a\x1b[31m"})] == []
    assert [*attack.wrong_with(show, CLEAN | {"stderr": "a\x1b[31m"})] == ["escape"]


@pytest.mark.parametrize(
    ("live", "page"),
    [
        (True, f"<p><{attack.TAG}>"),
        (True, f"<script>x = '</script><{attack.TAG}>'</script>"),
        (True, "<a href=' JavaScript:x'>"),
        (True, "<p onload=x>"),
        (False, f"<p title='<{attack.TAG}>'>&lt;{attack.TAG}>"),
        (False, f"<script>x = '<{attack.TAG}>'</script>"),
    ],
)
def test_markup_that_a_browser_takes_for_an_element_is_seen(live: bool, page: str) -> None:
    tags = attack.Tags()
    tags.feed(page)
    assert tags.live == live


@dataclasses.dataclass
class Bad:
    """A command that writes where a link leads, and a name that it was to replace."""

    folder: Path | None = None

    def __call__(self, folder: Path, command: list[Any]) -> dict[str, Any]:
        self.folder = folder
        (folder / "canary/file").write_text("x")
        (folder / "report.html").write_text(f"<{attack.TAG}>{attack.SECRET}")
        return CLEAN


def test_what_it_wrote_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(it: attack.Scene) -> None:
        it.gone, it.commands = attack.SECRET, [["x"]]

    monkeypatch.setattr(attack, "KINDS", (scene,))
    bad = Bad()
    assert attack.attack("a", 0, bad).keys() == {"live markup", "name left", "followed link"}
    assert bad.folder is not None and not bad.folder.exists()


def test_a_seed_gives_the_same_attack(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        scene = attack.Scene(tmp_path / name, random.Random("seed 3"))
        attack.recordings(scene)
        path = tmp_path / name / "text"
        made.append((path.read_bytes() if path.is_file() else b"", scene.commands[0][1]))
    assert made[0] == made[1]


def test_a_few_attacks() -> None:
    """Those that take a second."""
    run, quick = attack.Runner(), ("texts", "recordings", "dumps")
    numbers = [n for n, kind in enumerate(attack.KINDS) if kind.__name__ in quick]
    try:
        found = [attack.attack("unit", number, run) for number in numbers]
    finally:
        run.process.kill()
    assert len(numbers) == 3 and not [one for one in found if one]
