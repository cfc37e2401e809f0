# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings that are one incident: what was found, what it likely comes from, what to do first."""

import dataclasses
import re
from collections.abc import Sequence

import pytest

from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.incidents import incidents
from mmscope.reports.findings.question import HIDES, OURS, Step

LEAK, LOOK = Step("Stop the driver.", undo="start it"), Step("Run 'mmscope watch -o w'.", cost="c")


def found(
    id: str,
    severity: str = "warning",
    *,
    shows: str = "",
    explains: str = "",
    title: str = "",
    harm: str = "costs",
    estimate: bool = False,
    steps: tuple[Step, ...] = (),
) -> Finding:
    return Finding(
        id, severity, title or id, "saw", "why", steps, (), "zones", harm=harm, estimate=estimate,
        symptom=shows, explains=(explains,) if explains else (),
    )  # fmt: skip


def ids(findings: list[Finding]) -> list[tuple[list[str], list[str]]]:
    return [
        ([t[0].id for t in each.causes], [t[0].id for t in each.effects])
        for each in incidents(findings)
    ]


SHORT, PIECES = "memory is short", "free memory is in pieces"
LARGE, KILL = found("slab-large", explains=SHORT), found("oom", "critical", shows=SHORT)


def test_a_symptom_and_what_explains_it_are_one_incident() -> None:
    assert ids([KILL, LARGE]) == [(["slab-large"], ["oom"])]


@pytest.mark.parametrize("alone", [KILL, LARGE], ids=["symptom", "cause"])
def test_each_alone_is_an_incident_of_its_own(alone: Finding) -> None:
    assert ids([alone, found("other")]) == [([alone.id], []), (["other"], [])]


def test_several_causes_stand_beside_each_other() -> None:
    other = found("percpu-large", "notice", explains=SHORT)
    (one,) = incidents([KILL, LARGE, other])
    assert [t[0].id for t in one.causes] == ["slab-large", "percpu-large"]
    assert one.sentence == "oom. Likely cause: slab-large; one more contributing cause."


def test_the_largest_of_the_rest_is_no_owner_of_what_took_the_memory() -> None:
    stalls = dataclasses.replace(KILL, owner="db (pid 7)")
    pool = found("hugetlb-idle", explains=SHORT, harm="takes memory")
    assert [one.owner for one in incidents([stalls, pool])] == [""]
    slab = dataclasses.replace(pool, owner="slab cache x")
    assert [one.owner for one in incidents([stalls, slab])] == ["slab cache x"]
    costs = dataclasses.replace(pool, harm="costs")
    assert [one.owner for one in incidents([stalls, costs])] == ["db (pid 7)"]


def test_the_sentence_is_in_plain_words_where_a_finding_has_some() -> None:
    plain = dataclasses.replace(LARGE, plain="Slab has half of memory.")
    (one,) = incidents([KILL, plain])
    assert one.sentence == "oom. Likely cause: Slab has half of memory."
    assert one.causes[0][0].title == "slab-large"


def test_what_explains_two_symptoms_joins_them() -> None:
    both = Finding("reserve", "warning", "t", "s", "w", (), (), "zones", explains=(SHORT, PIECES))
    pieces = found("pieces", shows=PIECES)
    assert ids([KILL, pieces, both]) == [(["reserve"], ["oom", "pieces"])]


def test_rows_of_one_finding_are_told_once() -> None:
    rows = [found("x", title=f"zone {n}") for n in range(3)]
    (one,) = incidents(rows)
    assert one.sentence == "zone 0; two more like it."
    assert one.causes[0] == tuple(rows)


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ((1, 0), "zone 1; also node 0 DMA32."),
        ((2, 1, 0), "zone 2; also node 1 DMA32 and node 0 DMA32."),
        (range(6), "zone 0; 5 more like it."),
    ],
)
def test_nodes_and_zones_are_named_while_they_are_few(places: Sequence[int], sentence: str) -> None:
    rows = [
        dataclasses.replace(found("x", title=f"zone {n}"), subject=(("node", n), ("zone", "DMA32")))
        for n in places
    ]
    (one,) = incidents(rows)
    assert one.sentence == sentence


def test_the_worst_incident_is_first_by_any_of_its_findings() -> None:
    calm = found("calm", "warning")
    cause = found("cause", "notice", explains=SHORT)
    assert ids([KILL, calm, cause]) == [(["cause"], ["oom"]), (["calm"], [])]


def test_what_was_measured_stands_before_what_was_computed_then_what_does_most_harm() -> None:
    guess = found("guess", harm="ends work", estimate=True)
    costs, takes = found("costs"), found("takes", harm="takes memory")
    assert ids([guess, costs, takes]) == [(["takes"], []), (["costs"], []), (["guess"], [])]


def test_what_is_of_a_recording_is_known_and_last() -> None:
    note = dataclasses.replace(found("note", harm=HIDES), section="profiles")
    told = incidents([note, found("finding")])
    assert [(each.causes[0][0].id, each.of_recording) for each in told] == [
        ("finding", False), ("note", True),
    ]  # fmt: skip


def test_a_counter_that_disagrees_is_not_of_a_recording() -> None:
    (one,) = incidents([dataclasses.replace(found("counter", harm=HIDES), section="memory_ledger")])
    assert not one.of_recording


def test_what_takes_memory_is_a_likelier_cause_than_what_makes_it_hard_to_get() -> None:
    lists, leak = found("lists", explains=SHORT), found("leak", harm="takes memory", explains=SHORT)
    worse = found("worse", "critical", explains=SHORT)
    assert ids([lists, leak, worse, KILL]) == [(["worse", "leak", "lists"], ["oom"])]


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ((), None),
        ((LEAK, LOOK), (LOOK, "mmscope watch -o w")),
        ((LEAK, Step("See the map.", looks=True)), (Step("See the map.", looks=True), "")),
        ((LEAK,), (LEAK, "")),
        ((Step("Set it to 'never'.", undo="u"),), (Step("Set it to 'never'.", undo="u"), "")),
    ],
    ids=["nothing", "a command", "something to look at", "a change alone", "no command"],
)
def test_the_first_step_changes_nothing_if_it_can(
    steps: tuple[Step, ...], first: tuple[Step, str] | None
) -> None:
    (one,) = incidents([found("x", steps=steps)])
    assert one.first_step == first


def test_rows_go_to_the_incident_that_is_theirs() -> None:
    kills = [found("kill", title=f"{name} killed", shows=f"{name} is short") for name in "abc"]
    limits = [found("limit", title=f"{name} at limit", explains=f"{name} is short") for name in "b"]
    told = incidents([*kills, *limits])
    assert [each.sentence for each in told] == [
        "a killed; one more like it.",
        "b killed. Likely cause: b at limit.",
    ]


def plain(symptom: str) -> str:
    """The words that every row has."""
    return re.sub(r"{%.*?%}", "", re.sub(r"{{.*?}}", "…", symptom))


def test_each_symptom_has_a_cause_and_each_cause_its_symptom() -> None:
    shown = {plain(question.symptom) for question in OURS()} - {""}
    assert shown == {plain(symptom) for question in OURS() for symptom in question.explains}


def test_no_finding_explains_what_it_is() -> None:
    for question in OURS():
        assert question.symptom not in question.explains
