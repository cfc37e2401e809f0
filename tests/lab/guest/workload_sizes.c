// SPDX-License-Identifier: LGPL-2.1-or-later
// Huge pages of every size that the kernel has room for, in processes of their own: two of them in the pool, one of these
// mapped and touched. On arm64 a size may be that of several entries of a page table, which the contiguous bit binds.
#include "guest.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#define IN_POOL 2

static unsigned long size;

static void hold(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | __builtin_ctzl(size) << MAP_HUGE_SHIFT;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of a huge page of %lu bytes: %s", size, strerror(errno));
	touch(memory, size, size);
	say("sizes: %lu %#lx", size, (unsigned long)memory);
}

void workload_sizes(void)
{
	char path[128];
	glob_t found;

	if (glob("/sys/kernel/mm/hugepages/hugepages-*kB", 0, NULL, &found))
		fail("no huge pages");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		sscanf(strrchr(found.gl_pathv[i], '/'), "/hugepages-%lukB", &size);
		size <<= 10;
		snprintf(path, sizeof(path), "%s/nr_hugepages", found.gl_pathv[i]);
		set_number(path, IN_POOL);
		if (number_of(path) < IN_POOL) {  // as of 1 GiB
			set_number(path, 0);
			continue;
		}
		pid_t pid = keep_child("sizes", hold);
		snprintf(path, sizeof(path), "/proc/%d/status", pid);
		truth_add(path);
		snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
		truth_add(path);
	}
	globfree(&found);
	truth_add("/proc/1/status");
	truth_add("/proc/1/smaps");
}
