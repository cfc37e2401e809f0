// SPDX-License-Identifier: LGPL-2.1-or-later
// What struct page costs, and what can be saved of it: huge pages taken into the pool before and after HVO is switched
// on, some of them mapped, reserved and surplus; huge pages in a hot-added memory block that hosts its own struct pages;
// persistent memory as device-dax, with its struct pages in RAM (the tails of a 2 MiB page share a page) and on the
// device itself, and as a raw pmem disk. What the counters say around each step is noted.
//
// The machine: a DIMM of one memory block on node 0, whose other zones are DMA and DMA32, so that huge pages asked of
// that node come from the DIMM first; three stretches of whole sections that memmap=…!… declares persistent.
#include "guest.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOL(node) "/sys/devices/system/node/node" #node "/hugepages/hugepages-2048kB/nr_hugepages"
#define GIGANTIC "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
#define HVO "/proc/sys/vm/hugetlb_optimize_vmemmap"

#define BEFORE_HVO 40  // huge pages of node 1 that are in the pool when HVO is switched on
#define POOL_PAGES 240
#define DIMM_PAGES 16
#define TOUCHED 10
#define SURPLUS 3

static const char *const always_recorded[] = {
	HVO,
	"/sys/module/memory_hotplug/parameters/memmap_on_memory",
	"/sys/devices/system/node/node*/hugepages/*/*",
	"/sys/devices/system/memory/block_size_bytes",
	"/sys/devices/system/memory/memory*/state",
	"/sys/bus/nd/devices/*/resource",
	"/sys/bus/nd/devices/*/size",
	"/sys/bus/nd/devices/*/mode",
	"/sys/bus/nd/devices/*/align",
	"/sys/bus/dax/devices/*/resource",
	"/sys/bus/dax/devices/*/align",
	"/sys/bus/dax/devices/*/size",
};

static void expect(const char *path, long wanted)
{
	char text[64];

	read_file(path, text, sizeof(text));
	if (strtol(text, NULL, 0) != wanted)
		fail("%s is %s, not %ld", path, text, wanted);
}

static void set_pool(const char *path, long pages)
{
	set_number(path, pages);
	expect(path, pages);
}

// A kernel that does not put hot-added memory online by itself (6.1) is told to; its device comes with the bus scan.
static void dimm_online(void)
{
	glob_t found;

	if (glob("/sys/devices/system/memory/memory*/state", 0, NULL, &found))
		fail("no memory blocks");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char state[16];
		read_file(found.gl_pathv[i], state, sizeof(state));
		if (!strcmp(state, "offline\n"))
			write_file(found.gl_pathv[i], "online");
	}
	globfree(&found);
}

static void hold_huge_pages(void)
{
	size_t rest = (POOL_PAGES + DIMM_PAGES - TOUCHED + SURPLUS) * HUGE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	char *touched = mmap(NULL, TOUCHED * HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (touched == MAP_FAILED)
		fail("mmap of huge pages: %s", strerror(errno));
	touch(touched, TOUCHED * HUGE, HUGE);
	// All others, and more than the pool has, are promised but not touched.
	if (mmap(NULL, rest, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
		fail("mmap of surplus huge pages: %s", strerror(errno));
}

void workload_vmemmap(void)
{
	mkdir("/stages", 0755);
	note_stage("start");
	dimm_online();
	set_pool(POOL(1), BEFORE_HVO);
	note_stage("hvo-off");
	if (!access(HVO, W_OK))
		write_file(HVO, "1");
	set_pool(POOL(1), POOL_PAGES);
	note_stage("hvo-on");
	set_pool(POOL(0), DIMM_PAGES);
	note_stage("dimm");
	set_number("/proc/sys/vm/nr_overcommit_hugepages", SURPLUS);
	keep_child("huge pages", hold_huge_pages);
	make_dax(1, "dax", "ram", "2097152");
	make_dax(2, "dax", "pmem", "2097152");
	note_stage("end");
	record_readable(always_recorded, ARRAY_SIZE(always_recorded));
}

// HVO from the start: pools of both sizes that are filled while the machine boots.
void workload_vmemmap_boot(void)
{
	note_stage("start");
	expect(GIGANTIC, 1);
	record_readable(always_recorded, ARRAY_SIZE(always_recorded));
}
