# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope record --list``: the recipes, whether they can run here, and what they cost."""

import shutil
from collections.abc import Iterable, Iterator, Sequence

from mmscope.drgn.tables.display import folded
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.perf import perf_events
from mmscope.perf import recipe as recipes
from mmscope.perf.perf_events import RecordError
from mmscope.perf.recipe import Recipe, event_name
from mmscope.perf.stack_parts import load_known_frames
from mmscope.reports.bundle.outcome import DONE, UsageError


def list_recipes() -> int:
    """List the recipes, whether they can run here, and what they cost."""
    machine = perf_events.look()
    for name in recipes.names():
        recipe = recipes.load(name)
        _print_recipe(
            name, recipe, [("here", ability(recipe, machine)), ("costs", recipe.overhead)]
        )
    echo("'mmscope record RECIPE --list' says what one records, and how to read it.")
    return DONE


def explain_recipe(name: str) -> int:
    """
    Explain a recipe.

    :raises UsageError: there is none of this name.
    """
    try:
        recipe = recipes.load(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _print_recipe(name, recipe, _explained(recipe, perf_events.look()))
    return DONE


def _print_recipe(name: str, recipe: Recipe, said: Iterable[tuple[str, str]]) -> None:
    """Print paragraphs about a recipe, each with its label, as wide as the terminal is."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    echo(f"{name}: {recipe.title}")
    for label, text in said:
        begin, text = f"  {label:8}  ", visible(" ".join(text.split()))
        lines = folded(text, width - len(begin)).split("\n")
        echo(begin + lines[0], *(" " * len(begin) + line for line in lines[1:]), sep="\n")
    echo()


def _explained(recipe: Recipe, machine: perf_events.Machine) -> Iterator[tuple[str, str]]:
    """Labels and paragraphs about a recipe."""
    yield "answers", recipe.answers
    yield "here", ability(recipe, machine)
    yield "needs", recipe.needs
    yield "costs", recipe.overhead
    limit = f"{recipe.seconds:g} s" if recipe.seconds else "until Ctrl-C"
    scope = "every CPU" if recipe.scope == "system" else "the command or process"
    ring = f", kept when {recipe.trigger} happens" if recipe.trigger else ""
    size = f"{recipe.megabytes} MB of perf.data at most" if not recipe.trigger else "a ring"
    yield "records", f"{scope}, {limit} where nothing ends it, {size}{ring}"
    for event in recipe.events:
        yield "", f"{event_names(event.first_of)}: {event.why}"
    for count in recipe.counts:
        yield "", f"counted by perf stat, {event_names(count.first_of)}: {count.why}"
    yield "read", recipe.read


def event_names(choices: Sequence[str]) -> str:
    """The names of events of which one is taken; of several models of CPU some are alike."""
    return " or ".join(dict.fromkeys(map(event_name, choices)))


def ability(recipe: Recipe, machine: perf_events.Machine) -> str:
    """Say if a recipe can run on this machine."""
    try:
        plan = perf_events.plan(recipe, machine)
    except RecordError as reason:
        return f"no: {reason}"
    words = ["yes"]
    missing: dict[str, list[str]] = {}
    for event, why in plan.missing:
        missing.setdefault(why, []).append(event_name(event.first_of[0]))
    words += [f"without {', '.join(names)}: {why}" for why, names in missing.items()]
    words += plan.notes
    sampler = next((event_name(text) for event, text in plan.events if event.required), "")
    if sampler in load_known_frames().no_nmi:
        words.append(f"samples by {sampler}, which does not see what runs with interrupts off")
    return "; ".join(words)
