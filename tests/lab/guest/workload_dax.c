// SPDX-License-Identifier: LGPL-2.1-or-later
// NVDIMMs without labels, each in a mode of its own, and a process that maps two of them. What the counters say around
// each step is noted.
//
// The machine: one of 2 GiB, as the first page of 1 GiB is lost to what the device keeps for itself; the others of
// 128 MiB, a section each.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LARGE (2UL << 30)

static const struct {
	const char *kind, *mode;
} small[] = {
	{ "dax", "ram" },
	{ "dax", "pmem" },
	{ "pfn", "ram" },
	{ "pfn", "pmem" },
};

static const char *const always_recorded[] = {
	"/sys/bus/nd/devices/namespace*/mode",
	"/sys/bus/nd/devices/namespace*/resource",
	"/sys/bus/nd/devices/namespace*/size",
	"/sys/bus/nd/devices/dax*/*",
	"/sys/bus/nd/devices/pfn*/*",
	"/sys/bus/dax/devices/*/*",
};

// The region of the large NVDIMM: firmware may list them in any order.
static int large;

static const char *namespace_size(int region)
{
	static char path[64];

	snprintf(path, sizeof(path), "/sys/bus/nd/devices/namespace%d.0/size", region);
	wait_for_file(path);
	return path;
}

static void map_dax(int region, size_t bytes, size_t step)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/dax%d.0", region);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char *memory = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("%s cannot be mapped: %s", path, strerror(errno));
	touch(memory, bytes, step);
}

// Pages of what the devices are aligned to: one of 1 GiB, two of 2 MiB.
static void map_devices(void)
{
	// Twice, so that this process maps more memory than the machine has.
	for (int i = 0; i < 2; i++)
		map_dax(large, 1UL << 30, 1UL << 30);
	map_dax(large == 0, 4UL << 20, 2UL << 20);
}

void workload_dax(void)
{
	char path[64];

	mkdir("/stages", 0755);
	sleep(1);  // what comes with boot comes to rest
	note_stage("start");
	for (large = 0; (unsigned long)number_of(namespace_size(large)) != LARGE; large++)
		;
	make_dax(large, "dax", "ram", "1073741824");
	for (size_t i = 0, region = 0; i < ARRAY_SIZE(small); i++, region++) {
		region += region == (size_t)large;
		make_dax(region, small[i].kind, small[i].mode, "2097152");
	}
	pid_t pid = keep_child("device dax", map_devices);
	// Not smaps, which takes the pages of 1 GiB out of the page tables (split_huge_pud()) before it reads them.
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	truth_add(path);
	note_stage("end");
	record_readable(always_recorded, ARRAY_SIZE(always_recorded));
}
