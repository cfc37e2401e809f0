// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes", that does not end: threads that sleep, as many as lab.sleepers says, and
// tasks that queue for the lock of a pipe, as many as lab.waiters says. Who has it writes what nobody fills in.
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OF_A_PROCESS 500
#define STACK (16UL << 10)

static int ends[2];

static int asked(const char *name)
{
	char line[4096];

	must(read_file("/proc/cmdline", line, sizeof(line)) > 0, "no command line");
	const char *found = strstr(line, name);
	must(found != NULL, name);
	return atoi(found + strlen(name));
}

static void *sleep_on(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void sleep_all(int threads)
{
	pthread_attr_t small;
	pthread_t any;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK);
	for (int thread = 1; thread < threads; thread++)
		must(!pthread_create(&any, &small, sleep_on, NULL), "no thread");
	sleep_on(NULL);
}

static void write_what_nobody_fills_in(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	must(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "no userfaultfd");
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register all = {
		.range = { (unsigned long)page, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	must(!ioctl(fd, UFFDIO_REGISTER, &all), "no page");
	must(write(ends[1], page, PAGE) < 0, "it was filled in");
}

static void queue(void)
{
	must(write(ends[1], "", 1) < 0, "nobody has the lock");
}

void __wrap_workload_sizes(void)
{
	int sleepers = asked("lab.sleepers="), waiters = asked("lab.waiters=");

	must(!pipe(ends), "no pipe");
	begin("w-holds", write_what_nobody_fills_in);
	for (int i = 0; i < waiters; i++)
		if (fork() == 0) {
			prctl(PR_SET_NAME, "w-waits");
			queue();
		}
	for (; sleepers > 0; sleepers -= OF_A_PROCESS)
		if (fork() == 0)
			sleep_all(sleepers < OF_A_PROCESS ? sleepers : OF_A_PROCESS);
	for (;;)
		pause();
}
