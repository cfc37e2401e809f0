// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": a process that opens a pipe after the other and fills each, and one whose
// pipes were filled before.
#include "parts.h"

#include <fcntl.h>
#include <sys/resource.h>

enum { SIZE = 1 << 20, STEADY = 64, MOST = 400 };

static void fill_pipe(void)
{
	static char bytes[1 << 16];
	int ends[2];

	must(!pipe2(ends, O_NONBLOCK), "no pipe");
	must(fcntl(ends[1], F_SETPIPE_SZ, SIZE) >= SIZE, "the pipe is small");
	while (write(ends[1], bytes, sizeof(bytes)) > 0)
		;
}

static void steady(void)
{
	for (int i = 0; i < STEADY; i++)
		fill_pipe();
	for (;;)
		pause();
}

static void grow(void)
{
	for (int i = 0; i < MOST; i++, usleep(200000))
		fill_pipe();
	for (;;)
		pause();
}

void __wrap_workload_sizes(void)
{
	struct rlimit files = { 4 * MOST, 4 * MOST };

	must(!setrlimit(RLIMIT_NOFILE, &files), "no more files");
	begin("g-steady", steady);
	begin("g-grows", grow);
	for (;;)
		pause();
}
