-- SPDX-License-Identifier: LGPL-2.1-or-later
-- Views over a bundle's tables, for findings and for `mmscope show`. Each begins with a comment line
-- that is its title. A view whose tables a bundle does not have is left out, but for those named
-- `Optional`, which are empty then.

-- Zones of which free blocks are missing
-- Their struct pages were not there, and a block of THP size and more may be among them: nothing can be
-- said of what is free in a zone by the others.
-- Optional: free_accounting (node bigint, zone varchar, nr_free_pages bigint, free_list_pages bigint, unaccepted_pages bigint, remainder_pages bigint)
create view zones_in_part as
select node, zone, nr_free_pages - free_list_pages - unaccepted_pages as pages
from free_accounting as a, target
where remainder_pages is null and nr_free_pages - free_list_pages - unaccepted_pages >= 1::bigint << thp_order
    and exists (select 1 from free_blocks as f where f.node = a.node and f.zone = a.zone)
order by node, zone;

-- External fragmentation by order
-- As unusable_free_index() and fragmentation_index() of mm/vmstat.c compute it, which the kernel shows
-- in /sys/kernel/debug/extfrag. The fragmentation index is -1 where a block of the order is free, so
-- that no request would fail; otherwise 0 means want of memory and 1 fragmentation.
create view fragmentation as
with
    blocks as (
        select node, zone, "order", sum(blocks)::bigint as blocks
        from free_blocks as f
        where node >= 0
            and not exists (select 1 from zones_in_part as p where p.node = f.node and p.zone = f.zone)
        group by node, zone, "order"
    ),
    wanted as (
        select
            w.node, w.zone, w."order",
            sum(b.blocks)::bigint as free_blocks,
            sum(b.blocks << b."order")::bigint as free_pages,
            coalesce(
                sum(b.blocks << greatest(b."order" - w."order", 0)) filter (b."order" >= w."order"), 0
            )::bigint as suitable_blocks
        from blocks as w join blocks as b on w.node = b.node and w.zone = b.zone
        group by w.node, w.zone, w."order"
    )
select
    node, zone, "order", free_pages, suitable_blocks,
    case when free_pages = 0 then 1000
         else (free_pages - (suitable_blocks << "order")) * 1000 // free_pages
    end / 1000.0 as unusable_index,
    case when free_blocks = 0 then 0
         when suitable_blocks > 0 then -1000
         else 1000 - (1000 + free_pages * 1000 // (1::bigint << "order")) // free_blocks
    end / 1000.0 as fragmentation_index
from wanted
order by node, zone, "order";

-- Free blocks of THP size, by whether THP may use them
-- A movable request falls back to Reclaimable and Unmovable lists and to CMA (fallbacks[],
-- mm/page_alloc.c), never to HighAtomic or Isolate.
create view thp_blocks as
select
    node, zone,
    coalesce(sum(blocks << greatest("order" - thp_order, 0)) filter
        (migratetype not in ('HighAtomic', 'Isolate')), 0)::bigint as usable_blocks,
    coalesce(sum(blocks << greatest("order" - thp_order, 0)) filter
        (migratetype = 'Movable'), 0)::bigint as movable_blocks,
    coalesce(sum(blocks << greatest("order" - thp_order, 0)) filter
        (migratetype = 'HighAtomic'), 0)::bigint as highatomic_blocks
from free_blocks as f, target
where "order" >= thp_order and migratetype is not null
    and not exists (select 1 from zones_in_part as p where p.node = f.node and p.zone = f.zone)
group by node, zone
order by node, zone;

-- Attempts that succeeded, since boot
create view success_since_boot as
select
    what, succeeded, failed, succeeded + failed as attempts,
    case when succeeded + failed > 0 then succeeded / (succeeded + failed) end as share
from (
    select
        'thp_fault' as what,
        sum(value) filter (name = 'thp_fault_alloc')::bigint as succeeded,
        sum(value) filter (name = 'thp_fault_fallback')::bigint as failed
    from vm_counters
    union all
    select
        'compaction',
        sum(value) filter (name = 'compact_success')::bigint,
        sum(value) filter (name = 'compact_fail')::bigint
    from vm_counters
)
where succeeded is not null and failed is not null;

-- Pages by owner frame: the first function of a stack that is not the allocator's
create view page_owner_by_owner as
select
    owner, module, sum(pages)::bigint as pages, sum(allocations)::bigint as allocations,
    count(*) as stacks
from page_owner_stacks
where pages > 0
group by owner, module
order by pages desc, owner, module;

-- Owner frames of anonymous memory, page cache and shmem
-- To hold most of memory is their purpose, and reclaim gets it back.
create view page_owner_reclaimable as
select distinct owner
from page_owner_stacks
where regexp_matches(owner,
    '^(do_anonymous_page|do_huge_pmd_anonymous_page|__do_huge_pmd_anonymous_page|'
    'wp_page_copy|do_cow_fault|do_swap_page|alloc_charge_folio|map_anon_folio_pmd.*|'
    'page_cache_ra_.*|ractl_alloc_folio|force_page_cache_ra|filemap_.*|__filemap_.*|'
    'read_pages|do_read_cache_folio|pagecache_get_page|grab_cache_page.*|'
    'shmem_.*|simple_write_begin|read_swap_cache_async|__read_swap_cache_async|'
    'swap_cache_alloc_folio|migrate_pages.*|collapse_.*|init_pages_in_zone|'
    'register_early_stack)$');

-- Pages by module of the owner frame
create view page_owner_by_module as
select
    module, sum(pages)::bigint as pages, sum(allocations)::bigint as allocations,
    count(*) as stacks
from page_owner_stacks
where pages > 0
group by module
order by pages desc, module;

-- Stacks that grew, most first
create view page_owner_growers as
select
    g.handle, s.owner, s.module, g.gained, g.pages_first, g.pages_last, g.pages_max, g.slope,
    g.steadiness, g.rises, g.listed, g.first_seen, s.stack, s.note
from page_owner_growth as g join page_owner_stacks as s using (handle)
where g.gained > 0
order by g.gained desc, g.handle;

-- The end of processes: shares of each recording, by who and part
create view profile_exits as
select
    p.profile, p.event, p.who, p.part, p.samples, p.share_of_all,
    sum(p.share_of_all) over (partition by p.profile, p.event) as exit_share
from profile_parts as p
where p.split = 'exit-path'
order by p.profile, p.samples desc, p.who, p.part;

-- Recordings, and whether they are of the boot that the rest of the bundle was read in
-- Within SAME_BOOT_SECONDS (reports/bundle/description.py). A text may say less of its kernel's release. What
-- is unknown stays so. Whatever joins profile_* with what memory holds asks for it here.
create view profile_boots as
select
    r.profile,
    case when not starts_with(t.release, r.release) then false
         else abs(epoch(try_cast(r.booted_at as timestamp)) - t.booted_at) <= 3
    end as same_boot
from profile_recordings as r cross join target as t;

-- Page table slots that an exit walks, beside what clearing them cost where it was sampled
create view profile_exit_slots as
with
    slots as (
        select comm, max(exit_pte_slots)::bigint as exit_pte_slots,
            max(pgtables_bytes)::bigint as pgtables_bytes
        from page_tables
        group by comm
    ),
    zapped as (
        select profile, any_value(same_boot) as same_boot, sum(samples) filter (part = 'zap')::bigint as zap_samples,
            sum(share_of_all) filter (part = 'zap') as zap_share
        from profile_parts left join profile_boots using (profile)
        where split = 'exit-path' and who = 'exit'
        group by profile
    )
select
    z.profile, s.comm, s.exit_pte_slots, s.pgtables_bytes, z.zap_samples, z.zap_share, z.same_boot
from zapped as z join slots as s on s.exit_pte_slots > 0
where z.zap_samples > 0 and z.same_boot is not false
order by z.profile, s.exit_pte_slots desc, s.comm;

-- Visits of reverse map walks that KSM pages would take, beside the walks that were sampled
create view profile_rmap as
with
    walked as (
        select profile, name, count, total_ns, max_ns from profile_durations
        where name like 'rmap_walk%'
    ),
    ksm as (select max(visits_per_pass)::bigint as visits from ksm_pages)
select
    w.profile, w.name, w.count, w.total_ns, w.max_ns, k.visits as ksm_visits_at_worst, b.same_boot
from walked as w
left join profile_boots as b on b.profile = w.profile
left join ksm as k on b.same_boot is not false
order by w.profile, w.name;

-- What a visit took in recorded walks of KSM pages, by the visits that memory says
-- Of walks that nothing ends before, which visit a page's trees twice; where a kernel goes by the page offset, or the trees
-- are small, most of a walk is something else.
create view ksm_visit_ns as
select
    w.profile, sum(w.walks)::bigint as walks, count(*) as pages,
    sum(w.total_ns) / sum(2 * w.walks * k.visits_per_pass) as ns,
    min(w.min_ns / (2 * k.visits_per_pass)) as low_ns,
    max(w.max_ns / (2 * k.visits_per_pass)) as high_ns
from profile_ksm_walks as w
join ksm_pages as k on k.stable_node = w.stable_node and k.visits_per_pass >= 1000
join (select max(used_here) as used_here from rmap_costs where what = 'KSM pages') as c
    on c.used_here = 'whole range'
left join profile_boots as b on b.profile = w.profile
where b.same_boot is not false
group by w.profile
order by w.profile;

-- Atomic allocations of more than a page that were recorded, beside the HighAtomic reserve
create view profile_atomic as
select
    a.profile, r.seconds, a.attempts, a.failures, a.reservations, a.from_reserve,
    case when b.same_boot is not false
         then (select sum(highatomic_reserved_pages) from zones)
    end::bigint as highatomic_reserved_pages,
    b.same_boot
from (
    select
        profile, sum(attempts)::bigint as attempts, sum(failures)::bigint as failures,
        sum(reservations)::bigint as reservations, sum(from_reserve)::bigint as from_reserve
    from profile_allocations
    group by profile
) as a
join profile_recordings as r using (profile)
left join profile_boots as b using (profile);

-- Memory in no counter, and of no owner
-- Of kernel memory, pages that neither they themselves nor their place explain, without as many as some
-- counter has more than pages with its mark were found: large kmalloc() of older kernels, page tables of
-- KVM and IOMMUs, pages of GPUs. Of text, what all counters leave of MemTotal (drgn/text/meminfo.py), and
-- buffers of sockets.
-- Pages whose struct page is not there are nothing that is known; nor are, then, those without a
-- reference, which may belong to a block or a compound page that begins in one of them.
-- Optional: ledger_checks (counter varchar, difference_pages bigint)
-- Optional: socket_buffers (bytes bigint)
create view memory_in_no_counter as
with
    counted as (
        select
            sum(pages) filter (owner = 'unexplained' and part <> 'struct page not readable')::bigint as pages,
            coalesce(sum(pages) filter (part in (
                'no reference, on no list', 'tail without a head', 'tail of a block that is no compound page'
            )), 0)::bigint as loose,
            count(*) filter (part = 'struct page not readable') > 0 as unread,
            sum(pages) filter (owner <> 'not the kernel''s')::bigint as total_pages
        from memory_ledger
    ),
    known as (
        select case when unread then pages - loose else pages end
                - coalesce((select sum(bytes::bigint) from socket_buffers), 0) // (select page_size from target) as pages, total_pages
        from counted
    ),
    marked as (
        select
            count(*) > 0 as here,
            coalesce(sum(greatest(-difference_pages, 0)) filter (counter in (
                'nr_slab_unreclaimable', 'nr_sec_page_table_pages', 'nr_page_table_pages', 'nr_gpu_active',
                'nr_gpu_reclaim', 'nr_kernel_misc_reclaimable', 'nr_balloon_pages', 'nr_zspages', 'nr_vmalloc',
                'pcpu_nr_pages'
            )), 0)::bigint as pages
        from ledger_checks
    )
select
    case when m.here then 'pages' else 'counters' end as way, greatest(c.pages - m.pages, 0) as pages,
    greatest(c.pages - m.pages, 0) * t.page_size as bytes, greatest(c.pages - m.pages, 0) / c.total_pages as share,
    least(m.pages, c.pages) as counter_pages, c.total_pages
from known as c, marked as m, target as t
where c.total_pages > 0 and c.pages is not null;

-- Who has most of a kind of memory
-- Of each kind the process that has most, and what all have together; anonymous and shared memory that it maps, with and
-- without what is swapped out, what is locked or pinned, page tables, and threads.
-- Optional: process_memory (pid bigint, comm varchar, anon_bytes bigint, shmem_bytes bigint, swap_bytes bigint, locked_bytes bigint, pinned_bytes bigint, pgtables_bytes bigint, threads bigint)
create view process_owners as
with
    held as (
        select
            comm || ' (pid ' || pid || ')' as owner,
            coalesce(anon_bytes::bigint, 0) + coalesce(shmem_bytes::bigint, 0) as mapped,
            coalesce(swap_bytes::bigint, 0) as swapped,
            locked_bytes::bigint + pinned_bytes::bigint as locked,
            pgtables_bytes::bigint as tables, threads::bigint as threads
        from process_memory
    ),
    parts as (
        select 'mapped' as kind, owner, mapped as size from held
        union all
        select 'mapped or swapped', owner, mapped + swapped from held
        union all
        select 'locked', owner, locked from held
        union all
        select 'page tables', owner, tables from held
        union all
        select 'threads', owner, threads from held
    )
select kind, arg_max(owner, size) as owner, max(size)::bigint as size, sum(size)::bigint as all_size
from parts
where size > 0
group by kind
order by kind;

-- Who held memory of a kind while the host was watched
-- Of each kind of memory who has most of it at the end, and who gained most; processes by what they map. A kernel stack
-- has 16 KiB or more (THREAD_SIZE). A kind may be dear to read, and be read for the last time (read_at) before the end.
-- Optional: watch_holders (kind varchar, name varchar, pid bigint, first_bytes bigint, last_bytes bigint, gone boolean, shmem_bytes bigint, pgtables_bytes bigint, locked_bytes bigint, threads bigint, reclaimable boolean, last_time double)
create view watch_owners as
with
    held as (
        select
            kind, first_bytes, last_bytes, last_time, shmem_bytes, pgtables_bytes, locked_bytes, threads,
            case when kind = 'process' then name || ' (pid ' || pid || ')'
                when kind = 'sockets' then 'sockets of ' || name || coalesce(' (pid ' || pid || ')', '') else kind || ' ' || name end as owner,
            coalesce(reclaimable::varchar, 'false') = 'true' as reclaimable
        from watch_holders
        where coalesce(gone::varchar, 'false') = 'false'
    ),
    parts as (
        select 'processes' as level, owner, last_bytes as size, last_bytes - first_bytes as gained, last_time from held where kind = 'process'
        union all
        select 'Shmem', owner, shmem_bytes, shmem_bytes, last_time from held where kind = 'process'
        union all
        select 'Shmem', owner, last_bytes, last_bytes - first_bytes, last_time from held where kind = 'shared file'
        union all
        select 'PageTables', owner, pgtables_bytes, pgtables_bytes, last_time from held where kind = 'process'
        union all
        select 'KernelStack', owner, threads * 16384, threads * 16384, last_time from held where kind = 'process'
        union all
        select 'Unevictable', owner, locked_bytes, locked_bytes, last_time from held where kind = 'process'
        union all
        select 'SUnreclaim', owner, last_bytes, last_bytes - first_bytes, last_time from held where kind = 'slab cache' and not reclaimable
        union all
        select 'VmallocUsed', owner, last_bytes, last_bytes - first_bytes, last_time from held where kind = 'vmalloc caller'
        union all
        select 'Memory in no counter', owner, last_bytes, last_bytes - first_bytes, last_time from held where kind = 'sockets'
    )
select
    level, arg_max(owner, size) as owner, max(size)::bigint as bytes, arg_max(owner, gained) as grower, max(gained)::bigint as gained,
    max(last_time::double) as read_at
from parts
group by level
order by level;

-- Pressure while the host was watched
-- Stuck: for half of ten seconds or more, in which nothing was done that tasks wait for so, nor a cgroup met a limit.
-- Optional: counter_rates (source varchar, name varchar, delta bigint)
-- Optional: watch_holders (kind varchar, high_events bigint, max_events bigint)
create view watch_psi as
select
    share, full_share, seconds,
    share >= 0.5 and seconds >= 10 and counted > 0 and moved = 0 and limited = 0 as stuck
from (
    select
        sum(stall_seconds) filter (kind = 'some') / sum(period_seconds) filter (kind = 'some') as share,
        sum(stall_seconds) filter (kind = 'full') / sum(period_seconds) filter (kind = 'full') as full_share,
        sum(period_seconds) filter (kind = 'some') as seconds
    from psi_series
    where stall_seconds is not null
), (
    select
        count(*) as counted,
        coalesce(sum(delta) filter (
            regexp_matches(name, '^(pgscan|pgsteal|allocstall|compact_|workingset_(refault|restore|activate)|pswp|zswp|zone_reclaim)')
        ), 0) as moved
    from counter_rates
    where source = 'vmstat'
), (
    -- Unknown where no cgroup was read.
    select sum(high_events + max_events) as limited from watch_holders where kind = 'cgroup'
);
