// SPDX-License-Identifier: LGPL-2.1-or-later
// What the programs in place of a workload share: a call that must not fail, and tasks that are called after what they do
// and whose stacks are recorded.
#ifndef PARTS_H
#define PARTS_H

#include "../guest/guest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static inline void must(int good, const char *what)
{
	if (!good)
		fail("%s: %s", what, strerror(errno));
}

static inline void record(const char *comm, pid_t pid, pid_t thread)
{
	static const char *const files[] = { "stack", "wchan", "stat" };
	char path[96];

	note_number(comm, thread);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", pid, thread, files[i]);
		truth_add(path);
	}
}

// A process that does its work and is not waited for.
static inline pid_t begin(const char *comm, void (*work)(void))
{
	pid_t pid = fork();

	must(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_NAME, comm);
		work();
		_exit(1);
	}
	record(comm, pid, pid);
	usleep(700000);
	return pid;
}

#endif
