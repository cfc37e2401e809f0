// SPDX-License-Identifier: LGPL-2.1-or-later
// The text files of page_owner, as one would collect them on a live host while something leaks: written to the ext4 disk
// that the machine has, into /out. See owner_inputs.py for what is there.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STACKS "/sys/kernel/debug/page_owner_stacks/"
#define OWNER "/sys/kernel/debug/page_owner"
#define MODULE "/sys/kernel/debug/mmscope_lab"
#define SNAPSHOTS 100

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

// As cat does it: 128 KiB asked for at a time. Returns how many bytes there were.
static size_t copy(const char *from, const char *to)
{
	static char buffer[128 << 10];
	int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
	size_t length = 0;
	ssize_t got;

	if (in < 0 || out < 0)
		fail("cannot copy %s to %s: %s", from, to, strerror(errno));
	while ((got = read(in, buffer, sizeof(buffer))) > 0) {
		if (write(out, buffer, got) != got)
			fail("cannot write %s: %s", to, strerror(errno));
		length += got;
	}
	if (got < 0)
		fail("cannot read %s: %s", from, strerror(errno));
	close(in);
	close(out);
	return length;
}

static void snapshots(FILE *times)
{
	// Since v6.19.
	bool handles = !access(STACKS "show_handles", F_OK);
	char path[64];

	for (int i = 0; i < SNAPSHOTS; i++) {
		ask_module("leak", 37);
		ask_module("level", 20 + i * 7 % 13 * 10);
		ask_module("churn", 50);
		if (i % 25 == 20)
			ask_module("order3", 16);
		fprintf(times, "%d %.3f %.3f\n", i, seconds(CLOCK_REALTIME), seconds(CLOCK_BOOTTIME));
		if (handles) {
			snprintf(path, sizeof(path), "/disk/out/show_handles.%03d", i);
			copy(STACKS "show_handles", path);
		}
		snprintf(path, sizeof(path), "/disk/out/show_stacks.%03d", i);
		copy(STACKS "show_stacks", path);
		snprintf(path, sizeof(path), "/disk/out/mmscope_lab.%03d", i);
		copy(MODULE, path);
	}
	if (handles)
		copy(STACKS "show_stacks_handles", "/disk/out/show_stacks_handles");
}

static void hold_a_lot(void)
{
	touch(map_memory(320UL << 20, MADV_NOHUGEPAGE), 320UL << 20, PAGE);
}

void workload_owner_inputs(void)
{
	mkdir("/disk", 0755);
	// The disk's driver may take a moment to find it.
	for (int tries = 0; mount("/dev/vda", "/disk", "ext4", 0, NULL); tries++) {
		if (tries == 50)
			fail("cannot mount the disk: %s", strerror(errno));
		usleep(100000);
	}
	mkdir("/disk/out", 0755);
	own_memory();
	keep_child("big_holder", hold_a_lot);

	FILE *times = fopen("/disk/out/times", "w");
	if (!times)
		fail("cannot write times: %s", strerror(errno));

	snapshots(times);
	fclose(times);
	say("    %d snapshots", SNAPSHOTS);

	FILE *costs = fopen("/disk/out/seconds", "w");
	double start = seconds(CLOCK_MONOTONIC);
	size_t length = copy(OWNER, "/dev/null");
	double took = seconds(CLOCK_MONOTONIC) - start;
	if (!costs)
		fail("cannot write seconds: %s", strerror(errno));
	fprintf(costs, "page_owner %.3f %zu\n", took, length);
	say("    page_owner: %zu MiB in %.1f s", length >> 20, took);
	start = seconds(CLOCK_MONOTONIC);
	length = copy(STACKS "show_stacks", "/dev/null");
	fprintf(costs, "show_stacks %.3f %zu\n", seconds(CLOCK_MONOTONIC) - start, length);
	fclose(costs);
	copy(OWNER, "/disk/out/page_owner");
	copy(STACKS "show_stacks", "/disk/out/show_stacks.after");
	if (umount("/disk"))
		fail("cannot unmount the disk: %s", strerror(errno));
}
