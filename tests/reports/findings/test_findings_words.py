# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The words of findings, glossary and intros: every step has its price, every statement its source.

What holds for some kernels only is said by features of ``kernel_features``, never by the release.
"""

import dataclasses
import re
import shlex
import tomllib
from pathlib import Path

import jinja2
import pytest
from finding_cases.case import bundle
from finding_cases.owners import LEAK

from mmscope.drgn.machine.kernel_features import FEATURES
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.commands.command import build_parser
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.incidents import COMMAND, incidents
from mmscope.reports.findings.kernel_said import Kernel, read_kernel
from mmscope.reports.findings.question import FINDINGS, OURS, Question, Step

ROOT = FINDINGS.parents[1]
QUESTIONS = {question.id: question for question in OURS()}
STEPS = {
    f"{question.id} {number}": step
    for question in QUESTIONS.values()
    for number, step in enumerate(question.next, 1)
}

# The verb that a step begins with: to look, or to change the machine, its settings or a program.
LOOKS = {
    "Ask", "Compare", "Count", "Expect", "Find", "Look", "Measure", "Name", "Read", "Record", "See",
    "Sum", "Take", "Tell", "Watch",
}  # fmt: skip
CHANGES = {
    "Add", "Boot", "Change", "Compact", "Drop", "Empty", "End", "Fork", "Give", "Keep", "Limit",
    "Make", "Map", "Put", "Raise", "Reconfigure", "Remove", "Replace", "Set", "Unmap", "Upgrade",
    "Use",
}  # fmt: skip
# And what changes something wherever it stands.
COMMANDS = re.compile(r"\becho \d|\bndctl |\bsysctl -w|\bboot (?:a|the|with)\b|\breboot$")
SOURCE = re.compile(
    r"(?:arch|block|Documentation|drivers|fs|include|ipc|kernel|lib|mm|net)/[\w./-]+\.(?:c|h|S|rst)"
    r": [\w()]+(?:, [\w()]+)* \((?:\d+\.\d+|[0-9a-f]{12})(?:, (?:\d+\.\d+|[0-9a-f]{12}))*\)"
)
# A release as a condition: stable trees take changes back, and distributions take more.
RELEASE = re.compile(
    r"Linux \d|\bv\d\.\d"
    r"|\b(?:[Kk]ernels?|[Ll]inux|[Rr]eleases?) (?:before|from|until|up to|since|older than) \d"
    r"|\b(?:[Bb]efore|[Ss]ince|[Uu]p to|[Ff]rom|[Uu]ntil|[Oo]n|\() ?[567]\.\d+\b(?! ?%)"
)


# How it begins to be said when, or where, not to do something.
NOT = ("when ", "where ", "while ", "before ", "late ", "on ", "in ", "under ", "with ", "as ",
       "huge pages for ", "KASAN ")  # fmt: skip


def fault(step: Step) -> str | None:
    """What a step lacks, and what to write."""
    verb = re.sub(r"{%.*?%}", "", step.do, flags=re.DOTALL).split()[0]
    if verb not in LOOKS | CHANGES:
        verbs = ", ".join(sorted(LOOKS | CHANGES))
        return f"{verb} is no verb that is known: begin with one of {verbs}"
    changes = verb in CHANGES or COMMANDS.search(step.do)
    if step.looks:
        if changes:
            return "looks, and changes something: write cost, avoid and undo, and not looks"
        return (
            "looks, and has a price: write looks = true or cost, not both" if step.price else None
        )
    if not step.cost:
        return "has no cost: write it, or looks = true where it looks at the bundle alone"
    if changes and not (step.avoid and step.undo):
        return "changes something: write when not to (avoid), and how to undo it (undo)"
    if step.avoid and not step.avoid.startswith(NOT):
        return f"does not say when not to do it: begin avoid with one of {', '.join(NOT)}"
    return None


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_step_has_its_price(step: Step) -> None:
    assert fault(step) is None, f"{step.do}: {fault(step)}"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step("Look at it."), "no cost"),
        (Step("Look at it.", looks=True), None),
        (Step("Look at it.", looks=True, cost="nothing"), "looks, and has a price"),
        (Step("Set vm.x to 1.", looks=True), "looks, and changes"),
        (Step("Set vm.x to 1.", cost="little"), "changes something"),
        (Step("Set vm.x to 1.", cost="little", avoid="when busy"), "changes something"),
        (Step("Set vm.x to 1.", cost="little", avoid="when busy", undo="set it to 0"), None),
        (Step("Set vm.x to 1.", cost="little", avoid="busy", undo="set it to 0"), "does not say"),
        (Step("Record it.", cost="1 %"), None),
        (Step("Find it: boot a kernel that tells.", cost="1 %"), "changes something"),
        (Step("It is in the table.", looks=True), "is no verb"),
    ],
)
def test_a_step_without_its_price_is_told(step: Step, words: str | None) -> None:
    said = fault(step)
    assert said is None if words is None else words in (said or "")


# What nobody but the reader knows: where the bundle that is read lies, and one taken before it.
PLACEHOLDERS = {"BEFORE", "BUNDLE", "EARLIER"}
NEEDS_ROOT = {"collect", "watch", "record"}  # to read all that there is; 'record --list' does not


def said_by(path: Path) -> list[str]:
    """Every command that a finding's words quote, whatever is found, for whatever kernel."""
    return [found[1] for words in words_of(path) for found in COMMAND.finditer(words)]


def lack(command: str) -> str | None:
    """What keeps a command from running as it stands."""
    if command.count('"') % 2:
        return "has a quote that does not end"
    words = shlex.split(command)
    root = words[0] == "sudo"
    words = words[root:]
    if words[0] != "mmscope":
        return None
    if unknown := [w for w in words if w.isupper() and w not in PLACEHOLDERS]:
        return f"has a placeholder: {unknown}"
    try:
        args = build_parser().parse_args(words[1:])
        if words[1] == "record":
            if not args.list and args.output is None:
                return "records to nowhere"
            if not (args.list or args.all or args.pid):
                return "does not say what to record"
    except SystemExit:
        return "does not parse"
    if words[1] == "compare" and "--" not in words:
        return "has one side"
    if words[1] == "show" and args.what not in {*TABLES, *SECTIONS, "page_owner", "profiles"}:
        return "shows no table that there is"
    needs = words[1] in NEEDS_ROOT and "--list" not in words
    if words[1] == "show" and getattr(args, "bundle", None) is None:
        needs = True
    if needs and not root:
        return "needs sudo"
    return None


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_command_runs_as_it_stands(path: Path) -> None:
    for command in said_by(path):
        assert lack(command) is None, command
    # And none is said by half, or stands where nobody can copy it.
    for words in words_of(path):
        for name in ("mmscope", "journalctl"):
            quoted = sum(
                len(re.findall(rf"\b{name} ", found[1])) for found in COMMAND.finditer(words)
            )
            assert len(re.findall(rf"\b{name} [a-z-]", words)) == quoted, words


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sudo mmscope watch -o watched", None),
        ("mmscope watch -o watched", "needs sudo"),
        ("sudo mmscope watch", "does not parse"),
        ("sudo mmscope watch -o watched --no-such-option", "does not parse"),
        ("sudo mmscope record oom -a", "to nowhere"),
        ("sudo mmscope record oom -o recorded", "what to record"),
        ("sudo mmscope record oom -a -o recorded", None),
        ("mmscope record --list", None),
        ("mmscope compare BEFORE later", "one side"),
        ("mmscope compare BEFORE -- later", None),
        ("mmscope show profiles FILE", "placeholder"),
        ("mmscope show profiles BUNDLE", None),
        ("mmscope show pcp_pages", "needs sudo"),
        ("sudo mmscope show pcp_page", "no table"),
        ('journalctl -k --grep "oom', "does not end"),
    ],
)
def test_a_command_that_does_not_run_is_told(command: str, words: str | None) -> None:
    told = lack(command)
    assert told is None if words is None else words in (told or "")


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_finding_has_a_command_to_begin_with_that_changes_nothing(question: Question) -> None:
    harmless = [step for step in question.next if not step.undo]
    assert any(COMMAND.search(step.do) for step in harmless), (
        f'{question.id}: give a step that changes nothing a command in quotes, as in "See all of '
        "them: 'mmscope show zones BUNDLE'.\" with looks = true"
    )


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_finding_says_what_its_words_were_held_against(question: Question) -> None:
    form = "write a file, functions and kernels, as in 'mm/ksm.c: rmap_walk_ksm() (6.1, 7.3)'"
    assert question.sources, form
    for source in question.sources:
        assert SOURCE.fullmatch(source), f"{source!r}: {form}"


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("mm/ksm.c: rmap_walk_ksm() (6.1, 7.3)", True),
        ("mm/rmap.c: try_to_unmap(), try_to_migrate() (3f4f1faa33544d6)", False),
        ("mm/zone.c: nr_free_highatomic (c928807f6f6b)", True),
        ("mm/ksm.c: rmap_walk_ksm()", False),
        ("mm/ksm.c (7.3)", False),
        ("the kernel's documentation", False),
        ("mm/ksm.c: rmap_walk_ksm() (Linux 7.3)", False),
    ],
)
def test_a_source_is_a_file_a_function_and_versions(source: str, right: bool) -> None:
    assert bool(SOURCE.fullmatch(source)) is right


def words_of(path: Path) -> list[str]:
    """What readers see of a finding's file, the glossary or an intro."""
    if path.suffix == ".html":
        return [re.sub(r"{#.*?#}|{%.*?%}|<[^>]+>", " ", path.read_text(encoding="utf-8"))]
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if "term" in data:
        return [term["says"] for term in data["term"]]
    steps = [value for step in data["next"] for value in step.values() if isinstance(value, str)]
    return [*(data[name] for name in ("about", "title", "saw", "why")), *steps]


@pytest.mark.parametrize(
    "path",
    [
        *FINDINGS.glob("*.toml"),
        FINDINGS.parent / "page" / "glossary.toml",
        *(ROOT / "templates").glob("section_*.html"),
        *(ROOT / "templates").glob("picture_*.html"),
    ],
    ids=lambda path: path.name,
)
def test_no_release_is_a_condition(path: Path) -> None:
    for words in words_of(path):
        assert not RELEASE.search(words), RELEASE.search(words)


@pytest.mark.parametrize(
    "words", ["up to Linux 7.2", "kernels before 7.2", "since 6.14", "From 6.10 on", "in v6.8"]
)
def test_a_release_as_a_condition_is_told(words: str) -> None:
    assert RELEASE.search(words)


def said(text: str, feature: str, present: bool | None) -> str:
    """A text for a kernel; what depends on the row found is left out."""
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.ChainableUndefined)
    environment.filters |= dict.fromkeys(("thousands", "percent", "size", "period"), str)
    kernel = dict.fromkeys(FEATURES) | {feature: present}
    return environment.from_string(text).render(kernel=kernel)


BY_KERNEL = [
    (text, feature)
    for question in QUESTIONS.values()
    for text in (question.title, question.saw, question.why, *(step.do for step in question.next))
    for feature in sorted(FEATURES.keys() & set(re.findall(r"kernel\.(\w+)", text)))
]


class OfPages:
    """A database of which only the size of a page is asked. A mock."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    def rows(self, query: str) -> list[dict[str, int | None]]:
        return [{"page_size": self.size}] if "target" in query else []


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (4096, ("4 KiB", "2 MiB", "1 GiB", "512")),
        (16384, ("16 KiB", "32 MiB", "64 GiB", "2,048")),
        (65536, ("64 KiB", "512 MiB", "4 TiB", "8,192")),
        (None, ("4 KiB", "2 MiB", "1 GiB", "512")),
        (12345, ("4 KiB", "2 MiB", "1 GiB", "512")),
    ],
)
def test_sizes_go_by_the_page(size: int | None, sizes: tuple[str, ...]) -> None:
    kernel = read_kernel(OfPages(size))  # type: ignore[arg-type]
    assert (kernel.page, kernel.pmd, kernel.pud, kernel.slots) == sizes
    assert bool(kernel.assumed) is (size not in (4096, 16384, 65536))


# What is so with pages of 4 KiB only; the size of a page in an expression among it.
SIZE_BY_PAGE = re.compile(
    r"\b(?:4 KiB|2 MiB|2M|1 GiB|51[12](?:th)?|4,?09[56])\b|megabyte"
    r"|\b\d[\d.]* ?% of (?!the zone|memory free)"
)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_no_finding_has_a_size_that_goes_by_the_page(question: Question) -> None:
    steps = (text for step in question.next for text in (step.do, step.cost, step.avoid, step.undo))
    words = " ".join((question.title, question.saw, question.why, *steps))
    assert not SIZE_BY_PAGE.search(words), SIZE_BY_PAGE.search(words)


@pytest.mark.parametrize(
    ("size", "shares"),
    [
        (4096, ("1.6 %", "0.2 %", "0.59 to 2 %")),
        (16384, ("0.39 %", "0.049 %", "0.15 to 0.49 %")),
        (65536, ("0.098 %", "0.012 %", "0.037 to 0.12 %")),
    ],
)
def test_what_is_kept_for_each_page_is_a_share_of_memory(
    size: int, shares: tuple[str, ...]
) -> None:
    kernel = Kernel({}, size)
    assert (kernel.struct_pages, kernel.share(8), kernel.share(24, 80)) == shares


@pytest.mark.parametrize(("text", "feature"), BY_KERNEL)
def test_words_go_by_the_kernel(text: str, feature: str) -> None:
    """What is said of a kernel of which nothing shows is true of those that have it or not."""
    has, has_not, unknown = (said(text, feature, present) for present in (True, False, None))
    assert has != has_not
    assert unknown.strip()
    assert unknown != has_not or "this kernel" not in has_not.lower()


@pytest.mark.parametrize("name", ["kmalloc-1k", "kmalloc-1k;reboot", "kmalloc-1k`id`", '";id;"'])
def test_a_command_has_no_more_of_a_name_than_a_shell_takes_for_a_word(
    tmp_path: Path, name: str
) -> None:
    opened = bundle(tmp_path / "b", [dataclasses.replace(LEAK, cache=name)])
    found = [finding for finding in evaluate(opened).found if finding.id == "slab-cache-large"]
    (incident,) = incidents(found)
    assert incident.first_step is not None
    _, command = incident.first_step
    word = "kmalloc-1k" if name.startswith("k") else ""
    assert shlex.split(command) == ["sudo", "grep", "-e", f"^{word}", "/proc/slabinfo"]
