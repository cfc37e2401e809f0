// SPDX-License-Identifier: GPL-2.0-or-later
// Stalls, made and measured: holds the mmap_lock of a process, keeps readers waiting, and finds the longest times with
// interrupts off.
//
// /sys/kernel/debug/mmscope_hold_mm: write a pid, and its mmap_lock is held for writing, with the lock of each of its
// VMAs, until 0 is written.
//
// /sys/kernel/debug/mmscope_wait: whoever reads it sleeps where no signal ends it, until something is written.
//
// /sys/kernel/debug/mmscope_late: write a period in nanoseconds, and a timer of this CPU that is due that often notes how
// late it comes; write 0, and it stops. Read, since the start: nanoseconds, times, comm, and the instruction that it
// then interrupted, which is where interrupts were switched on again (0: in user mode); the latest of each, a line each. A
// stretch with interrupts off is as long as that, or longer by a period at most. What is shorter may not be met at all.
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/version.h>
#include <asm/irq_regs.h>

static DEFINE_MUTEX(lock);
static DECLARE_COMPLETION(held);
static DECLARE_COMPLETION(let_go);
static struct task_struct *holder;

static int hold(void *argument)
{
	struct mm_struct *mm = argument;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0) // a VMA has a lock of its own
	struct vm_area_struct *vma;
	VMA_ITERATOR(vmi, mm, 0);
#endif

	mmap_write_lock(mm);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	for_each_vma(vmi, vma)
		vma_start_write(vma);
#endif
	complete(&held);
	wait_for_completion(&let_go);
	mmap_write_unlock(mm);
	mmput(mm);
	return 0;
}

static int hold_mm(void *unused, u64 number)
{
	struct task_struct *task;
	struct mm_struct *mm;
	int error = 0;

	mutex_lock(&lock);
	if (!number == !holder) {
		error = -EBUSY;
	} else if (!number) {
		complete(&let_go);
		kthread_stop(holder);
		put_task_struct(holder);
		holder = NULL;
	} else {
		struct pid *pid = find_get_pid(number);

		task = get_pid_task(pid, PIDTYPE_PID);
		put_pid(pid);
		mm = task ? get_task_mm(task) : NULL;
		if (task)
			put_task_struct(task);
		if (mm) {
			holder = kthread_create(hold, mm, "mmscope_hold_mm");
			get_task_struct(holder);
			wake_up_process(holder);
			wait_for_completion(&held);
		} else {
			error = -ESRCH;
		}
	}
	mutex_unlock(&lock);
	return error;
}
DEFINE_DEBUGFS_ATTRIBUTE(hold_mm_operations, NULL, hold_mm, "%llu\n");

static DECLARE_COMPLETION(waited_for);

static int wait_show(struct seq_file *file, void *unused)
{
	wait_for_completion(&waited_for);
	return 0;
}

static int wait_open(struct inode *inode, struct file *file)
{
	return single_open(file, wait_show, NULL);
}

static ssize_t wait_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	complete(&waited_for);
	return length;
}

static const struct file_operations wait_operations = {
	.owner = THIS_MODULE,
	.open = wait_open,
	.read = seq_read,
	.write = wait_write,
	.llseek = seq_lseek,
	.release = single_release,
};

#define SHORTEST 4000  // nanoseconds; below it is what an interrupt takes to arrive

static struct place {
	unsigned long ip, times;
	s64 latest;
	char comm[TASK_COMM_LEN];
} places[1024];

static struct hrtimer timer;
static ktime_t period;

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	s64 late = ktime_to_ns(ktime_sub(ktime_get(), hrtimer_get_expires(timer)));
	struct pt_regs *regs = get_irq_regs();
	unsigned long ip = regs && !user_mode(regs) ? instruction_pointer(regs) : 0;

	for (int i = 0; i < ARRAY_SIZE(places) && late > SHORTEST; i++) {
		struct place *place = &places[i];

		if (!place->times) {
			place->ip = ip;
			memcpy(place->comm, current->comm, TASK_COMM_LEN);
		} else if (place->ip != ip || memcmp(place->comm, current->comm, TASK_COMM_LEN)) {
			continue;
		}
		place->times++;
		place->latest = max(place->latest, late);
		break;
	}
	hrtimer_forward_now(timer, period);
	return HRTIMER_RESTART;
}

static int late_set(void *unused, u64 number)
{
	mutex_lock(&lock);
	hrtimer_cancel(&timer);
	if (number) {
		memset(places, 0, sizeof(places));
		period = ns_to_ktime(number);
		hrtimer_start(&timer, period, HRTIMER_MODE_REL_PINNED_HARD);
	}
	mutex_unlock(&lock);
	return 0;
}

static int late_show(struct seq_file *file, void *unused)
{
	for (int i = 0; i < ARRAY_SIZE(places) && places[i].times; i++)
		seq_printf(file, "%lld %lu %s %pS\n", places[i].latest, places[i].times, places[i].comm,
			   (void *)places[i].ip);
	return 0;
}

static int late_open(struct inode *inode, struct file *file)
{
	return single_open(file, late_show, NULL);
}

static ssize_t late_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	u64 number;
	int error = kstrtou64_from_user(from, length, 0, &number);

	return error ? error : late_set(NULL, number) ?: length;
}

static const struct file_operations late_operations = {
	.owner = THIS_MODULE,
	.open = late_open,
	.read = seq_read,
	.write = late_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int __init mmscope_stalls_init(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&timer, tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
#else
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	timer.function = tick;
#endif
	debugfs_create_file("mmscope_hold_mm", 0200, NULL, NULL, &hold_mm_operations);
	debugfs_create_file("mmscope_wait", 0600, NULL, NULL, &wait_operations);
	debugfs_create_file("mmscope_late", 0600, NULL, NULL, &late_operations);
	return 0;
}

// No exit: a module that cannot be unloaded need not stop anything.
module_init(mmscope_stalls_init);
MODULE_DESCRIPTION("Stalls, for the tests of mmscope");
MODULE_LICENSE("GPL");
