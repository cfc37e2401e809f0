# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The types of the kernel's global variables, which BTF does not have: data only.

Each is as the kernel's headers and files declare it, by type, and the same on all kernels from 5.10
to 7.3 unless it says otherwise; tests hold every one against the debug info of each kernel of the
lab. A global that a kernel does not have is not asked for. Lengths of arrays: a number, an
enumerator, ``room``: as many as fit before the next symbol, or ``names``: of these, those up to the
last that is not NULL.
"""

_BY_TYPE = {
    "atomic_long_t": (
        "_totalram_pages ksm_zero_pages nr_memmap_boot_pages nr_memmap_pages nr_swap_pages "
        "nr_vmalloc_pages num_poisoned_pages"
    ),
    "atomic_long_t [NR_VM_NODE_STAT_ITEMS]": "vm_node_stat",
    "atomic_long_t [NR_VM_NUMA_EVENT_ITEMS]": "vm_numa_event",
    "atomic_long_t [NR_VM_NUMA_STAT_ITEMS]": "vm_numa_stat",
    "atomic_long_t [NR_VM_ZONE_STAT_ITEMS]": "vm_zone_stat",
    "atomic_t": "__num_online_cpus secretmem_users",
    "bool": (
        "hugetlb_free_vmemmap_enabled ksm_smart_scan ksm_use_zero_pages vmemmap_optimize_enabled "
        "zswap_enabled"
    ),
    "char *": "saved_command_line",
    "const char * const [MIGRATE_TYPES]": "migratetype_names",
    "const char * const [names]": "vmstat_text",
    "const char *[MR_TYPES]": "migrate_reason_names",
    "const struct trace_print_flags [room]": "gfpflag_names pageflag_names",
    "depot_stack_handle_t": "dummy_handle early_handle failure_handle",
    "int": (
        "alloc_tag_ref_offs defrag_mode depot_index dirty_background_ratio hugetlb_max_hstate "
        "ksm_max_page_sharing ksm_nr_node_ids memmap_mode min_free_kbytes pcpu_nr_slots "
        "pcpu_nr_units percpu_pagelist_fraction percpu_pagelist_high_fraction pool_index pools_num "
        "sysctl_extfrag_threshold sysctl_max_map_count sysctl_overcommit_memory "
        "sysctl_stat_interval vm_dirty_ratio vm_swappiness watermark_boost_factor "
        "watermark_scale_factor"
    ),
    # Some are per CPU, of which the BTF of newer kernels has the types.
    "long": "nr_dentry nr_dentry_negative nr_dentry_unused total_swap_pages",
    "nodemask_t [NR_NODE_STATES]": "node_states",
    "pgprot_t [16]": "protection_map",
    "size_t": "depot_offset pool_offset",
    "struct alloc_tag_kernel_section": "kernel_tags",
    "struct alloc_tag_module_section": "module_tags",
    "struct cgroup_root": "cgrp_dfl_root",
    "struct cgroup_subsys": "memory_cgrp_subsys",
    "struct cpumask": "__cpu_active_mask __cpu_online_mask __cpu_possible_mask __cpu_present_mask",
    "struct codetag_type *": "alloc_tag_cttype",
    "struct css_set": "init_css_set",
    "struct e820_table *": "e820_table e820_table_firmware",
    "struct folio *": "huge_zero_folio",
    "struct hlist_head *": "mount_hashtable",
    "struct hstate [room]": "hstates",
    "const unsigned long *": "pcpu_unit_offsets",
    "mempool_t": "integrity_buf_pool",
    "struct io_tlb_mem": "io_tlb_default_mem",
    "struct kmem_cache *": (
        "anon_vma_cachep anon_vma_chain_cachep kmem_cache kmem_cache_node rmap_item_cache "
        "stable_node_cache task_struct_cachep vm_area_cachep"
    ),
    "struct ksm_scan": "ksm_scan",
    "struct list_head": (
        "btf_modules migrate_nodes modules slab_caches super_blocks vmap_area_list zswap_pools"
    ),
    "struct mem_cgroup *": "root_mem_cgroup",
    "struct mem_section **": "mem_section",
    "struct mm_struct": "init_mm",
    "struct net": "init_net",
    "struct list_head *": "pcpu_chunk_lists",
    "struct pcpu_chunk *": "pcpu_first_chunk pcpu_reserved_chunk",
    "struct page *": "huge_zero_page",
    "struct page_ext_operations": "page_alloc_tagging_ops page_owner_ops",
    "struct percpu_counter": "vm_committed_as",
    "struct pglist_data *[room]": "node_data",
    "struct pid_namespace": "init_pid_ns",
    "struct printk_ringbuffer": "printk_rb_static",
    "struct printk_ringbuffer *": "prb",
    "struct qlist_head": "cpu_quarantine",
    "struct rb_root": "vmap_area_root",
    "struct rb_root *": "root_stable_tree",
    "struct resource": "iomem_resource",
    "struct rq": "runqueues",
    "struct stack *": "stack_list",
    # mem_alloc_profiling_key: static_key_true, which is the same, where it is on by default.
    "struct static_key_false": "mem_alloc_profiling_key mem_profiling_compressed page_owner_inited",
    "struct swap_info_struct *[room]": "swap_info",
    "struct task_struct": "init_task",
    "struct tk_data [TIMEKEEPERS_MAX]": "timekeeper_data",
    "struct vmap_node *": "vmap_nodes",
    "struct uts_namespace": "init_uts_ns",
    "struct vm_event_state": "vm_event_states",
    "struct vfsmount *": "shm_mnt",
    "struct xarray": "pgmap_array",
    "u64": "jiffies_64 zswap_pool_total_size",
    "u8 [MEMCG_NR_STAT]": "mem_cgroup_stats_index",
    "unsigned int": (
        "ksm_merge_across_nodes ksm_thread_pages_to_scan ksm_thread_sleep_millisecs m_hash_mask "
        "nr_cpu_ids nr_node_ids nr_swapfiles nr_vmap_nodes pgdir_shift ptrs_per_p4d "
        "stack_hash_mask stack_max_pools sysctl_compaction_proactiveness"
    ),
    "unsigned long": (
        "__highest_present_section_nr alloc_tag_ref_mask dirty_background_bytes huge_zero_pfn "
        "jiffies ksm_pages_shared ksm_pages_sharing ksm_pages_skipped ksm_pages_unshared "
        "ksm_rmap_items ksm_run ksm_stable_node_chains ksm_stable_node_dups max_low_pfn max_pfn "
        "nr_inodes nr_unused page_ext_size page_offset_base pcpu_nr_populated quarantine_size "
        "totalreserve_pages transparent_hugepage_flags vm_dirty_bytes vmalloc_base vmemmap_base "
        "zero_page_pfn zero_pfn"
    ),
    "unsigned long [PG_LEVEL_NUM]": "direct_pages_count",
    "unsigned long [room]": "__per_cpu_offset",
    "void *": "high_memory pcpu_base_addr",
    "void *[room]": "stack_slabs",
}

DECLARED = {name: type_ for type_, names in _BY_TYPE.items() for name in names.split()}

# Where kernels differ, newest first: the type, and what only a kernel with it has: a symbol, or a
# struct; or empty.
DIFFER = {
    **dict.fromkeys(
        ("atomic_pool_dma", "atomic_pool_dma32", "atomic_pool_kernel"),
        (("struct dma_gen_pool", "struct dma_gen_pool"), ("struct gen_pool *", "")),
    ),
    # "stackdepot: make max number of pools boot-time configurable" (ed4f142f72a9, in v6.17)
    "stack_pools": (("void **", "stack_max_pools"), ("void *[room]", "")),
    # "lib/stackdepot: use list_head for stack record links" (4805180bc165, in v6.8)
    "stack_table": (("struct list_head *", "pools_num"), ("struct stack_record **", "")),
    # A long since v6.13; by what came later, so that between it is right up to 16 TiB.
    "zswap_stored_pages": (
        ("atomic_long_t", "zswap_stored_incompressible_pages"),
        ("atomic_t", ""),
    ),
}

# Functions that are only looked for, and that BTF may leave out: those of sections that the kernel
# discards, as memory hotplug's in 5.10. drgn tells by the first whether there is a vmemmap.
FUNCTIONS = {"vmemmap_populate"}

# Structs without a name, found by their members.
ANONYMOUS = {"tk_core": {"seq", "timekeeper"}}
