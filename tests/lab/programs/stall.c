// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": "rmap_stall", frozen when two of those who split VMAs wait for the lock of
// their anon_vma: one may have it before the guest is frozen. Who sleeps there is in vma_prepare() by its stack; with
// PREEMPT_RT other locks have it sleep as well.
#include "parts.h"

#include <dirent.h>
#include <stdlib.h>

#define MOST 16

static int pids[MOST], count;

static void find_splitters(void)
{
	DIR *processes = opendir("/proc");
	char path[280], comm[32];

	for (struct dirent *each; count < MOST && (each = readdir(processes));) {
		snprintf(path, sizeof(path), "/proc/%s/comm", each->d_name);
		if (atoi(each->d_name) && read_file(path, comm, sizeof(comm)) > 0 && !strcmp(comm, "splitter\n"))
			pids[count++] = atoi(each->d_name);
	}
	closedir(processes);
	must(count > 0, "nobody splits");
}

static int sleeps(int pid)
{
	char path[32], text[512];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return read_file(path, text, sizeof(text)) > 0 && strstr(text, ") D ");
}

static int two_wait(void)
{
	char path[32], text[4096];
	int waiting = 0;

	for (int i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "/proc/%d/stack", pids[i]);
		if (sleeps(pids[i]) && read_file(path, text, sizeof(text)) > 0 && strstr(text, "] vma_prepare+") && sleeps(pids[i]))
			waiting++;
	}
	return waiting >= 2;
}

void __wrap_workload_sizes(void)
{
	workload_rmap_stall();
	find_splitters();
	freeze_when = two_wait;
}
