# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The types of the kernel's global variables, which BTF does not have: data only.

Each is as the kernel's headers and files declare it, by type, and the same on all kernels from 5.10
to 7.3 unless it says otherwise, but for a const that came later; tests hold every one against the
debug info of each kernel of the lab. Those that no probe of mmscope needs are what drgn's helpers,
commands and drgn-tools ask for. A global that a kernel does not have is not asked for. Lengths of
arrays: a number, an enumerator, ``room``: as many as fit before the next symbol, or ``names``: of
these, those up to the last that is not NULL.
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
    "atomic_t": "__num_online_cpus huge_zero_refcount panic_cpu secretmem_users",
    "bool": (
        "hugetlb_free_vmemmap_enabled itlb_multihit_kvm_mitigation kho_enable ksm_smart_scan "
        "ksm_use_zero_pages spectre_v2_bad_module vmemmap_optimize_enabled zswap_enabled"
    ),
    "char *": "log_buf saved_command_line",
    "const char * const [MIGRATE_TYPES]": "migratetype_names",
    "const char * const [names]": (
        "gds_strings l1tf_vmx_states mds_strings mmio_strings retbleed_strings "
        "spectre_v1_strings spectre_v2_strings srbds_strings ssb_strings taa_strings "
        "task_state_array vmstat_text"
    ),
    "const char * const [room]": "x86_bug_flags x86_cap_flags",
    "const char *[MR_TYPES]": "migrate_reason_names",
    "char [128]": "dump_stack_arch_desc_str",
    "const char [room]": "linux_banner vermagic",
    "cpumask_var_t [room]": "node_to_cpumask_map",
    "depot_stack_handle_t": "dummy_handle early_handle failure_handle",
    "enum cpuhp_smt_control": "cpu_smt_control",
    "enum gds_mitigations": "gds_mitigation",
    "enum mds_mitigations": "mds_mitigation",
    "enum mmio_mitigations": "mmio_mitigation",
    "enum retbleed_mitigation": "retbleed_mitigation",
    "enum spectre_v1_mitigation": "spectre_v1_mitigation",
    "enum spectre_v2_mitigation": "spectre_v2_enabled",
    "enum spectre_v2_user_mitigation": "spectre_v2_user_stibp",
    "enum srbds_mitigations": "srbds_mitigation",
    "enum ssb_mitigation": "ssb_mode",
    "enum taa_mitigations": "taa_mitigation",
    "enum vmx_l1d_flush_state": "l1tf_vmx_mitigation",
    "enum x86_hypervisor_type": "x86_hyper_type",
    "enum xen_domain_type": "xen_domain_type",
    "gate_desc [256]": "idt_table",
    "int": (
        "alloc_tag_ref_offs crashing_cpu defrag_mode depot_index direct_gbpages "
        "dirty_background_ratio hugetlb_max_hstate ipc_mni_shift ksm_max_page_sharing "
        "ksm_nr_node_ids memcg_nr_cache_ids memmap_mode min_free_kbytes nr_irqs nr_threads "
        "pcpu_nr_slots pcpu_nr_units percpu_counter_batch percpu_pagelist_fraction "
        "percpu_pagelist_high_fraction pool_index pools_num sections_per_block "
        "sysctl_compact_unevictable_allowed "
        "sysctl_extfrag_threshold sysctl_max_map_count sysctl_overcommit_memory "
        "sysctl_overcommit_ratio sysctl_stat_interval sysctl_unprivileged_bpf_disabled "
        "vm_dirty_ratio vm_swappiness watermark_boost_factor watermark_scale_factor"
    ),
    # Some are per CPU, of which the BTF of newer kernels has the types.
    "long": "nr_dentry nr_dentry_negative nr_dentry_unused total_swap_pages",
    "mempool_t": "integrity_buf_pool",
    "nodemask_t [NR_NODE_STATES]": "node_states",
    "note_buf_t *": "crash_notes",
    "pgprot_t [16]": "protection_map",
    "size_t": "depot_offset pool_offset",
    "struct address_space *[room]": "swapper_spaces",
    "struct alloc_tag_kernel_section": "kernel_tags",
    "struct alloc_tag_module_section": "module_tags",
    "struct blk_major_name *[255]": "major_names",
    "const struct block_device_operations": "nvme_bdev_ops nvme_fops nvme_ns_head_ops",
    "struct bus_type": "cpu_subsys memory_subsys node_subsys pci_bus_type platform_bus_type",
    "struct call_function_data": "cfd_data",
    "struct cgroup_root": "cgrp_dfl_root",
    "struct cgroup_subsys": "memory_cgrp_subsys",
    "struct cgroup_subsys *[CGROUP_SUBSYS_COUNT]": "cgroup_subsys",
    "struct char_device_struct *[255]": "chrdevs",
    "struct class": "block_class",
    "struct codetag_type *": "alloc_tag_cttype",
    "struct cpuhp_cpu_state": "cpuhp_state",
    "struct cpumask": "__cpu_active_mask __cpu_online_mask __cpu_possible_mask __cpu_present_mask",
    "struct cpu_spec *": "cur_cpu_spec",
    "struct cred": "init_cred",
    "struct css_set": "init_css_set",
    "struct ctl_table_root": "sysctl_table_root",
    "struct dma_buf_list": "db_list",
    "struct e820_table *": "e820_table e820_table_firmware e820_table_kexec",
    "struct exception_stacks": "exception_stacks",
    "const struct file_operations": "def_blk_fops fanotify_fops inotify_fops ns_file_operations",
    "struct folio *": "huge_zero_folio",
    "struct fs_struct": "init_fs",
    "struct fsnotify_group *": "dnotify_group",
    "struct ftrace_page *": "ftrace_pages_start",
    "struct hlist_bl_head *": "dentry_hashtable",
    "struct hlist_head *": "mount_hashtable",
    "struct hlist_head [room]": "uidhash_table",
    "struct hrtimer_cpu_base": "hrtimer_bases",
    "struct hstate [room]": "hstates",
    "struct ida": "unnamed_dev_ida",
    "struct idr": "btf_idr link_idr map_idr prog_idr worker_pool_idr",
    "struct inet_hashinfo": "tcp_hashinfo",
    "struct io_tlb_mem": "io_tlb_default_mem",
    "struct ipc_namespace": "init_ipc_ns",
    "struct irq_matrix *": "vector_matrix",
    "struct irq_stack *": "hardirq_stack_ptr",
    "struct kernfs_node *": "sysfs_root_kn",
    "struct kernfs_root *": "sysfs_root",
    "struct kho_scratch *": "kho_scratch",
    "struct kmem_cache *": (
        "anon_vma_cachep anon_vma_chain_cachep kmem_cache kmem_cache_node mm_cachep "
        "mnt_cache rmap_item_cache stable_node_cache task_struct_cachep uid_cachep vm_area_cachep"
    ),
    "struct kobj_map *": "cdev_map",
    "struct kobj_type": "bus_ktype class_ktype device_ktype driver_ktype module_ktype",
    "struct kobject *": "kernel_kobj",
    "struct kset *": "bus_kset class_kset devices_kset slab_kset",
    "struct ksm_scan": "ksm_scan",
    "struct list_head": (
        "bdi_list btf_modules dmabuf_list ftrace_trace_arrays kclist_head migrate_nodes "
        "modules net_namespace_list pci_root_buses slab_caches super_blocks vm_list "
        "vmap_area_list workqueues zswap_pools"
    ),
    "struct list_head *": "pcpu_chunk_lists",
    "struct llist_head": "call_single_queue",
    "struct maple_tree": "sparse_irqs",
    "struct mem_cgroup *": "root_mem_cgroup",
    "struct mem_section **": "mem_section",
    "struct memblock": "memblock",
    "const struct memory_stat [names]": "memory_stats",
    "struct mempolicy [room]": "preferred_node_policy",
    "struct mm_struct": "efi_mm init_mm",
    "struct mm_struct *": "poking_mm text_poke_mm",
    "struct mthp_stat": "mthp_stats",
    "struct mod_tree_root": "mod_tree",
    "struct mutex": "pcpu_alloc_mutex",
    "struct napi_alloc_cache": "napi_alloc_cache",
    "struct neigh_table": "arp_tbl",
    "struct net": "init_net",
    "struct optimistic_spin_node": "osq_node",
    "struct page *": "huge_zero_page",
    "struct page_ext_operations": "page_alloc_tagging_ops page_owner_ops",
    "struct pcpu_chunk *": "pcpu_first_chunk pcpu_reserved_chunk",
    "struct percpu_counter": "nr_files vm_committed_as",
    "struct pglist_data *[room]": "node_data",
    "struct pid_namespace": "init_pid_ns",
    "struct plist_head": "swap_active_head",
    "struct printk_ringbuffer": "printk_rb_static",
    "struct page_frag_cache": "netdev_alloc_cache",
    "struct printk_ringbuffer *": "prb",
    "struct psi_group": "psi_system",
    "struct pt_regs *": "__irq_regs",
    "struct qlist_head": "cpu_quarantine",
    "struct rb_root": "uprobes_tree vmap_area_root",
    "struct rb_root *": "root_stable_tree",
    "struct resource": "iomem_resource ioport_resource",
    "struct rq": "runqueues",
    "struct saved_cmdlines_buffer *": "savedcmd",
    "struct softirq_action [NR_SOFTIRQS]": "softirq_vec",
    "struct sock *": "ipv4_icmp_sk ipv6_icmp_sk",
    "struct stack *": "stack_list",
    # Of allocation profiling: static_key_true, which is the same, where that is on by default.
    "struct static_key_false": (
        "mem_alloc_profiling_key mem_profiling_compressed page_owner_inited psi_disabled "
        "sched_smt_present slab_obj_ext_has_codetag_key switch_mm_always_ibpb "
        "switch_mm_cond_ibpb switch_to_cond_stibp"
    ),
    "struct super_block *": "blockdev_superblock",
    "struct swap_cgroup_ctrl [room]": "swap_cgroup_ctrl",
    "struct swap_info_struct *[room]": "swap_info",
    "const struct taint_flag [names]": "taint_flags",
    "struct task_group": "root_task_group",
    "struct task_struct": "init_task",
    "struct time_namespace": "init_time_ns",
    "struct timer_base [2]": "timer_bases",
    "struct timer_list": "poll_spurious_irq_timer",
    "struct tk_data [TIMEKEEPERS_MAX]": "timekeeper_data",
    "struct tlb_state": "cpu_tlbstate",
    "const struct trace_print_flags [room]": "gfpflag_names pageflag_names",
    "struct uts_namespace": "init_uts_ns",
    "struct vfsmount *": "shm_mnt",
    "struct vm_area_struct": "gate_vma",
    "struct vm_event_state": "vm_event_states",
    "struct vmap_node": "single",
    "struct vmap_node *": "vmap_nodes",
    "struct worker_pool [2]": "cpu_worker_pools",
    "struct wb_domain": "global_wb_domain",
    "struct xarray": "irq_desc_tree pgmap_array",
    "u64": "jiffies_64 sme_me_mask zswap_pool_total_size",
    "u8 [MEMCG_NR_STAT]": "mem_cgroup_stats_index",
    "unsigned int": (
        "bdi_min_ratio d_hash_shift default_hstate_idx kho_scratch_cnt ksm_merge_across_nodes "
        "ksm_thread_pages_to_scan ksm_thread_sleep_millisecs m_hash_mask max_cstate nr_cpu_ids "
        "nr_node_ids nr_swapfiles nr_vmap_nodes pageblock_order pgdir_shift ptrs_per_p4d "
        "stack_hash_mask stack_max_pools sysctl_compaction_proactiveness total_nr_irqs "
        "vmap_zone_size"
    ),
    "unsigned int [room]": "nr_swapper_spaces nr_zswap_trees",
    "unsigned long": (
        "__highest_present_section_nr alloc_tag_ref_mask dirty_background_bytes "
        "fault_around_bytes ftrace_number_of_pages huge_zero_pfn jiffies ksm_pages_shared "
        "ksm_pages_sharing ksm_pages_skipped ksm_pages_unshared ksm_rmap_items ksm_run "
        "ksm_stable_node_chains ksm_stable_node_dups max_low_pfn max_pfn min_low_pfn nr_inodes "
        "nr_unused page_ext_size page_offset_base pcpu_nr_populated pool_size_dma pool_size_dma32 "
        "pool_size_kernel quarantine_size sysctl_overcommit_kbytes tainted_mask totalcma_pages "
        "totalreserve_pages transparent_hugepage_flags vm_dirty_bytes vmalloc_base vmemmap_base "
        "zero_page_pfn zero_pfn"
    ),
    "const unsigned long *": "pcpu_unit_offsets",
    "unsigned long [3]": "avenrun",
    "const unsigned long [65][room]": "cpu_bit_bitmap",
    "unsigned long [PG_LEVEL_NUM]": "direct_pages_count",
    "unsigned long [room]": "__per_cpu_offset",
    "vector_irq_t": "vector_irq",
    "void *": "high_memory pcpu_base_addr",
    "void *[room]": "stack_slabs",
}

DECLARED = {name: type_ for type_, names in _BY_TYPE.items() for name in names.split()}

# Where kernels differ, newest first: the type, and what only a kernel with it has: a symbol, a
# struct, or a member of one; or empty.
DIFFER = {
    "boot_cpu_data": (
        ("struct cpuinfo_arm64", "struct cpuinfo_arm64"),
        ("struct cpuinfo_x86", ""),
    ),
    # "percpu: make pcpu_nr_empty_pop_pages per chunk type" (0760fa3d8f7f, in v5.12, and in 5.10's
    # later releases) until "percpu: rework memcg accounting" (faf65dde844a, in v5.14).
    "pcpu_nr_empty_pop_pages": (("int", "struct pcpu_chunk.isolated"), ("int [2]", "")),
    "file_systems": (
        ("struct hlist_head", "struct file_system_type.list"),
        ("struct file_system_type *", ""),
    ),
    # "driver core: class: remove module * from class_create()" (1aaba11da9aa, in v6.4); const since
    # v6.5. Between, it has no room for a class, which is said.
    "mem_class": (("struct class *", "struct class.owner"), ("struct class", "")),
    **dict.fromkeys(
        ("atomic_pool_dma", "atomic_pool_dma32", "atomic_pool_kernel"),
        (("struct dma_gen_pool", "struct dma_gen_pool"), ("struct gen_pool *", "")),
    ),
    # "stackdepot: make max number of pools boot-time configurable" (ed4f142f72a9, in v6.17)
    "stack_pools": (("void **", "stack_max_pools"), ("void *[room]", "")),
    # "lib/stackdepot: use list_head for stack record links" (4805180bc165, in v6.8)
    "stack_table": (("struct list_head *", "pools_num"), ("struct stack_record **", "")),
    # Of 6.12 and before: see ANONYMOUS.
    "tk_core": (("struct tk_data", "struct tk_data"),),
    # "zswap: replace RB tree with xarray" (796c2c23e14e, in v6.10)
    "zswap_trees": (
        ("struct zswap_tree *[room]", "struct zswap_tree"),
        ("struct xarray *[room]", ""),
    ),
    # A long since v6.13; by what came later, so that between it is right up to 16 TiB.
    "zswap_stored_pages": (
        ("atomic_long_t", "zswap_stored_incompressible_pages"),
        ("atomic_t", ""),
    ),
}

# Functions that BTF may leave out, what they return and take: those that cannot be traced, and of
# sections that the kernel discards, as memory hotplug's (5.10). drgn tells by vmemmap_populate()
# whether there is a vmemmap, and drgn.helpers.experimental.kmodify calls the others.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "vmemmap_populate": ("int", "unsigned long", "unsigned long", "int", "struct vmem_altmap *"),
    **dict.fromkeys(
        ("copy_from_kernel_nofault", "copy_to_kernel_nofault", "copy_to_user_nofault"),
        ("long", "void *", "const void *", "size_t"),
    ),
}

# Structs without a name where none of DIFFER is there, found by their members.
ANONYMOUS = {"tk_core": {"seq", "timekeeper"}}
