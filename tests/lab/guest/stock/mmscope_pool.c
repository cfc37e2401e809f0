// SPDX-License-Identifier: GPL-2.0-or-later
// Two page pools of the network stack, of single pages and of compound ones, as a driver's receive queue has them: with
// pages in use, in the pool's cache and in its ring. They are nobody's at the end. Says what the pools count.
#include <linux/bottom_half.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/poison.h>
#ifdef PP_SIGNATURE
#if __has_include(<net/page_pool/helpers.h>)
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

#define GIVEN_BACK 10

static int pool_of(unsigned int order, unsigned int count)
{
	struct page_pool_params params = { .order = order, .pool_size = 256, .nid = NUMA_NO_NODE };
	struct page_pool *pool = page_pool_create(&params);
	struct page *page;
	unsigned int i;

	if (IS_ERR(pool))
		return PTR_ERR(pool);
	local_bh_disable();
	for (i = 0; i < count; i++) {
		page = page_pool_alloc_pages(pool, GFP_ATOMIC);
		if (page && i >= count - GIVEN_BACK)
			page_pool_put_full_page(pool, page, false);
	}
	local_bh_enable();
	pr_info("mmscope_pool: %u of order %u\n",
		pool->pages_state_hold_cnt - (u32)atomic_read(&pool->pages_state_release_cnt), order);
	return 0;
}
#else
// Before "mm: add a signature in struct page" (c07aea3ef4d4, in v5.14) their pages have no mark.
static int pool_of(unsigned int order, unsigned int count)
{
	return 0;
}
#endif

static int __init mmscope_pool_init(void)
{
	return pool_of(0, 1000) ?: pool_of(2, 50);
}

module_init(mmscope_pool_init);
MODULE_DESCRIPTION("Page pools, for the tests of mmscope");
MODULE_LICENSE("GPL");
