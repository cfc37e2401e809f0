// SPDX-License-Identifier: GPL-2.0-or-later
// Truth by construction: allocations of known numbers and orders, each from a function of its own name, so that whatever
// reads page_owner, the stack depot or SLUB's tracks can be held against numbers that are known beforehand.
//
// /sys/kernel/debug/mmscope_lab: write "NAME NUMBER", one command a write; read what each function holds now, a line
// each: name, allocations, pages, objects, bytes per object. Nothing is held before the first command.
//
// What is exact: the pages of all but `vmalloc` and the slab functions are exactly those of
// the stacks that have the function's name in them, for these functions allocate pages and nothing else: the pages are
// strung together through themselves. `vmalloc` is exact among the stacks that also have vmalloc's own frames; its
// bookkeeping (kmalloc, page tables) may add stacks of other shapes. Of the slab functions the objects are exact; the
// pages of their slabs belong to whichever stack needed one.
#include <linux/debugfs.h>
#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

struct held {
	struct list_head list;
	unsigned long allocations, pages, objects, bytes;
};

// At the start of every object: no other memory is needed to find it again.
struct object {
	struct list_head list;
};

struct area {
	struct area *next;
};

#define CACHE_BYTES 200
#define KMALLOC_SMALL 72
#define KMALLOC_LARGE 1000
#define VMALLOC_PAGES 16
#define PERCPU_BYTES 1024
#define HIGHEST_ORDER 8

static struct kmem_cache *cache;
static struct area *areas;
static DEFINE_MUTEX(lock);

static bool keep(struct held *held, struct page *page, unsigned int order)
{
	if (!page)
		return false;
	list_add(&page->lru, &held->list);
	held->allocations++;
	held->pages += 1UL << order;
	return true;
}

static void give_back(struct held *held, unsigned int order)
{
	struct page *page = list_first_entry(&held->list, struct page, lru);

	list_del(&page->lru);
	__free_pages(page, order);
	held->allocations--;
	held->pages -= 1UL << order;
}

static noinline int mmscope_lab_hold_order0(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL, 0), 0))
			return -ENOMEM;
	return 0;
}

static noinline int mmscope_lab_hold_order3(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL | __GFP_COMP, 3), 3))
			return -ENOMEM;
	return 0;
}

// Asks for movable pages and never lets them move.
static noinline int mmscope_lab_hold_movable(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_HIGHUSER_MOVABLE, 0), 0))
			return -ENOMEM;
	return 0;
}

// NUMBER areas of 16 pages.
static noinline int mmscope_lab_hold_vmalloc(struct held *held, long number)
{
	while (number-- > 0) {
		struct area *area = vmalloc(VMALLOC_PAGES * PAGE_SIZE);

		if (!area)
			return -ENOMEM;
		area->next = areas;
		areas = area;
		held->allocations++;
		held->pages += VMALLOC_PAGES;
	}
	return 0;
}

// NUMBER times a block of each order from 0 to 8, 511 pages: compound pages, and blocks that are none.
static noinline int mmscope_lab_hold_compound(struct held *held, long number)
{
	while (number-- > 0)
		for (unsigned int order = 0; order <= HIGHEST_ORDER; order++)
			if (!keep(held, alloc_pages(GFP_KERNEL | __GFP_COMP, order), order))
				return -ENOMEM;
	return 0;
}

static noinline int mmscope_lab_hold_plain(struct held *held, long number)
{
	while (number-- > 0)
		for (unsigned int order = 0; order <= HIGHEST_ORDER; order++)
			if (!keep(held, alloc_pages(GFP_KERNEL, order), order))
				return -ENOMEM;
	return 0;
}

// NUMBER objects of 1024 bytes for each CPU, which nothing points to any more.
static noinline int mmscope_lab_hold_percpu(struct held *held, long number)
{
	held->bytes = PERCPU_BYTES;
	while (number-- > 0) {
		if (!__alloc_percpu(PERCPU_BYTES, 8))
			return -ENOMEM;
		held->objects++;
	}
	return 0;
}

// Unmovable pages for which no unmovable pageblock has room.
static noinline int mmscope_lab_hold_fallback(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL, 0), 0))
			return -ENOMEM;
	return 0;
}

// NUMBER more pages each time.
static noinline int mmscope_lab_leak(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL, 0), 0))
			return -ENOMEM;
	return 0;
}

// From now on NUMBER blocks of order 1, whatever there was before: what goes up and down.
static noinline int mmscope_lab_hold_level(struct held *held, long number)
{
	while (held->allocations > number)
		give_back(held, 1);
	while (held->allocations < number)
		if (!keep(held, alloc_pages(GFP_KERNEL | __GFP_COMP, 1), 1))
			return -ENOMEM;
	return 0;
}

// Allocates NUMBER pages and frees them again: tracked, and not held.
static noinline int mmscope_lab_churn(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL, 0), 0))
			return -ENOMEM;
	while (held->allocations)
		give_back(held, 0);
	return 0;
}

// NUMBER blocks of order 4, which no CPU keeps a list of, without waiting: below the low watermark each makes its
// pageblock HighAtomic, up to the zone's cap.
static noinline int mmscope_lab_hold_atomic(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, 4), 4))
			break;
	return 0;
}

// What must not be taken for who reserves: the same need, served from the CPU's own list (order 2); told not to use
// reserves, as page_frag_cache and skb data do; able to wait, though it is urgent.
static noinline int mmscope_lab_hold_atomic2(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, 2), 2))
			break;
	return 0;
}

static noinline int mmscope_lab_hold_nomemalloc(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_ATOMIC | __GFP_NOMEMALLOC | __GFP_NOWARN | __GFP_NORETRY | __GFP_COMP, 3), 3))
			break;
	return 0;
}

static noinline int mmscope_lab_hold_high(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_KERNEL | __GFP_HIGH | __GFP_NOWARN | __GFP_NORETRY | __GFP_COMP, 1), 1))
			break;
	return 0;
}

static noinline int mmscope_lab_hold_noio(struct held *held, long number)
{
	while (number-- > 0)
		if (!keep(held, alloc_pages(GFP_NOIO | __GFP_HIGH | __GFP_NOWARN | __GFP_NORETRY | __GFP_COMP, 1), 1))
			break;
	return 0;
}

// All blocks of 1 MiB, until NUMBER more have failed; then gives them back. Others may free some meanwhile.
static noinline int mmscope_lab_fail_atomic(struct held *held, long number)
{
	while (number > 0)
		if (!keep(held, alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, 8), 8))
			number--;
	while (held->allocations)
		give_back(held, 8);
	return 0;
}

// Allocates and frees NUMBER blocks of order 3, without waiting: what a recording of such allocations costs.
static noinline int mmscope_lab_churn_atomic(struct held *held, long number)
{
	while (number-- > 0) {
		struct page *page = alloc_pages(GFP_ATOMIC | __GFP_NOWARN | __GFP_COMP, 3);

		if (page)
			__free_pages(page, 3);
	}
	return 0;
}

// A page from each of 2^NUMBER stacks: those that go left or right at each of NUMBER calls.
static noinline int mmscope_lab_left(struct held *held, long depth, unsigned long turns);

static noinline int mmscope_lab_right(struct held *held, long depth, unsigned long turns)
{
	int error;

	if (!depth)
		return keep(held, alloc_pages(GFP_KERNEL, 0), 0) ? 0 : -ENOMEM;
	if (turns & 1)
		error = mmscope_lab_right(held, depth - 1, turns >> 1);
	else
		error = mmscope_lab_left(held, depth - 1, turns >> 1);
	return error;
}

static noinline int mmscope_lab_left(struct held *held, long depth, unsigned long turns)
{
	int error;

	if (!depth)
		return keep(held, alloc_pages(GFP_KERNEL, 0), 0) ? 0 : -ENOMEM;
	if (turns & 1)
		error = mmscope_lab_right(held, depth - 1, turns >> 1);
	else
		error = mmscope_lab_left(held, depth - 1, turns >> 1);
	return error;
}

static noinline int mmscope_lab_hold_tree(struct held *held, long depth)
{
	int error = 0;

	if (depth < 0 || depth > 10)
		return -EINVAL;
	for (unsigned long turns = 0; turns < 1UL << depth && !error; turns++)
		error = mmscope_lab_left(held, depth, turns);
	return error;
}

static void keep_object(struct held *held, struct object *object)
{
	list_add_tail(&object->list, &held->list);
	held->objects++;
}

// Frees every `nth` object that is held, from a function that the free tracks show.
static noinline void mmscope_lab_slab_free(struct held *held, int nth)
{
	struct object *object, *next;
	int number = 0;

	list_for_each_entry_safe(object, next, &held->list, list) {
		if (++number % nth)
			continue;
		list_del(&object->list);
		kfree(object);
		held->objects--;
	}
}

// NUMBER objects of a cache of our own; every fourth of what is held then goes again.
static noinline int mmscope_lab_slab_cache(struct held *held, long number)
{
	held->bytes = CACHE_BYTES;
	while (number-- > 0) {
		struct object *object = kmem_cache_alloc(cache, GFP_KERNEL);

		if (!object)
			return -ENOMEM;
		keep_object(held, object);
	}
	mmscope_lab_slab_free(held, 4);
	return 0;
}

// NUMBER objects of 72 bytes (kmalloc-96); every fifth of what is held then goes again.
static noinline int mmscope_lab_slab_small(struct held *held, long number)
{
	held->bytes = KMALLOC_SMALL;
	while (number-- > 0) {
		struct object *object = kmalloc(KMALLOC_SMALL, GFP_KERNEL);

		if (!object)
			return -ENOMEM;
		keep_object(held, object);
	}
	mmscope_lab_slab_free(held, 5);
	return 0;
}

// NUMBER objects of 1000 bytes (kmalloc-1k), all kept.
static noinline int mmscope_lab_slab_large(struct held *held, long number)
{
	held->bytes = KMALLOC_LARGE;
	while (number-- > 0) {
		struct object *object = kmalloc(KMALLOC_LARGE, GFP_KERNEL);

		if (!object)
			return -ENOMEM;
		keep_object(held, object);
	}
	return 0;
}

static struct {
	const char *name, *function;
	int (*run)(struct held *held, long number);
	unsigned int order;
	struct held held;
} jobs[] = {
	{ "order0", "mmscope_lab_hold_order0", mmscope_lab_hold_order0, 0 },
	{ "order3", "mmscope_lab_hold_order3", mmscope_lab_hold_order3, 3 },
	{ "movable", "mmscope_lab_hold_movable", mmscope_lab_hold_movable, 0 },
	{ "vmalloc", "mmscope_lab_hold_vmalloc", mmscope_lab_hold_vmalloc, 0 },
	{ "compound", "mmscope_lab_hold_compound", mmscope_lab_hold_compound },
	{ "plain", "mmscope_lab_hold_plain", mmscope_lab_hold_plain },
	{ "percpu", "mmscope_lab_hold_percpu", mmscope_lab_hold_percpu },
	{ "fallback", "mmscope_lab_hold_fallback", mmscope_lab_hold_fallback, 0 },
	{ "leak", "mmscope_lab_leak", mmscope_lab_leak, 0 },
	{ "level", "mmscope_lab_hold_level", mmscope_lab_hold_level, 1 },
	{ "churn", "mmscope_lab_churn", mmscope_lab_churn, 0 },
	{ "atomic", "mmscope_lab_hold_atomic", mmscope_lab_hold_atomic, 4 },
	{ "atomic2", "mmscope_lab_hold_atomic2", mmscope_lab_hold_atomic2, 2 },
	{ "nomemalloc", "mmscope_lab_hold_nomemalloc", mmscope_lab_hold_nomemalloc, 3 },
	{ "high", "mmscope_lab_hold_high", mmscope_lab_hold_high, 1 },
	{ "noio", "mmscope_lab_hold_noio", mmscope_lab_hold_noio, 1 },
	{ "fail_atomic", "mmscope_lab_fail_atomic", mmscope_lab_fail_atomic, 8 },
	{ "churn_atomic", "mmscope_lab_churn_atomic", mmscope_lab_churn_atomic, 3 },
	{ "tree", "mmscope_lab_hold_tree", mmscope_lab_hold_tree, 0 },
	{ "slab_cache", "mmscope_lab_slab_cache", mmscope_lab_slab_cache },
	{ "slab_small", "mmscope_lab_slab_small", mmscope_lab_slab_small },
	{ "slab_large", "mmscope_lab_slab_large", mmscope_lab_slab_large },
};

static ssize_t command(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	char line[64] = "", name[32];
	int error = -ENOENT;
	long number;

	if (length >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, length))
		return -EFAULT;
	if (sscanf(line, "%31s %ld", name, &number) != 2)
		return -EINVAL;
	mutex_lock(&lock);
	for (int i = 0; i < ARRAY_SIZE(jobs); i++)
		if (!strcmp(jobs[i].name, name))
			error = jobs[i].run(&jobs[i].held, number);
	mutex_unlock(&lock);
	return error ? error : length;
}

static int show(struct seq_file *file, void *unused)
{
	mutex_lock(&lock);
	for (int i = 0; i < ARRAY_SIZE(jobs); i++)
		seq_printf(file, "%s allocations %lu pages %lu objects %lu bytes %lu\n", jobs[i].function,
			   jobs[i].held.allocations, jobs[i].held.pages, jobs[i].held.objects, jobs[i].held.bytes);
	mutex_unlock(&lock);
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

static int __init mmscope_lab_init(void)
{
	for (int i = 0; i < ARRAY_SIZE(jobs); i++)
		INIT_LIST_HEAD(&jobs[i].held.list);
	// Like no other cache, or it would be merged with one.
	cache = kmem_cache_create("mmscope_lab", CACHE_BYTES, 0, SLAB_NO_MERGE, NULL);
	if (!cache)
		return -ENOMEM;
	debugfs_create_file("mmscope_lab", 0600, NULL, NULL, &operations);
	return 0;
}

// No exit: a module that cannot be unloaded need not free anything.
module_init(mmscope_lab_init);
MODULE_DESCRIPTION("Known allocations, for the tests of mmscope");
MODULE_LICENSE("GPL");
