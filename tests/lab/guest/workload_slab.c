// SPDX-License-Identifier: LGPL-2.1-or-later
// Slab objects in known numbers, for a kernel that tracks who allocated them (slab_debug=U): KEPT eventfds, each of which
// is one kmalloc'ed eventfd_ctx, among others that were closed again, so that freed objects lie between live ones and
// still bear their tracks.
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define KEPT 700

static void hold_eventfds(void)
{
	struct rlimit files = { 4096, 4096 };
	int fds[2 * KEPT];

	setrlimit(RLIMIT_NOFILE, &files);
	for (int i = 0; i < 2 * KEPT; i++)
		if ((fds[i] = eventfd(0, EFD_CLOEXEC)) < 0)
			fail("eventfd: %s", strerror(errno));
	for (int i = 0; i < 2 * KEPT; i += 2)
		close(fds[i]);
}

void workload_slab(void)
{
	keep_child("<img src=x>;\"", hold_eventfds);
	sleep(1);  // the files are freed by RCU
	say("    %d eventfds are kept", KEPT);
}
