// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory that is gone: what a module leaked (stock/mmscope_leak.c), and what a balloon gave back to the host. Where the
// kernel has version 1 of memory cgroups, a tree of these: one with memory of each kind and limits, and one below it.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define BALLOON_PAGES (32 * MIB / PAGE)  // as machine.py asks for
#define V1 "/sys/fs/cgroup/memory"

static void balloon(void)
{
	for (int i = 0; i < 600; i++) {
		if (number_in("/proc/vmstat", "balloon_inflate") >= (long)BALLOON_PAGES)
			return;
		usleep(100000);
	}
	fail("the balloon has %ld pages", number_in("/proc/vmstat", "balloon_inflate"));
}

static void record(const char *folder)
{
	static const char *const files[] = {
		"usage_in_bytes", "max_usage_in_bytes", "limit_in_bytes", "memsw.usage_in_bytes", "failcnt", "kmem.usage_in_bytes",
		"kmem.tcp.usage_in_bytes", "stat",
	};
	char path[128];

	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), V1 "/%s/memory.%s", folder, files[i]);
		if (!access(path, R_OK))
			truth_add(path);
	}
}

static void in_shop(void)
{
	write_file(V1 "/shop/cgroup.procs", "0");
	touch(map_memory(12 * MIB, MADV_NOHUGEPAGE), 12 * MIB, PAGE);
	int fd = open("/tmp/shop", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	char *memory = fd < 0 || ftruncate(fd, 3 * MIB) ? MAP_FAILED
						       : mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("no shared memory: %s", strerror(errno));
	touch(memory, 3 * MIB, PAGE);
}

static void in_till(void)
{
	write_file(V1 "/shop/till/cgroup.procs", "0");
	touch(map_memory(5 * MIB, MADV_NOHUGEPAGE), 5 * MIB, PAGE);
}

static void cgroups_v1(void)
{
	if (mount("lab", "/sys/fs/cgroup", "tmpfs", 0, NULL) || mkdir(V1, 0755))
		fail("no place for cgroups: %s", strerror(errno));
	if (mount("lab", V1, "cgroup", 0, "memory")) {
		say("no version 1 of memory cgroups");
		umount("/sys/fs/cgroup");
		return;
	}
	try_to_write(V1 "/memory.use_hierarchy", "1");
	mkdir(V1 "/shop", 0755);
	mkdir(V1 "/shop/till", 0755);
	write_file(V1 "/shop/memory.limit_in_bytes", "64M");

	keep_child("leak-shop", in_shop);
	keep_child("leak-till", in_till);
	record("shop");
	record("shop/till");
}

void workload_leak(void)
{
	balloon();
	cgroups_v1();
	say("a module leaks, and a balloon has %lu pages", BALLOON_PAGES);
}
