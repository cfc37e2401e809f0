// SPDX-License-Identifier: GPL-2.0-or-later
// What a driver can do to memory, for the exam: leaks of each kind, pages that a shrinker gives back, memory in pieces, a
// reserve, and an mmap_lock that is held. For kernels since 5.10.
//
// /sys/kernel/debug/mmscope_exam: write "COMMAND NUMBER", one a write. Read: bytes that pages, vmalloc, percpu, slab and
// arc hold now, a line each.
#include <linux/debugfs.h>
#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

// Of 6.5. Before, a cache that kmemleak does not look at is merged with none.
#ifndef SLAB_NO_MERGE
#define SLAB_NO_MERGE SLAB_NOLEAKTRACE
#endif

#define OBJECT_BYTES 1000
#define VMALLOC_BYTES (256 << 10)
#define PERCPU_BYTES 8192
#define MIB (1L << 20)

static LIST_HEAD(leaked);
static LIST_HEAD(arc);
static DEFINE_SPINLOCK(arc_lock);
static DEFINE_MUTEX(lock);
static struct kmem_cache *cache;
static bool shrinks;
static unsigned long bytes_pages, bytes_vmalloc, bytes_percpu, bytes_slab, arc_pages;

static noinline int exam_leak_pages(long mib)
{
	for (long i = 0; i < mib * (MIB >> PAGE_SHIFT); i++) {
		struct page *page = alloc_pages(GFP_KERNEL, 0);

		if (!page)
			return -ENOMEM;
		list_add(&page->lru, &leaked);
		bytes_pages += PAGE_SIZE;
	}
	return 0;
}

static noinline int exam_leak_vmalloc(long mib)
{
	for (long i = 0; i < mib * MIB / VMALLOC_BYTES; i++) {
		if (!vmalloc(VMALLOC_BYTES))
			return -ENOMEM;
		bytes_vmalloc += VMALLOC_BYTES;
	}
	return 0;
}

static noinline int exam_leak_percpu(long mib)
{
	for (long i = 0; i < mib * MIB / (PERCPU_BYTES * num_possible_cpus()); i++) {
		if (!__alloc_percpu(PERCPU_BYTES, 8))
			return -ENOMEM;
		bytes_percpu += PERCPU_BYTES * num_possible_cpus();
	}
	return 0;
}

static noinline int exam_leak_slab(long mib)
{
	for (long i = 0; i < mib * MIB / OBJECT_BYTES; i++) {
		if (!kmem_cache_alloc(cache, GFP_KERNEL))
			return -ENOMEM;
		bytes_slab += OBJECT_BYTES;
	}
	return 0;
}

static unsigned long arc_count(struct shrinker *of, struct shrink_control *control)
{
	return READ_ONCE(arc_pages);
}

static unsigned long arc_scan(struct shrinker *of, struct shrink_control *control)
{
	unsigned long freed = 0;

	while (freed < control->nr_to_scan) {
		struct page *page;

		spin_lock(&arc_lock);
		page = list_first_entry_or_null(&arc, struct page, lru);
		if (page) {
			list_del(&page->lru);
			arc_pages--;
		}
		spin_unlock(&arc_lock);
		if (!page)
			break;
		__free_page(page);
		freed++;
	}
	return freed ?: SHRINK_STOP;
}

static int arc_register(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	struct shrinker *shrinker = shrinker_alloc(0, "exam-arc");

	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = arc_count;
	shrinker->scan_objects = arc_scan;
	shrinker_register(shrinker);
	return 0;
#else
	static struct shrinker shrinker = {
		.count_objects = arc_count,
		.scan_objects = arc_scan,
		.seeks = DEFAULT_SEEKS,
	};
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
	return register_shrinker(&shrinker, "exam-arc");
#else
	return register_shrinker(&shrinker);
#endif
#endif
}

// A cache of its own that gives back what is asked for.
static noinline int exam_fill_arc(long mib)
{
	int error = shrinks ? 0 : arc_register();

	if (error)
		return error;
	shrinks = true;
	for (long i = 0; i < mib * (MIB >> PAGE_SHIFT); i++) {
		struct page *page = alloc_pages(GFP_KERNEL, 0);

		if (!page)
			return -ENOMEM;
		spin_lock(&arc_lock);
		list_add(&page->lru, &arc);
		arc_pages++;
		spin_unlock(&arc_lock);
	}
	return 0;
}

// Takes so many MiB, and gives back all but one page of each 64: memory that is free and in pieces.
static noinline int exam_scatter(long mib)
{
	struct page *page, *next;
	LIST_HEAD(taken);

	for (long i = 0; i < mib * (MIB >> PAGE_SHIFT); i++) {
		page = alloc_pages(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY, 0);
		if (!page)
			break;
		list_add_tail(&page->lru, &taken);
	}
	list_for_each_entry_safe(page, next, &taken, lru) {
		if (page_to_pfn(page) % 64 == 1) {
			bytes_pages += PAGE_SIZE;
			continue;
		}
		list_del(&page->lru);
		__free_page(page);
	}
	list_splice(&taken, &leaked);
	return 0;
}

// Blocks of order 4 without waiting: below the low mark each makes its pageblock HighAtomic, up to the zone's cap.
static noinline int exam_reserve(long number)
{
	while (number-- > 0) {
		struct page *page = alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, 4);

		if (!page)
			break;
		list_add(&page->lru, &leaked);
		bytes_pages += PAGE_SIZE << 4;
	}
	return 0;
}

// Holds a process's mmap_lock for writing, in whoever asks, until that is killed.
static noinline int exam_hold_mmap_lock(long number)
{
	struct pid *pid = find_get_pid(number);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);
	struct mm_struct *mm = task ? get_task_mm(task) : NULL;

	if (!mm)
		return -ESRCH;
	mmap_write_lock(mm);
	while (!fatal_signal_pending(current))
		schedule_timeout_killable(HZ);
	mmap_write_unlock(mm);
	mmput(mm);
	return 0;
}

static ssize_t command(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	static const struct {
		const char *name;
		int (*run)(long number);
	} commands[] = {
		{ "pages", exam_leak_pages },	  { "vmalloc", exam_leak_vmalloc }, { "percpu", exam_leak_percpu },
		{ "slab", exam_leak_slab },	  { "arc", exam_fill_arc },	    { "scatter", exam_scatter },
		{ "reserve", exam_reserve },
	};
	char line[64] = "", name[32];
	int error = -ENOENT;
	long number;

	if (length >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, length))
		return -EFAULT;
	if (sscanf(line, "%31s %ld", name, &number) != 2)
		return -EINVAL;
	if (!strcmp(name, "hold"))
		return exam_hold_mmap_lock(number) ?: length;
	mutex_lock(&lock);
	for (int i = 0; i < ARRAY_SIZE(commands); i++)
		if (!strcmp(commands[i].name, name))
			error = commands[i].run(number);
	mutex_unlock(&lock);
	return error ?: length;
}

static int show(struct seq_file *file, void *unused)
{
	seq_printf(file, "pages %lu\nvmalloc %lu\npercpu %lu\nslab %lu\narc %lu\n", bytes_pages, bytes_vmalloc,
		   bytes_percpu, bytes_slab, arc_pages << PAGE_SHIFT);
	return 0;
}

static int open(struct inode *inode, struct file *file)
{
	return single_open(file, show, NULL);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = open,
	.read = seq_read,
	.write = command,
	.llseek = seq_lseek,
	.release = single_release,
};

static int __init mmscope_exam_init(void)
{
	// Like no other cache, or it would be merged with one.
	cache = kmem_cache_create("exam_request", OBJECT_BYTES, 0, SLAB_NO_MERGE, NULL);
	if (!cache)
		return -ENOMEM;
	debugfs_create_file("mmscope_exam", 0600, NULL, NULL, &operations);
	return 0;
}

// No exit: a module that cannot be unloaded need not free anything.
module_init(mmscope_exam_init);
MODULE_DESCRIPTION("Known trouble, for the exam of mmscope");
MODULE_LICENSE("GPL");
