// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory that processes share, each kind of it: small pages, huge pages and parts of them, folios of 64 KiB, shmem, files,
// what is mlock()ed.
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE (1UL << 20)  // no huge page fits in, but folios of 64 KiB do where the kernel has them

static char *small, *large, *huge, *shared;

static char *shmem(size_t bytes, int advice)
{
	char *memory = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of shared memory: %s", strerror(errno));
	memory = (char *)(((unsigned long)memory + HUGE - 1) & -HUGE);
	if (madvise(memory, bytes, advice))
		fail("madvise of shared memory: %s", strerror(errno));
	return memory;
}

static void sleep_on(void)
{
}

// Its own copies of some pages; the first huge page is mapped by PTEs here, and by a PMD in the others.
static void writes(void)
{
	touch(small, 10 * PAGE, PAGE);
	touch(large, 3 * PAGE, PAGE);
	touch(huge, PAGE, PAGE);
	if (mlock(small, 20 * PAGE))
		fail("mlock: %s", strerror(errno));
	// Of shared memory the other pages stay mapped, in part: by PTEs, once they are touched again.
	munmap(shared + PAGE, PAGE);
	touch(shared + 2 * PAGE, 50 * PAGE, PAGE);
}

static void gives_up(void)
{
	munmap(small + 32 * PAGE, 16 * PAGE);
	munmap(huge + HUGE / 2, HUGE);  // half of the first and half of the second
}

static void parent(void)
{
	small = map_memory(64 * PAGE, MADV_NOHUGEPAGE);
	touch(small, 64 * PAGE, PAGE);
	large = map_memory(LARGE, MADV_HUGEPAGE);
	touch(large, LARGE, PAGE);
	huge = map_memory(3 * HUGE, MADV_HUGEPAGE);
	touch(huge, 3 * HUGE, HUGE);
	shared = shmem(2 * HUGE, MADV_HUGEPAGE);
	touch(shared, 2 * HUGE, PAGE);
	if (mlock(huge + 2 * HUGE, HUGE) || mlock(small + 60 * PAGE, 4 * PAGE))
		fail("mlock: %s", strerror(errno));
	keep_child("share-writes", writes);
	keep_child("share-gives-up", gives_up);
	keep_child("share-all", sleep_on);
}

void share_memory(void)
{
	try_to_write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise");
	try_to_write("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "madvise");  // since v6.8
	keep_child("share-parent", parent);
	try_to_write("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "never");
	try_to_write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "never");
}
