// SPDX-License-Identifier: LGPL-2.1-or-later
// Persistent memory made fsdax or device-dax through sysfs, and what the counters say around it.
#include "guest.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void note_stage(const char *stage)
{
	static const char *const files[] = { "/proc/vmstat", "/proc/meminfo", "/proc/zoneinfo" };
	char name[128];

	write_file("/proc/sys/vm/stat_refresh", "1");
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(name, sizeof(name), "/stages/%s%s", stage, strrchr(files[i], '/'));
		truth_note(files[i], name);
	}
	say("%s: MemFree %ld kB, nr_memmap %ld, at boot %ld", stage, number_in("/proc/meminfo", "MemFree"),
	    number_in("/proc/vmstat", "nr_memmap_pages"), number_in("/proc/vmstat", "nr_memmap_boot_pages"));
}

void wait_for_file(const char *path)
{
	for (int trials = 0; access(path, F_OK); trials++) {
		if (trials == 3000)
			fail("there is no %s", path);
		usleep(10000);
	}
}

// The kernel makes a disk of each namespace first, while others go on. A new device of the region's becomes what was asked for when its driver is bound to it: nd_pfn_init()
// (drivers/nvdimm/pfn_devs.c) then writes the info block of the namespace.
void make_dax(int region, const char *kind, const char *mode, const char *align)
{
	char path[128], seed[32], text[64];
	const char *driver = strcmp(kind, "dax") ? "nd_pmem" : "dax_pmem";

	snprintf(path, sizeof(path), "/sys/bus/nd/devices/namespace%d.0/driver/unbind", region);
	snprintf(text, sizeof(text), "namespace%d.0", region);
	wait_for_file(path);
	write_file(path, text);
	snprintf(text, sizeof(text), "dax-%d-unbound", region);
	note_stage(text);
	snprintf(path, sizeof(path), "/sys/bus/nd/devices/region%d/%s_seed", region, kind);
	if (read_file(path, seed, sizeof(seed)) <= 0)
		fail("no %s: is the memory persistent?", path);
	seed[strcspn(seed, "\n")] = 0;
	snprintf(path, sizeof(path), "/sys/bus/nd/devices/%s/uuid", seed);
	snprintf(text, sizeof(text), "4d4d5343-4f50-4500-8000-00000000000%d", region);
	write_file(path, text);
	snprintf(path, sizeof(path), "/sys/bus/nd/devices/%s/mode", seed);
	write_file(path, mode);
	snprintf(path, sizeof(path), "/sys/bus/nd/devices/%s/align", seed);
	write_file(path, align);
	snprintf(path, sizeof(path), "/sys/bus/nd/devices/%s/namespace", seed);
	snprintf(text, sizeof(text), "namespace%d.0", region);
	write_file(path, text);
	snprintf(path, sizeof(path), "/sys/bus/nd/drivers/%s/bind", driver);
	write_file(path, seed);
	snprintf(text, sizeof(text), "dax-%d-%s", region, mode);
	note_stage(text);
}

void record_readable(const char *const patterns[], size_t count)
{
	char text[64];
	glob_t found;

	for (size_t i = 0; i < count; i++) {
		if (glob(patterns[i], 0, NULL, &found))
			continue;
		// A file that cannot be read now (an attribute of a device that was not set up) says nothing.
		for (size_t j = 0; j < found.gl_pathc; j++)
			if (read_file(found.gl_pathv[j], text, sizeof(text)) > 0)
				truth_add(found.gl_pathv[j]);
		globfree(&found);
	}
}
