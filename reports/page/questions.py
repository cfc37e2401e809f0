# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Questions with which a reader comes, and where this page answers them: a line below the card.

Cannot know: whether the answer is the one that was looked for. A question without a place in the
page is not shown.
"""

from collections.abc import Iterator, Sequence

from mmscope.reports.page.views import FindingView, SectionView

GREW = "What grew?"
# A question; findings that answer it, of those in the page the first, which is the worst cause; ids
# of pictures and tables that answer it where no such finding was made, the best first.
ASKED: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Who has the memory?", (), ("picture-memory_bar", "table-page_owner_stacks")),
    (
        "Why do huge pages fail?",
        (
            *("highatomic-starves-thp", "external-fragmentation", "compaction-fails"),
            *("watch-thp-blocks-ran-out", "watch-thp-falls-back", "thp-falls-back"),
        ),
        ("picture-fragmentation",),
    ),
    (
        "Why does exit take long?",
        (
            *("page-table-bloat", "sparse-page-tables", "huge-zero-deposits", "slow-exit"),
            *("profile-unmapped-twice", "profile-exit-share"),
        ),
        ("table-exit_costs",),
    ),
    (
        GREW,
        ("page-owner-took-growth", "page-owner-stack-grows", "watch-kernel-memory-grows"),
        ("picture-page_owner_growth", "picture-watch"),
    ),
    ("May vm.min_free_kbytes be raised?", (), ("picture-min_free",)),
)


def questions(
    sections: Sequence[SectionView], findings: Sequence[FindingView], compared: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """
    Those that the page answers: (words, id of the place). A recording of another boot answers last,
    and is called that.

    :param compared: ids that a comparison in the page has, the best answer to what grew first.
    """
    places = {
        place
        for section in sections
        for table in section.tables
        for place in (
            *([f"table-{table['name']}"] if table["total"] else []),
            *(f"picture-{p.name}" for p in section.pictures[table["name"]] if not p.error),
        )
    }
    for question, answered_by, pictured in ASKED:
        answers = [view for view in findings if view.finding.id in answered_by]
        goals = [view.anchor for view in answers if not view.finding.other_boot]
        goals += [place for place in pictured if place in places]
        if question == GREW:
            goals = [*compared, *goals]
        if goals:
            yield question, goals[0]
        elif answers:
            yield f"{question}{answers[0].finding.aside}", answers[0].anchor
