// SPDX-License-Identifier: GPL-2.0-or-later
// A reference to a VMA that is never let go, as a reader would have it that forgot to.
//
// /sys/module/mmscope_reference/parameters/at: write an address, and the VMA that this process has there has a reference
// more (vm_refcnt, since 6.15).
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>

static int keep(const char *text, const struct kernel_param *param)
{
	struct vm_area_struct *vma;
	unsigned long address;
	int error = kstrtoul(text, 0, &address);

	if (error)
		return error;
	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, address);
	if (vma && vma->vm_start <= address)
		refcount_inc(&vma->vm_refcnt);
	else
		error = -ENOENT;
	mmap_read_unlock(current->mm);
	return error;
}

static const struct kernel_param_ops ops = { .set = keep };
module_param_cb(at, &ops, NULL, 0200);
MODULE_DESCRIPTION("A lost reference to a VMA, for the tests of mmscope");
MODULE_LICENSE("GPL");
