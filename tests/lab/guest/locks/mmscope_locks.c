// SPDX-License-Identifier: GPL-2.0-or-later
// Locks of memory management that are held for good.
//
// /proc/mmscope_locks: write "WHAT [ADDRESS]", and the task takes it and sleeps with it, where no signal ends that. WHAT is
// mutex (the module's own), oom_lock, cgroup_mutex; or, of what the task has mapped at the address: folio (its lock), file_read,
// file_write (i_mmap_rwsem), anon_read, anon_write (the anon_vma's lock). "reclaim" reclaims for a block of order 3 below 4 GiB and
// does not come to an end; nor does who then reclaims from the task's cgroup and is called *-reclaims.
//
// "spin" takes the lock of a zone, of an LRU list and of a node of a slab cache, has CPUs 1 to 3 spin for one each, and
// freezes the machine (pvpanic). With PREEMPT_RT these are rt_mutexes, for which a CPU spins while their owner runs.
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <asm/io.h>

static DEFINE_MUTEX(mmscope_mutex);

// What no module is given.
static void *address_of(const char *name)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	unsigned long (*lookup)(const char *);

	if (register_kprobe(&probe))
		return NULL;
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	return (void *)lookup(name);
}

static noinline int sleep_with_it(void)
{
	for (;;)
		schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
	return 0;
}

static noinline int hold_mutex(struct mutex *mutex)
{
	if (!mutex)
		return -ENOENT;
	mutex_lock(mutex);
	return sleep_with_it();
}

static noinline int hold_rwsem(struct rw_semaphore *lock, bool write)
{
	if (write)
		down_write(lock);
	else
		down_read(lock);
	return sleep_with_it();
}

static noinline int hold_folio(unsigned long address)
{
	struct page *page;

	if (get_user_pages_fast(address, 1, 0, &page) != 1)
		return -EFAULT;
	lock_page(page);
	return sleep_with_it();
}

// The lock of node 0 of a slab cache, struct kmem_cache_node: behind it stand a number and a list of slabs.
static spinlock_t *node_lock(unsigned long *cache)
{
	for (size_t i = 0; i < 64; i++) {
		unsigned long at = cache[i] + ALIGN(sizeof(spinlock_t), 8) + 8, next, back;

		if (!(cache[i] & 63) && !copy_from_kernel_nofault(&next, (void *)at, 8) && next &&
		    !copy_from_kernel_nofault(&back, (void *)(next + 8), 8) && back == at)
			return (void *)cache[i];
	}
	return NULL;
}

static void nothing(void *object)
{
}

static spinlock_t *spins[3];
static int near[3];

static int spin(void *number)
{
	spinlock_t *lock = spins[(long)number];

	WRITE_ONCE(near[(long)number], 1);
	spin_lock(lock);
	spin_unlock(lock);
	return 0;
}

// pvpanic (docs/specs/pvpanic of QEMU): on x86 a port, elsewhere the first byte of a PCI device's memory.
static void __iomem *panicked(void)
{
	struct pci_dev *device = IS_ENABLED(CONFIG_X86) ? NULL : pci_get_device(0x1b36, 0x0011, NULL);

	return device ? pci_iomap(device, 0, 0) : NULL;
}

static void say_panicked(void __iomem *register_)
{
#ifdef CONFIG_X86
	outb(1, 0x505);
#else
	iowrite8(1, register_);
#endif
}

static noinline int freeze(void)
{
	void __iomem *at = panicked();
	struct zone *zones = NODE_DATA(1)->node_zones;
	struct mem_cgroup **root = address_of("root_mem_cgroup");
	struct kmem_cache *cache = kmem_cache_create("mmscope_locks", 200, 0, 0, nothing);
	struct task_struct *tasks[3];

	if (!root || !cache || !kmem_cache_alloc(cache, GFP_KERNEL))
		return -ENOENT;
	if (!IS_ENABLED(CONFIG_X86) && !at)
		return -ENODEV;
	spins[0] = &zones[populated_zone(&zones[ZONE_NORMAL]) ? ZONE_NORMAL : ZONE_DMA].lock;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
	spins[1] = &(*root)->nodeinfo[1]->lruvec.lru_lock;
#else
	spins[1] = &NODE_DATA(1)->lru_lock;
#endif
	spins[2] = node_lock((void *)cache);
	if (!spins[2])
		return -ENXIO;
	for (long i = 0; i < 3; i++) {
		tasks[i] = kthread_create(spin, (void *)i, "spins%ld", i);
		kthread_bind(tasks[i], i + 1);
	}
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		local_irq_disable();
	for (int i = 0; i < 3; i++)
		spin_lock(spins[i]);
	for (int i = 0; i < 3; i++)
		wake_up_process(tasks[i]);
	for (int i = 0; i < 3; i++)
		while (!READ_ONCE(near[i]))
			cpu_relax();
	mdelay(300);
#ifdef CONFIG_ARM64
	// The lab reads what the program wrote as this CPU may, which PAN forbids.
	uaccess_enable_privileged();
#endif
	for (;;)
		say_panicked(at);
	for (int i = 0; i < 3; i++)
		spin_unlock(spins[i]);
	return 0;
}

static unsigned long count(struct shrinker *shrinker, struct shrink_control *sc)
{
	return strstr(current->comm, "-reclaims") ? 1 << 20 : 0;
}

static unsigned long scan(struct shrinker *shrinker, struct shrink_control *sc)
{
	sleep_with_it();
	return SHRINK_STOP;
}

static struct shrinker *add_shrinker(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	struct shrinker *shrinker = shrinker_alloc(SHRINKER_MEMCG_AWARE, "mmscope");

	if (!shrinker)
		return NULL;
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker_register(shrinker);
	return shrinker;
#else
	static struct shrinker shrinker = {
		.count_objects = count, .scan_objects = scan, .seeks = DEFAULT_SEEKS, .flags = SHRINKER_MEMCG_AWARE,
	};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
	return register_shrinker(&shrinker, "mmscope") ? NULL : &shrinker;
#else
	return register_shrinker(&shrinker) ? NULL : &shrinker;
#endif
#endif
}

static noinline int reclaim(void)
{
	// Its name since 6.1, and before.
	void (*set_bit)(struct mem_cgroup *, int, int) =
		address_of("set_shrinker_bit") ?: address_of("memcg_set_shrinker_bit");
	unsigned long (*free_pages)(struct zonelist *, int, gfp_t, nodemask_t *) = address_of("try_to_free_pages");
	struct shrinker *shrinker = add_shrinker();
	unsigned int flags;

	if (!set_bit || !free_pages || !shrinker)
		return -ENOENT;
	for (int node = 0; node < 2; node++)
		set_bit(mem_cgroup_from_task(current), node, shrinker->id);
	flags = memalloc_noreclaim_save();
	free_pages(node_zonelist(0, GFP_KERNEL), 3, GFP_KERNEL | GFP_DMA32, NULL);
	memalloc_noreclaim_restore(flags);
	return 0;
}

static int of_mapped(const char *what, unsigned long address)
{
	struct rw_semaphore *lock = NULL;
	struct vm_area_struct *vma;

	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, address);
	if (vma && vma->vm_start <= address) {
		if (!strncmp(what, "file", 4) && vma->vm_file)
			lock = &vma->vm_file->f_mapping->i_mmap_rwsem;
		else if (!strncmp(what, "anon", 4) && vma->anon_vma)
			lock = &vma->anon_vma->root->rwsem;
	}
	mmap_read_unlock(current->mm);
	return lock ? hold_rwsem(lock, strstr(what, "write") != NULL) : -ENOENT;
}

static ssize_t act(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	char text[64] = "", what[16] = "";
	unsigned long address = 0;

	if (length >= sizeof(text) || copy_from_user(text, from, length) || sscanf(text, "%15s %lx", what, &address) < 1)
		return -EINVAL;
	if (!strcmp(what, "spin"))
		return freeze();
	if (!strcmp(what, "reclaim"))
		return reclaim();
	if (!strcmp(what, "mutex"))
		return hold_mutex(&mmscope_mutex);
	if (!address)
		return hold_mutex(address_of(what));
	return strcmp(what, "folio") ? of_mapped(what, address) : hold_folio(address);
}

static const struct proc_ops operations = { .proc_write = act };

static int __init mmscope_locks_init(void)
{
	return proc_create("mmscope_locks", 0200, NULL, &operations) ? 0 : -ENOMEM;
}

// No exit: what it holds is held for good.
module_init(mmscope_locks_init);
MODULE_DESCRIPTION("Held locks, for the tests of mmscope");
MODULE_LICENSE("GPL");
