// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes", that does not end: a cgroup above its memory.high whose memory is anonymous,
// where there is no swap, so that its tasks reclaim and free nothing; and one at its memory.max whose tasks read a file that is
// larger, all of whose pages can be reclaimed.
#include "parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define DISK "/tmp/disk"
#define GROUPS "/tmp/groups"
#define LARGE (64L << 20)
#define TASKS 6

static void take_memory(void)
{
	write_file(GROUPS "/thrash/cgroup.procs", "0");
	for (;;)
		touch(mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 64 * PAGE, PAGE);
}

static void read_file_again(void)
{
	static char taken[256 << 10];

	write_file(GROUPS "/works/cgroup.procs", "0");
	int fd = open(DISK "/large", O_RDONLY);
	for (off_t at = 0;; at = (at + sizeof(taken)) % LARGE)
		must(pread(fd, taken, sizeof(taken), at) > 0, "cannot read");
}

void __wrap_workload_sizes(void)
{
	mkdir(DISK, 0755);
	mkdir(GROUPS, 0755);
	must(!mount("/dev/vda", DISK, "ext4", 0, NULL), "no disk");
	int fd = open(DISK "/large", O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && !ftruncate(fd, LARGE), "cannot make a file");
	must(!mount("none", GROUPS, "cgroup2", 0, NULL), "no cgroups");
	write_file(GROUPS "/cgroup.subtree_control", "+memory");
	mkdir(GROUPS "/thrash", 0755);
	write_file(GROUPS "/thrash/memory.high", "25165824");
	mkdir(GROUPS "/works", 0755);
	write_file(GROUPS "/works/memory.max", "25165824");
	for (int i = 0; i < 2; i++)
		begin("reads", read_file_again);
	for (int i = 0; i < TASKS; i++)
		begin("thrashes", take_memory);
	for (;;)
		pause();
}
