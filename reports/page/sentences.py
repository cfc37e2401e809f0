# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sentences of the page: of the machine, the reading, and a section before its tables.

Cannot know: what is not in the bundle; of that it says that it is unknown.
"""

import re
from collections import Counter

from markupsafe import Markup

from mmscope import __version__
from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle import bundle_format
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import HEADINGS
from mmscope.reports.bundle.description import SectionResult, version_number
from mmscope.reports.findings.blind import OF_A_LOG
from mmscope.reports.findings.finding import Verdict
from mmscope.reports.findings.incidents import COMMAND
from mmscope.reports.findings.verdict import how_many, lacking_words

# Sections that a sentence names.
MAX_NAMED = 5
SOURCES = {
    "live": "live kernel",
    "vmcore": "vmcore",
    "qemu": "QEMU guest",
    "files": "text files (/proc, /sys)",
}
STATUSES = ("ok", "partial", "absent", "failed")


def unknown(verdict: Verdict) -> str:
    """Number of checks that ran, and what the others take; empty if all did."""
    if not verdict.not_checked:
        return ""
    return f"{how_many(verdict)}; {lacking_words(verdict)}."


def reading(sections: list[SectionResult]) -> str:
    """The share of the sections that was read."""
    if not sections:
        return "no section was read"
    fared = Counter(section.status for section in sections)
    said = [
        f"{fared['ok'] + fared['partial']:,} of {display.plural(len(sections), 'section')} read"
    ]
    for status, words in (
        ("partial", "of these in part"),
        ("failed", "failed"),
        ("absent", "unavailable here"),
    ):
        names = [section.section for section in sections if section.status == status]
        if names:
            more = ", …" if len(names) > MAX_NAMED else ""
            listed = "" if status == "absent" else f" ({', '.join(names[:MAX_NAMED])}{more})"
            said.append(f"{len(names):,} {words}{listed}")
    other = len(sections) - sum(fared[status] for status in STATUSES)
    if other:
        said.append(f"{other:,} of unknown status")
    unreadable = sum(section.unreadable_bytes or 0 for section in sections)
    said.append(f"{display.size(unreadable)} of memory" if unreadable else "no memory")
    said[-1] += " unreadable"
    return "; ".join(said)


def written_by(bundle: Bundle) -> list[tuple[str, str]]:
    """Caveats of a bundle that another version wrote."""
    written, this = version_number(bundle.version), version_number(__version__)
    if written and this and written > this:
        why = "what this version does not know is shown as the bundle describes it, unchecked."
        return [("The bundle is of a newer mmscope", why)]
    if words := bundle_format.not_written(bundle):
        return [("The bundle is of an older mmscope", f"{words}. These are unknown here.")]
    return []


def host_of(bundle: Bundle) -> str:
    """The host's name; one that has none, or the kernel's word for none, is what was read of it."""
    if bundle.hostname:
        return bundle.hostname
    release = target_text(bundle.target.get("release"))
    return " of ".join(filter(None, (source_of(bundle), release))) or "a host without a name"


def source_of(bundle: Bundle) -> str:
    """Words for what was read."""
    kind = target_text(bundle.target.get("kind"))
    read = {each.section for each in bundle.sections if each.status in ("ok", "partial")}
    return (
        "kernel log" if kind == "files" and read and read <= OF_A_LOG else SOURCES.get(kind, kind)
    )


def target_text(value: object) -> str:
    return "" if value is None else str(value)


def facts_of(bundle: Bundle, page_size: int | None) -> list[tuple[str, str, str]]:
    """Facts about the target: (label, value, exact value)."""
    target = bundle.target
    total = display.plain_int(target.get("total_pages"))
    memory, exact = "not recorded", ""
    if total is not None and page_size is not None:
        memory, exact = display.size(total * page_size), f"{total * page_size:,} bytes"
    elif total is not None:
        memory = f"{total:,} pages of unknown size"
    kind = target_text(target.get("kind"))
    source = source_of(bundle)
    file = target_text(target.get("source"))
    cpus = display.plain_int(target.get("online_cpus"))
    kernel = " ".join(
        filter(None, (target_text(target.get(k)) for k in ("release", "architecture")))
    )
    if page_size is not None:
        memory += f", {display.short_size(page_size)} pages"
    return [
        ("Host", host_of(bundle) + (f", {display.plural(cpus, 'CPU')} online" if cpus else ""), ""),
        ("Kernel", kernel or "not recorded", ""),
        ("Read from", f"{source} {file}" if file not in ("", kind) else source, ""),
        ("Captured", target_text(target.get("captured_at")) or "not recorded", ""),
        ("Uptime then", uptime_of(bundle) or "not recorded", ""),
        ("Memory", memory, exact),
    ]


def uptime_of(bundle: Bundle) -> str:
    return display.duration(bundle.uptime) if bundle.uptime else ""


def section_title(name: str) -> str:
    """Title of a section in the page; one that is not known here goes by its name."""
    return HEADINGS[name].title if name in HEADINGS else name.replace("_", " ")


def with_commands(text: str) -> Markup:
    """Words with their commands marked, so that these can be copied."""
    # What is in parentheses is every second part.
    parts = COMMAND.split(visible(text))
    return Markup().join(
        Markup('<code class="command">{}</code>').format(_words(part)) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _words(command: str) -> Markup:
    """A command that breaks between its words, and not at a hyphen in one."""
    words = (Markup("<span>{}</span>").format(w) if "-" in w else w for w in command.split(" "))
    return Markup(" ").join(words)


# Longest first: what is in backticks is nothing else.
MARKED = re.compile(
    r"`(?P<code>[^`]+)`|\*(?P<em>[^*]+)\*|\[(?P<text>[^]]+)\]\((?P<link>https:[^)]+)\)"
)


def intro(name: str) -> Markup:
    """Introduction of a section, as paragraphs; the text is our own."""
    paragraphs = HEADINGS[name].intro.strip().split("\n\n") if name in HEADINGS else []
    return Markup("\n").join(Markup("<p>{}</p>").format(marked_up(p)) for p in paragraphs)


def marked_up(text: str) -> Markup:
    """Text with ``*words*``, code in backticks, and ``[links](https://…)``."""

    def element(match: re.Match[str]) -> Markup:
        if match["code"]:
            return Markup("<code>{}</code>").format(match["code"])
        if match["em"]:
            return Markup("<em>{}</em>").format(match["em"])
        link = '<a href="{}" rel="noopener noreferrer">{}</a>'
        return Markup(link).format(match["link"], marked_up(match["text"]))

    result, end = Markup(), 0
    for match in MARKED.finditer(text):
        result += text[end : match.start()]
        result += element(match)
        end = match.end()
    return result + text[end:]
