// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": memory cgroups whose memory lies in zram, and of kernels with zswap in
// that, which each cgroup's own counters have; one of them is removed.
#include "parts.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define CGROUPS "/sys/fs/cgroup/"
#define ZRAM "/dev/zram0"
#define ZRAM_BYTES (64 * MIB)
#define ZSWAP "/sys/module/zswap/parameters/"

static const char *cgroup;
static size_t size, of_each_page;

// Never the same twice, and nothing that compresses.
static void noise(char *memory, size_t bytes)
{
	static uint64_t state = 88172645463325252ULL;

	for (size_t at = 0; at + sizeof(state) <= bytes; at += sizeof(state)) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memcpy(memory + at, &state, sizeof(state));
	}
}

static void in_cgroup(const char *name, const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), CGROUPS "%s/%s", name, file);
	write_file(path, text);
}

static void paged_out(void)
{
	in_cgroup(cgroup, "cgroup.procs", "0");
	char *memory = map_memory(size, MADV_NOHUGEPAGE);
	memset(memory, 'x', size);
	for (size_t at = 0; at < size; at += PAGE)
		noise(memory + at, of_each_page);
	must(!madvise(memory, size, MADV_PAGEOUT), "MADV_PAGEOUT");
	in_cgroup("packed/after", "cgroup.procs", "0");  // what is swapped out stays charged
}

static void make_cgroup(const char *name)
{
	static const char *const files[] = { "memory.swap.current", "memory.zswap.current", "memory.stat" };
	char path[128];

	snprintf(path, sizeof(path), CGROUPS "%s", name);
	must(!mkdir(path, 0755), "no cgroup");
	for (size_t at = 0; at < ARRAY_SIZE(files); at++) {
		snprintf(path, sizeof(path), CGROUPS "%s/%s", name, files[at]);
		if (!access(path, R_OK))
			truth_add(path);
	}
}

static void swapped(const char *name, size_t bytes, size_t noisy)
{
	cgroup = name;
	size = bytes;
	of_each_page = noisy;
	keep_child(strchr(name, '/') + 1, paged_out);
}

// What mkswap(8) writes: union swap_header, include/linux/swap.h.
static void swap_to_zram(void)
{
	static char header[PAGE];
	uint32_t info[] = { 1, ZRAM_BYTES / PAGE - 1, 0 };  // version, last_page, nr_badpages

	set_number("/sys/block/zram0/disksize", ZRAM_BYTES);
	memcpy(header + 1024, info, sizeof(info));
	memcpy(header + PAGE - 10, "SWAPSPACE2", 10);
	int fd = open(ZRAM, O_RDWR | O_CLOEXEC);
	must(fd >= 0 && pwrite(fd, header, sizeof(header), 0) == sizeof(header) && !fsync(fd), "no swap area");
	close(fd);
	must(!swapon(ZRAM, 0), "swapon");
}

void __wrap_workload_sizes(void)
{
	must(!mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL), "no cgroup2");
	write_file(CGROUPS "cgroup.subtree_control", "+memory");
	make_cgroup("packed");
	in_cgroup("packed", "cgroup.subtree_control", "+memory");
	make_cgroup("packed/after");
	make_cgroup("packed/third");
	make_cgroup("packed/noise");
	make_cgroup("packed/same");
	must(!mkdir(CGROUPS "packed/removed", 0755), "no cgroup");
	swap_to_zram();
	swapped("packed/third", 6 * MIB, PAGE / 3 & ~7UL);
	swapped("packed/noise", 2 * MIB, PAGE);  // zram keeps such pages as they are
	swapped("packed/same", 4 * MIB, 0);      // and of these the word
	swapped("packed/removed", 3 * MIB, PAGE / 3 & ~7UL);
	must(!rmdir(CGROUPS "packed/removed"), "rmdir");
	try_to_write(ZSWAP "compressor", "lzo");
	if (try_to_write(ZSWAP "enabled", "Y")) {
		make_cgroup("packed/zswap");
		swapped("packed/zswap", 5 * MIB, PAGE / 3 & ~7UL);
	}
	truth_add("/sys/block/zram0/mm_stat");
	truth_add("/proc/swaps");
}
