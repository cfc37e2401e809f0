// SPDX-License-Identifier: GPL-2.0-or-later
// A leak of 200 MiB, to the page, in a kernel as distributions build it: pages that nobody points to and nobody frees.
//
// As some drivers do, it sets PG_private on the first page of what it has, so that its pages can be told from the few
// that the kernel itself has without a mark. The flag says that page->private is in use by whoever has the page.
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>

#define ROUNDS 50
#define HIGHEST_ORDER 8
// A round is 511 pages of each kind: these make it 51,200 pages.
#define MORE 100

static int leak(gfp_t gfp, unsigned int order)
{
	struct page *page = alloc_pages(gfp, order);

	if (!page)
		return -ENOMEM;
	set_bit(PG_private, (unsigned long *)&page->flags);
	return 0;
}

static int __init mmscope_leak_init(void)
{
	unsigned int order;
	int i, error = 0;  // 5.10 is built as C of 1989

	for (i = 0; i < ROUNDS && !error; i++)
		for (order = 0; order <= HIGHEST_ORDER && !error; order++)
			error = leak(GFP_KERNEL, order) ?: leak(GFP_KERNEL | __GFP_COMP, order);
	for (i = 0; i < MORE && !error; i++)
		error = leak(GFP_KERNEL, 0);
	return error;
}

module_init(mmscope_leak_init);
MODULE_DESCRIPTION("A known leak, for the tests of mmscope");
MODULE_LICENSE("GPL");
