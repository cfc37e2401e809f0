# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What is half true of the kernel is never said alone: its other half stands in the same text.

Read are the words of findings, triggers, recipes, sections, the glossary, pages and docs. Each
claim has the function of the kernel that makes it half true, and a sentence that was once said.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from said_words import STEPS, found_words, texts


@dataclass(frozen=True)
class Claim:
    """
    Half of what is so.

    :ivar said: pattern by which it is known. :ivar also: patterns of what belongs to it.
    :ivar once: a sentence with the first and without the second.
    """

    said: str
    also: tuple[str, ...]
    once: str


CLAIMS: dict[str, Claim] = {
    # zram_slot_free_notify() (drivers/block/zram/zram_drv.c), zswap_invalidate() (mm/zswap.c)
    "zsmalloc shrinks": Claim(
        r"zsmalloc\b[^.]*\.\s*It shrinks|zsmalloc\b[^.]*\bshrinks",
        (r"\bexit\b", "munmap|discard"),
        "zsmalloc holds what was compressed. It shrinks only when that is read back.",
    ),
    # kernel_clone(): a storm of short threads has as many stacks as threads that idle
    "many kernel stacks": Claim(
        r"(?i)\bthreads?\b[^.]*\b(?:never end|idle)\b",
        ("storm|short",),
        "So many threads are mostly idle ones that nobody ends.",
    ),
    # mmu_shrink_scan() (arch/x86/kvm/mmu/mmu.c, until 6.12)
    "KVM's page tables and reclaim": Claim(
        r"(?i)KVM's page tables[^.]*\.?[^.]*\breclaim\b", ("shrinker",),
        "KVM's page tables are in no VmPTE, and no reclaim gives them back.",
    ),
    # warn_alloc(): DEFINE_RATELIMIT_STATE(nopage_rs, 10*HZ, 1); 5*HZ and 10 in 5.10
    "messages of failed allocations are limited": Claim(
        r"\b(?:says?|prints?) at most \w+ of them", ("one of them in (?:10 s|ten seconds)",),
        "warn_alloc() says at most ten of them in five seconds.",
    ),
    # mem_cgroup_get_oom_group() (mm/memcontrol.c)
    "memory.oom.group": Claim(
        r"memory\.oom\.group", (r"\ball\b|\bwhole\b",),
        "Whether a process is killed for it or not (memory.oom.group).",
    ),
    # test_states(), update_averages() (kernel/sched/psi.c): by CPU, weighted by non-idle time
    "PSI full": Claim(
        r"(?i)\bfull\b[^.|]*\btime in which\b|no task [^.]*did its own work", (r"\bCPUs?\b",),
        "PSI counts time in which no task of the machine did its own work.",
    ),
    # workingset_refault() counts before workingset_test_recent() (mm/workingset.c)
    "refaults": Claim(
        r"(?i)\b(?:a )?refaults? (?:is|are|counts?)\b",
        ("workingset_activate|however l(?:ong|ate)",),
        "Refaults are pages that were reclaimed and soon read again.",
    ),
    # swap_cluster_readahead(), swap_vma_readahead() (mm/swap_state.c); try_to_unuse() (swapfile.c)
    "PSWPIN": Claim(
        r"(?i)page (?:that )?(?:comes in|is swapped in|swapped in)\b[^.]*\b(?:needed|waited)\b",
        ("readahead", "swapoff"),
        "A page that is swapped in was needed again: whoever touched it waited.",
    ),
    # can_demote(), demote_folio_list() (mm/vmscan.c)
    "no reclaim without swap": Claim(
        r"(?is)(?:no reclaim|cannot be reclaimed|reclaim (?:cannot|can only))[^.]*\bswap\b"
        r"|\bswap\b[^.]*(?:cannot be reclaimed|can only shrink)",
        ("demotion|slower node",),
        "No reclaim frees it without swap.",
    ),
    # throttle_direct_reclaim() (mm/vmscan.c), mem_cgroup_handle_over_high() (mm/memcontrol.c)
    "direct reclaim is the wait": Claim(
        r"(?i)direct reclaim is (?:the )?time", (r"throttle_direct_reclaim\(\)", "memory.high"),
        "Direct reclaim is the time that programs wait.",
    ),
    # try_to_free_mem_cgroup_pages(): of try_charge(), reclaim_high() and user_proactive_reclaim()
    "the event of a cgroup's reclaim": Claim(
        r"(?i)memory cgroups? (?:reclaims? at|at their limit)|the same of memory cgroups",
        ("memory.high", "memory.reclaim"),
        "The same of memory cgroups at their limit.",
    ),
    # decay_pcp_high() (mm/vmstat.c), drain_all_pages() (mm/page_alloc.c)
    "pages of a CPU's list come back": Claim(
        r"(?i)CPU's list[^.]*\.?[^.]*\.?[^.]*(?:come back|go back|given back|return)",
        ("falls|decay_pcp_high",),
        "Pages on a CPU's list come back when a list is over its limit.",
    ),
    # shrink_node(): memory.min and memory.low, mem_cgroup_below_min() (mm/vmscan.c)
    "nothing could be reclaimed": Claim(
        r"(?i)nothing could be reclaimed|kswapd is no(?:t| longer) woken for the node",
        (r"protection by memory\.min or memory\.low",),
        "Nothing could be reclaimed because it is pinned, locked or the kernel's own.",
    ),
    # memcg_reparent_objcgs() (mm/memcontrol.c, 7.2): pages are the parent's at once
    "a page keeps a removed cgroup": Claim(
        r"(?i)\b(?:files?|pages?)\b[^.]*\bkeeps? (?:the|a|its|their) (?:removed |dying )?cgroup",
        ("7.1|7.2|reparent|kernel.",),
        "A file in tmpfs keeps the cgroup in which its pages were first touched.",
    ),
}  # fmt: skip


def halves(words: str) -> Iterator[str]:
    """What is said by halves."""
    for name, claim in CLAIMS.items():
        if re.search(claim.said, words):
            missing = [word for word in claim.also if not re.search(word, words)]
            yield from (f"{name}: {word}" for word in missing)


def everything() -> dict[str, str]:
    """All that is said, by where."""
    return {
        **dict(texts()),
        **{f"finding {name}": words for name, words in found_words()},
        **{f"step {name}": step.text for name, step in STEPS.items()},
    }


def test_nothing_is_said_by_halves() -> None:
    found = [f"{place}: {what}" for place, words in everything().items() for what in halves(words)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_was_once_said_is_told(name: str) -> None:
    assert any(told.startswith(name) for told in halves(CLAIMS[name].once))


@pytest.mark.parametrize("name", CLAIMS)
def test_it_is_still_said_somewhere(name: str) -> None:
    """A claim that no text makes any more is watched over for nothing, or is no longer known."""
    assert any(re.search(CLAIMS[name].said, words) for words in everything().values())
