# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/exam.md: the score of the kept cases, by way and by kind, and what was said wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from exam_kinds import KINDS
from exam_score import WAYS, Marked, all_sums, sums

# What was made or changed after which seed was seen.
TUNED = """\
Seed 1 was used for tuning: its shares are likely higher than those of an unseen seed.
After it was seen,

- `memory-nearly-gone` and `watch-memory-runs-out` were made, and count as right for a process that
  takes what there is (cause `process`);
- `watch-below-low` was changed, and a log alone clears nothing any more;
- a case of `slab-leak-of-module` that had been played was taken out;
- `cgroup-oom-kills`, `shmem-unmapped` and `watch-memory-taken` were made. They count as right where
  their row is about what was planted: of a deleted file, that it is shared memory;
- `memory-pressure`, `cgroup-pressure`, `deleted-file-in-memory`, `shmem-left-behind` and
  `tasks-wait-behind-one` name who it is, and what explains them; `percpu-large`,
  `kernel-memory-large`, `oom-cgroup-limit`, `oom-kills-since-boot` and `watch-memory-pressure` were
  changed. Text, and a watch, do not clear a machine on which it was not read who has a quarter of
  memory that is shared.

A cause has several right answers, and some are wide: `cgroup-thrash` is right for a cgroup that is
throttled, any finding of short memory for a process that takes it.

Seed 2 had not been seen. Eleven of its cases were played, eight of them sick, on a host so busy
that two more did not come about; they are not kept. As mmscope was before, and as it is now:

| way | precision | recall | cause | owner | false clear |
|---|---|---|---|---|---|
| vmcore, before and now | 8 of 9 | 8 of 8 | 8 of 8 | 8 of 8 | 0 |
| text, before and now | 6 of 7 | 6 of 8 | 6 of 8 | 5 of 8 | 1 |
| watch, before | 6 of 6 | 6 of 8 | 5 of 8 | 0 of 8 | 1 |
| watch, now | 6 of 6 | 6 of 8 | 6 of 8 | 3 of 8 | 1 |
| log, before and now | 2 of 2 | 2 of 8 | 2 of 8 | 2 of 8 | 0 |

A watch now says who held memory, and which tasks stay in D state. Four of the eight were watched
by one that reads holders: of three the owner is right, the fourth's was left out for the price of
/proc/vmallocinfo. None was watched by one that reads tasks in D state. Of `oom-global` a watch
called the kill a cgroup's, as the victim's memory was back before its kill was counted;
`watch-oom-kill` was changed after that, so that this case is seen as well.

Wrong but in a vmcore: `mmap-lock-convoy`, which text and watch cleared, and `tmpfs-left-behind`, of
which they cannot tell, as neither reads who has a file open. Wrong in vmcore and text:
`arc-with-a-shrinker`, a module's cache that is called trouble although it gives back. No seed was
played after all of this was made, and six kinds were never played: `segments-left-behind`,
`segments-in-use`, `thread-leak`, `mappings-at-the-limit`, `many-mappings-with-room` and
`deleted-log-still-open`."""

_HEAD = """\
# The exam

Incidents that were made to happen, and machines that only look so, and what mmscope says of
each. This page is made by `make exam KEEP=1` of the cases in `tests/exam`, and CI holds every
change of a finding against their score.

A case is a machine of 1.5 GiB under emulation, with Debian's kernel 6.12 and some neighbours at
work. Something is planted in it by parameters that a seed draws: names, sizes, rates. The guest
holds it against the kernel's own files; what did not come about is no case. The same moment is
then seen in four ways: as a **vmcore**, as the **text** of /proc and /sys, by a **watch** that
ran meanwhile (one sample a second), and as the kernel's **log** alone. mmscope never reads the
truth.

- **recall**: sick machines that were called *trouble*; *cannot tell* does not count.
- **precision**: of the machines that were called *trouble*, those that are sick.
- **cause**: sick machines of which the first finding means what was planted.
- **owner**: where it is known who it was (a process, cgroup, file or module), sick machines at
  which that was said.
- **false clear**: sick machines of which was said *no trouble found*.

Behind each share are its numbers and its interval of 95 % (Wilson). Many a trouble leaves no
line in the log, so recall by the log alone cannot be high; what counts there is that nothing is
said to be well that is not.

"""

_FOOT = """
## Seeds

The kept cases are of {seeds}.

{tuned}

{without}

## Again, or other cases

```
make exam SEED=7                                  # every kind, four ways: a minute and a half each
make exam SEED=7 KINDS=process-leak,idle WAYS=vmcore,watch
make exam SEED=1,2 CASES=cases                    # cases that the folder has are not played again
make exam SEED=1 CASES=cases KEEP=1               # keeps them in tests/exam, and writes this page
make exam-kept                                    # asks all kept cases: a minute
```

Each case is a JSON line, and the last line has the sums: `{{"cases": …, "precision": …,
"recall": …, "cause": …, "owner": …, "by_way": …, "by_kind": …}}`.

A kind is a function in `tests/lab/exam_kinds.py`: it plants, checks, and returns who it was.
What means which cause is in `tests/support/exam_score.py`.

## What it does not say

The machines are small and emulated, the trouble is young: a leak of minutes, not of weeks. All
cases of a shape begin with the same booted machine. A share over {cases} cases has the interval
that stands beside it, and no better one.
"""


def figure(share: dict[str, Any]) -> str:
    if not share["of"]:
        return "-"
    low, high = round(100 * share["low"]), round(100 * share["high"])
    return f"{share['share']:.0%} ({share['right']} of {share['of']}; {low}-{high})"


def page(marks: Iterable[Marked]) -> str:
    every = list(marks)
    return "".join(f"{line}\n" for line in _lines(every))


def _lines(marks: list[Marked]) -> Iterator[str]:
    yield _HEAD.rstrip("\n")
    yield ""
    yield "## By way"
    yield ""
    yield "| way | cases | precision | recall | cause | owner | false clear |"
    yield "|---|---|---|---|---|---|---|"
    total = all_sums(marks)
    for way, found in [*total["by_way"].items(), ("all", total)]:
        shares = (figure(found[name]) for name in ("precision", "recall", "cause", "owner"))
        yield f"| {way} | {found['cases']} | {' | '.join(shares)} | {found['false_clear']} |"
    yield ""
    yield from _by_kind("Sick", [one for one in marks if one.sick])
    yield from _by_kind("Innocent", [one for one in marks if not one.sick])
    seeds = sorted({one.seed for one in marks})
    those = f"seed{'s' if len(seeds) != 1 else ''} {', '.join(map(str, seeds))}"
    foot = _FOOT.format(seeds=those, tuned=TUNED, without=_without(marks), cases=total["cases"])
    yield foot.strip("\n")


def _without(marks: list[Marked]) -> str:
    """Kinds of which no case is kept: nothing here speaks of them."""
    missing = sorted(KINDS.keys() - {one.kind for one in marks})
    if not missing:
        return "Of every kind a case is kept."
    names = ", ".join(f"`{name}`" for name in missing)
    some = f"{len(missing)} of {len(KINDS)} kinds have no kept case"
    words = f"{some}, and no share speaks of them: {names}."
    return textwrap.fill(words, 100, break_on_hyphens=False, break_long_words=False)


def _by_kind(title: str, marks: list[Marked]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    sick = title == "Sick"
    says = "**right**: trouble, and its cause" if sick else "nothing, or *cannot tell*"
    yield f"What was said first in each way; {says}. *clear* is *no trouble found*."
    yield ""
    yield f"| kind | what it is | {' | '.join(WAYS)} |{' owner |' if sick else ''}"
    yield f"|---|---|{'---|' * (len(WAYS) + sick)}"
    for kind in dict.fromkeys(one.kind for one in marks):
        here = [one for one in marks if one.kind == kind]
        cells = [_cell([one for one in here if one.way == way]) for way in WAYS]
        what = (KINDS[kind].plant.__doc__ or "").strip().rstrip(".")
        owner = f" {_owned(here)} |" if sick else ""
        yield f"| {kind} | {what} | {' | '.join(cells)} |{owner}"
    yield ""


def _owned(marks: list[Marked]) -> str:
    found = sums(marks)["owner"]
    return f"{found['right']} of {found['of']}" if found["of"] else "-"


def _cell(marks: list[Marked]) -> str:
    return ", ".join(map(_said, marks)) or "-"


def _said(one: Marked) -> str:
    if not one.called:
        return {"no trouble found": "clear"}.get(one.word, one.word)
    return f"**{one.headline}**" if one.cause_right else one.headline
