# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What may hurt the machine is never advised without saying so, nor is an undo that may.

Read are all steps of findings, and the words of triggers, recipes, sections, the glossary, pages
and docs. An advice is known by its verb and the name of what it changes; it must have its warnings.
"""

import re
import tomllib
from collections.abc import Iterator

import pytest
from said_words import ROOT, STEPS, texts

from mmscope.reports.findings.question import Step

VERB = r"(?i)\b(?:raise|lower|set|limit|write|put|echo|make)\b[^.;|]{0,80}?"
HARD_LIMIT = r"memory\.max\b|memory\.limit_in_bytes|MemoryMax="
SOFT_LIMIT = r"memory\.high\b|MemoryHigh="
# What is done: what must be said with it. All are patterns.
DANGERS: dict[str, tuple[str, tuple[str, ...]]] = {
    # memory_max_write(): reclaims, then kills until it fits. v1 (mem_cgroup_resize_max()): EBUSY.
    "a hard limit": (
        VERB + f"(?:{HARD_LIMIT})",
        ("at once", r"\bkills?\b", "reclaims?", "cgroup v1|UNIT|unit"),
    ),
    # memory_high_write(): reclaims; mem_cgroup_handle_over_high(): sleeps.
    "a soft limit": (VERB + f"(?:{SOFT_LIMIT})", ("at once", "sleep")),
    # set_current_oom_origin() in swapoff()
    "swapoff": (r"\bswapoff\b", ("OOM",)),
    # proc_ipc_dointvec_minmax_orphans(): shm_destroy_orphaned()
    "orphaned segments": (
        r"shm_rmid_forced (?:to|at) 1|shm_rmid_forced ?= ?1",
        ("at once", "destroyed", "does not come back"),
    ),
    # unmerge_and_remove_all_rmap_items() in run_store(), as an OOM origin; a copy of each page
    "the end of KSM": (
        r"MADV_UNMERGEABLE\) by|PR_SET_MEMORY_MERGE, 0"
        r"|\b2 (?:to|\| sudo tee)\s+/sys/kernel/mm/ksm/run",
        ("OOM", "cop(?:y|ied)"),
    ),
    # si_mem_available(), global_dirtyable_memory(), zone_highsize(); "too high will OOM" (vm.rst)
    "more memory kept free": (
        VERB
        + r"(?<!Leave )vm\.(?:min_free_kbytes|watermark_scale_factor)|min_free_kbytes be raised",
        ("at once", "MemAvailable", "dirty", "per-CPU", "at most", "OOM"),
    ),
    # Documentation/admin-guide/sysctl/vm.rst
    "caches dropped": (r"drop_caches", ("production|test machine", "testing and debugging")),
    "pressure on dentries": (VERB + "vfs_cache_pressure|vfs_cache_pressure", ("at most", "locks")),
    # user_proactive_reclaim(): reclaims in the task that writes
    "memory.reclaim": (r"write .*memory\.reclaim", ("reclaim", "cache goes")),
}
# Files of debugfs that end in an oops on some kernel, and the feature of those where they do not.
CRASHES = {r"/sys/kernel/debug/page_owner(?![\w/])": "page_owner_file_safe"}
# Undoing it may kill as well: that part says so by itself.
KILLS = re.compile(rf"{HARD_LIMIT}|\bold number to it\b|swapoff|^offline")
# A page is not always 4 KiB.
SHIFT = re.compile(r"(?:<<|>>) ?12\b|\* ?4096\b")


def lacking(said: str, done: str, undo: str = "") -> Iterator[str]:
    """
    What is missing where something is advised.

    :param said: all that is said of it. :param done: what is to be done. :param undo: and undone.
    """
    for name, (pattern, words) in DANGERS.items():
        for part in filter(None, (done, undo)):
            if re.search(pattern, part):
                missing = [word for word in words if not re.search(word, said)]
                yield from (f"{name}: {word}" for word in missing)
                break
    if KILLS.search(undo) and not re.search(r"at once.*\bkills\b|\bkills\b|OOM", undo, re.DOTALL):
        yield "its undo may kill, and does not say so"


def lacking_of(step: Step) -> list[str]:
    found = list(lacking(step.text, step.do, step.undo))
    for path, feature in CRASHES.items():
        if re.search(path, step.do) and feature not in step.only:
            found.append(f"it may crash a kernel: only = [{feature!r}]")
    if SHIFT.search(step.text):
        found.append("a page is 16 or 64 KiB on some machines")
    return found


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_step_says_what_it_may_do(step: Step) -> None:
    assert lacking_of(step) == [], step.text


def test_no_step_is_advised_for_what_it_does_not_do() -> None:
    """kcompactd is woken by kswapd and by fragmentation, not by a watermark."""
    for name, step in STEPS.items():
        assert not re.search(r"(?is)raise vm\.min_free_kbytes.*compact", step.do), name


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_files_of_a_cgroup_are_called_as_the_version_calls_them(step: Step) -> None:
    if re.search(r"\bmemory\.(?!(?:c|h|rst)\b)\w+", step.do):
        assert re.search(r"cgroup v[12]", step.text), step.text


# What is only named there, with no one told to do it.
NAMES_IT = re.compile(
    r"memory\.max; empty|limit_bytes|swapoff in progress|drop_pagecache|drop_slab"
    r"|what drop_caches frees|^[|-] (?:\*\*)?(?:drop_caches [123]|swapoff)\b"
)


def test_other_words_say_it_too() -> None:
    found = []
    for place, words in texts():
        if NAMES_IT.search(words):
            continue
        found += [f"{place}: {what}" for what in lacking(words, words)]
        for path in CRASHES:
            if re.search(path, words) and "oops" not in words:
                found.append(f"{place}: may crash a kernel, and does not say so")
    assert not found


def test_words_are_read_from_everywhere() -> None:
    places = {place.split()[0] for place, _ in texts()}
    assert {
        "README.md",
        "guard.md",
        "kernels.md",
        "picture_min_free.html",
        "reclaim.toml",
    } <= places
    assert {"memory-pressure.toml", "glossary.toml", "section"} <= places
    assert tomllib.loads((ROOT / "reports/guard/triggers/oom-kill.toml").read_text())


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Step("Raise memory.max.", undo="write the old number to memory.max"), "its undo may kill"),
        (Step("Write 1G to memory.max.", cost="memory"), "a hard limit: at once"),
        (Step("Set MemoryMax= of the unit.", cost="memory"), "a hard limit"),
        (Step("Lower memory.limit_in_bytes."), "a hard limit"),
        (Step("Set memory.high lower.", cost="throttled"), "a soft limit: at once"),
        (Step("Add room.", undo="swapoff"), "swapoff: OOM"),
        (Step("Set kernel.shm_rmid_forced to 1.", undo="write 0"), "orphaned segments: destroyed"),
        (Step("Read it: 'cat /sys/kernel/debug/page_owner'."), "it may crash a kernel"),
        (Step("Raise vm.min_free_kbytes.", cost="memory"), "more memory kept free: MemAvailable"),
        (Step("Raise vm.watermark_scale_factor."), "more memory kept free: dirty"),
        (Step("Drop caches: 'echo 3 > /proc/sys/vm/drop_caches'."), "caches dropped"),
        (Step("Set vm.vfs_cache_pressure to 10000."), "pressure on dentries: at most"),
        (Step("Look: prog.read(pfn << 12, 64, True)."), "a page is 16 or 64 KiB"),
        (Step("Set 2 to /sys/kernel/mm/ksm/run."), "the end of KSM: OOM"),
    ],
)
def test_a_step_that_does_not_say_it_is_told(step: Step, what: str) -> None:
    assert any(told.startswith(what) for told in lacking_of(step)), lacking_of(step)
