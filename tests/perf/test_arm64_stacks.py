# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Stacks of arm64 in profiles: the parts of an end and of a page fault, interrupts, and who allocates.

The stacks were put together by hand. Their functions are those that kernels of 6.12, 7.2 and 7.3 on
arm64 have as symbols, called as arch/arm64/kernel/entry-common.c calls them; no profile was
recorded there.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from perf_text import KNOWN, fold, header, sampled, stack

from mmscope.perf.stack_parts import load_split
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS
from mmscope.reports.rows.profile_rows import ProfileAllocation, ProfileFrame

SYSCALL = ("el0t_64_sync", "el0t_64_sync_handler", "el0_svc", "do_el0_svc", "el0_svc_common",
           "invoke_syscall")  # fmt: skip
EXIT = (*SYSCALL, "__arm64_sys_exit_group", "do_group_exit", "do_exit", "mmput", "exit_mmap")
FAULT = ("el0t_64_sync", "el0t_64_sync_handler", "el0_da", "do_mem_abort", "do_translation_fault",
         "do_page_fault", "handle_mm_fault")  # fmt: skip
IN_KERNEL = ("el1h_64_irq", "el1h_64_irq_handler", "el1_interrupt")
IN_USER = ("el0t_64_irq", "el0t_64_irq_handler", "el0_interrupt")
# Of an M1, timers and counters come as FIQ.
BY_FIQ = ("el1h_64_fiq", "el1h_64_fiq_handler", "el1_interrupt")
OF_32_BITS = ("el0t_32_irq", "el0t_32_irq_handler", "el0_interrupt")
HANDLED = ("do_interrupt_handler", "call_on_irq_stack", "gic_handle_irq",
           "generic_handle_domain_irq", "handle_fasteoi_irq", "handle_irq_event")  # fmt: skip
SOFTIRQ = ("__irq_exit_rcu", "do_softirq_own_stack", "call_on_irq_stack", "____do_softirq",
           "handle_softirqs")  # fmt: skip


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ((*EXIT, "unmap_vmas", "zap_present_folio_ptes", "contpte_clear_full_ptes"),
         ("exit", "zap")),
        ((*EXIT, "free_pgtables", "free_pgd_range"), ("exit", "free_pgtables")),
        ((*EXIT, "zap_pte_range", *IN_KERNEL, *HANDLED), ("exit", "interrupts")),
        ((*EXIT, "zap_pte_range", *BY_FIQ), ("exit", "interrupts")),
        ((*SYSCALL, "__arm64_sys_process_mrelease", "__oom_reap_task_mm", "zap_pte_range"),
         ("reaper", "zap")),
        ((*SYSCALL, "__arm64_sys_process_mrelease"), ("reaper", "unclassified")),
        ((*SYSCALL, "__arm64_sys_read", "vfs_read"), None),
    ],
)  # fmt: skip
def test_the_end_is_split_into_its_parts(names: tuple[str, ...], part: Any) -> None:
    assert load_split("exit-path").classify(names) == part


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (FAULT[:3], "entry and exit"),
        ((*FAULT[:3], "arm64_exit_to_user_mode"), "entry and exit"),
        ((*FAULT[:3], "exit_to_user_mode_loop", "schedule"), "rescheduling"),
        ((*FAULT[:3], "do_notify_resume"), "rescheduling"),
        ((*FAULT[:6], "lock_vma_under_rcu"), "VMA and locks"),
        (FAULT, "handling"),
        ((*FAULT, "do_anonymous_page", "__pte_alloc", "__pi_clear_page"), "page tables"),
        ((*FAULT, "do_anonymous_page", "folio_zero_user", "__pi_clear_page"), "zeroing"),
        ((*FAULT, "get_page_from_freelist", "post_alloc_hook", "tag_clear_highpage",
          "mte_zero_clear_page_tags"), "zeroing"),
        ((*FAULT, "do_wp_page", "copy_highpage", "mte_copy_page_tags"), "copying"),
        ((*FAULT, *IN_KERNEL, *HANDLED), "interrupts"),
        ((*FAULT[:3], *IN_USER), "interrupts"),
        ((*FAULT[:3], *OF_32_BITS), "interrupts"),
        (("el1h_64_sync", "el1h_64_sync_handler", "el1_abort", "do_mem_abort"), "entry and exit"),
    ],
)  # fmt: skip
def test_a_fault_is_split_into_its_parts(names: tuple[str, ...], part: str) -> None:
    assert load_split("page-fault").classify(names) == ("fault", part)


@pytest.mark.parametrize("interrupt", [IN_KERNEL, IN_USER, BY_FIQ, OF_32_BITS])
def test_what_happens_in_an_interrupt_is_not_the_interrupted_tasks(
    interrupt: tuple[str, ...],
) -> None:
    """Neither an idle CPU's, which would leave it out."""
    rest = b"page=0x1 pfn=0x1 order=1 migratetype=0 gfp_flags=GFP_ATOMIC"
    names = ("do_idle", "cpu_do_idle", *interrupt, *SOFTIRQ, "net_rx_action", "alloc_pages")
    text = header(b"swapper", event="kmem:mm_page_alloc", rest=rest) + stack(*names) + b"\n"
    folder = fold(text, "atomic-alloc")
    assert folder.allocations[1]["attempts"] == 1
    (found,) = folder.events["kmem:mm_page_alloc"].stacks
    assert found.startswith("(interrupt);") and "do_idle" not in found


@pytest.mark.parametrize("leaf", ["el0_da", "el0_ia", "el1_abort", "do_notify_resume", "el0_svc"])
def test_where_interrupts_come_back_on_is_told(leaf: str) -> None:
    sites = fold(sampled("el0t_64_sync_handler", leaf)).events["cpu-clock"].sites
    assert sites == {(leaf, "el0t_64_sync_handler"): 1}
    assert KNOWN.nmi("cpu-clock", "aarch64") == "no"


ALL_KERNELS = (*SYSCALL, *IN_KERNEL, *IN_USER, *BY_FIQ, *OF_32_BITS, *HANDLED, *SOFTIRQ,
               "__arm64_sys_sendto", "__arm64_compat_sys_sendmsg", "ret_to_user", "ret_from_fork",
               "__secondary_switched", "secondary_start_kernel", "__primary_switched")  # fmt: skip


def test_the_way_into_the_kernel_is_not_who_allocates(tmp_path: Path) -> None:
    """Nor is the allocator: what is said is the function that is neither."""
    contents = made.profile_rows()
    frames = [
        ProfileFrame("p", "mmscope:reserve", f"{name}_[k]", 0, total)
        for name, total in (*((name, 9) for name in ALL_KERNELS), ("ena_refill_rx_bufs", 6))
    ]
    rows = {"profile_allocations": [ProfileAllocation("p", 3, 900, 2, 8, 0)],
            "profile_frames": frames}  # fmt: skip
    for table, found in rows.items():
        contents[table] = (*contents[table][:2], found, "profiles")
    questions = [q for q in OURS() if q.id == "profile-atomic-callers"]
    (finding,) = evaluate(made.write_bundle(tmp_path / "b", contents), questions).found
    assert "most through ena_refill_rx_bufs_[k]" in finding.title


def test_drivers_are_who_allocates_whatever_they_are_called() -> None:
    (question,) = (q for q in OURS() if q.id == "profile-atomic-callers")
    found = re.search(r"'(\^\(asm_.*\))'", question.sql)
    assert found
    for name in ("e1000_alloc_rx", "elan_report", "gve_rx_post", "ret_pages", "el3_rx"):
        assert not re.match(found[1], name), name
