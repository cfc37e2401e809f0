# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What ``deploy/`` says to run is what mmscope has; ``make containers`` builds and runs it.

YAML is read here as far as the manifests use it: a list of words stands on a line.
"""

import json
import pkgutil
import re
import shlex

import pytest
from command_line import ROOT

from mmscope import __version__
from mmscope.reports.commands.command import build_parser
from mmscope.reports.guard.options import FOLDER

DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
MANIFESTS = {path.name: path.read_text() for path in sorted(DEPLOY.glob("*.yaml"))}


def instruction(name: str) -> list[str]:
    """The last one of that name, in its form of a JSON list."""
    return list(map(str, json.loads(re.findall(rf"^{name} (\[.*\])$", CONTAINERFILE, re.M)[-1])))


def lists(text: str, key: str) -> list[list[str]]:
    """The lists of words of a key."""
    return [json.loads(found) for found in re.findall(rf"^ +{key}: (\[.*\])$", text, re.MULTILINE)]


def parsed(words: list[str]) -> str:
    """The command of mmscope that these words are."""
    assert words[0] == "mmscope", words
    args = build_parser(words[1:]).parse_args(words[1:])
    assert callable(pkgutil.resolve_name(args.run) if isinstance(args.run, str) else args.run)
    return words[1]


def commands() -> dict[str, list[str]]:
    """Whatever the files run, or tell to run: by where it stands."""
    entry = instruction("ENTRYPOINT")
    said = {"Containerfile": entry + instruction("CMD")}
    for name, text in MANIFESTS.items():
        for number, args in enumerate(lists(text, "args")):
            said[f"{name}: args {number}"] = entry + args
        # In comments, as 'kubectl exec … -- mmscope …'.
        for number, line in enumerate(re.findall(r"^#.* -- (mmscope .*)$", text, re.MULTILINE)):
            said[f"{name}: comment {number}"] = shlex.split(line)
    return said


@pytest.mark.parametrize(("place", "words"), commands().items(), ids=commands())
def test_commands_are_those_that_mmscope_has(place: str, words: list[str]) -> None:
    parsed(words)


def test_each_manifest_runs_something_that_is_looked_at() -> None:
    named = {place.partition(":")[0] for place in commands()}
    assert named == {"Containerfile", *MANIFESTS}
    # Nothing that is written in another form, which this test would not see.
    for text in MANIFESTS.values():
        assert len(re.findall(r"^ +(?:args|command):", text, re.MULTILINE)) == len(
            lists(text, "args") + lists(text, "command")
        )
    assert parsed(commands()["guard-daemonset.yaml: args 0"]) == "guard"


def test_captures_are_where_guard_leaves_them() -> None:
    assert f"VOLUME {FOLDER}\n" in CONTAINERFILE
    daemonset = MANIFESTS["guard-daemonset.yaml"]
    assert daemonset.count(f"mountPath: {FOLDER}\n") == daemonset.count(f"path: {FOLDER}\n") == 1


def test_manifests_name_the_image_of_this_version() -> None:
    for name, text in MANIFESTS.items():
        images = re.findall(r"image: (\S+)", text)
        assert images == [f"registry.example.org/mmscope:{__version__}"], name


def locked(name: str) -> dict[str, str]:
    """Distributions of a lock, each with its version and hashes."""
    parts = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    return {part.partition("==")[0]: part.strip() for part in parts if part[0] != "#"}


def test_nothing_gets_into_the_image_but_by_its_hash() -> None:
    """No step of pip's resolves anything; what it builds with is locked as well."""
    steps = re.findall(r"pip install (.*?) \\$", CONTAINERFILE, re.MULTILINE)
    assert len(steps) == 2
    assert "--require-hashes -r requirements-image.lock" in steps[0]
    assert "--no-deps --no-build-isolation ." in steps[1]
    image = locked("requirements-image.lock")
    assert {"drgn", "duckdb", "jinja2", "numpy", "rich", "setuptools"} <= image.keys()
    assert all("--hash=sha256:" in part for part in image.values())
    assert image.items() <= locked("requirements.lock").items()
    assert not {"pytest", "ruff", "mypy"} & image.keys()
