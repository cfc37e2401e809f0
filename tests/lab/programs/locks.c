// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": locks that a module (guest/locks) holds, each for a task that is called
// *-holds, and tasks that wait for them; a victim of the OOM killer that waits for one; tasks that reclaim; and, as the machine is
// frozen, CPUs that spin for locks that CPU 0 has.
#include "parts.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCKS "/proc/mmscope_locks"
#define GROUPS "/tmp/groups"
#define MIB (1UL << 20)

static char data[PAGE];

static void hold(const char *what, const void *address)
{
	char text[64];

	snprintf(text, sizeof(text), address ? "%s %lx" : "%s", what, (unsigned long)address);
	write_file(LOCKS, text);
}

static void hold_mutex(void)
{
	hold("mutex", NULL);
}

static void hold_oom_lock(void)
{
	hold("oom_lock", NULL);
}

static void hold_cgroup_mutex(void)
{
	hold("cgroup_mutex", NULL);
}

static char *memory(size_t bytes)
{
	char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(area != MAP_FAILED, "cannot map");
	touch(area, bytes, PAGE);
	return area;
}

static void make_group(const char *name, const char *most)
{
	char path[64];

	snprintf(path, sizeof(path), GROUPS "/%s", name);
	must(!mkdir(path, 0755), "no cgroup");
	snprintf(path, sizeof(path), GROUPS "/%s/memory.max", name);
	write_file(path, most);
}

static void be_killed(void)
{
	write_file(GROUPS "/dies/cgroup.procs", "0");
	memory(24 * MIB);
	hold_mutex();
}

static void have_it_killed(void)
{
	write_file(GROUPS "/dies/cgroup.procs", "0");
	memory(16 * MIB);
	for (;;)
		pause();
}

static void be_over(void)
{
	write_file(GROUPS "/full/cgroup.procs", "0");
	memory(16 * MIB);
}

static void make_cgroup(void)
{
	mkdir(GROUPS "/more", 0755);
}

// Files, each for one lock.
static const char *file;

static int open_it(void)
{
	int fd = open(file, O_RDWR | O_CREAT, 0644);

	must(fd >= 0 && pwrite(fd, data, PAGE, 0) == (ssize_t)PAGE, "no file");
	return fd;
}

static char *map_it(void)
{
	char *area = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, open_it(), 0);

	must(area != MAP_FAILED, "cannot map a file");
	touch(area, PAGE, PAGE);
	return area;
}

static void hold_folio(void)
{
	hold("folio", map_it());
}

static void write_it(void)
{
	open_it();
}

static void hold_file_to_read(void)
{
	hold("file_read", map_it());
}

static void hold_file_to_write(void)
{
	hold("file_write", map_it());
}

static void map_too(void)
{
	map_it();
}

// Memory from before a fork has an anon_vma of the same root. Who forks waits for it as well, so all are there first.
static char *read_area, *write_area;
static sigset_t turn;

static void await_turn(void)
{
	int number;

	must(!sigwait(&turn, &number), "no turn");
}

static void hold_anon_to_read(void)
{
	await_turn();
	hold("anon_read", read_area);
}

static void hold_anon_to_write(void)
{
	await_turn();
	hold("anon_write", write_area);
}

static void unmap_read(void)
{
	await_turn();
	munmap(read_area, PAGE);
}

static void unmap_written(void)
{
	await_turn();
	munmap(write_area, PAGE);
}

static void reclaim(void)
{
	write_file(GROUPS "/shrunk/cgroup.procs", "0");
	hold("reclaim", NULL);
}

static void reclaim_from_group(void)
{
	write_file(GROUPS "/shrunk/memory.reclaim", "1M");
}

// However busy the machine is: the next comes when a file has these words.
static void until(const char *path, const char *words)
{
	char text[512];

	for (int i = 0; i < 1200; i++) {
		int fd = open(path, O_RDONLY);
		ssize_t length = read(fd, text, sizeof(text) - 1);

		close(fd);
		must(length > 0, path);
		text[length] = 0;
		if (strstr(text, words))
			return;
		usleep(100000);
	}
	must(0, path);
}

static void sleeps(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	until(path, ") D ");
}

static void goes_on(pid_t pid)
{
	kill(pid, SIGUSR1);
	sleeps(pid);
}

static int spin(void)
{
	run_on_cpu(0);
	write_file(LOCKS, "spin");
	return 0;
}

void __wrap_workload_sizes(void)
{
	pid_t pids[4];

	sigemptyset(&turn);
	sigaddset(&turn, SIGUSR1);
	sigprocmask(SIG_BLOCK, &turn, NULL);
	mkdir(GROUPS, 0755);
	must(!mount("none", GROUPS, "cgroup2", 0, NULL), "no cgroups");
	write_file(GROUPS "/cgroup.subtree_control", "+memory");
	make_group("dies", "33554432");
	make_group("full", "8388608");
	make_group("shrunk", "max");
	// Before one holds cgroup_mutex, which who changes its cgroup takes.
	sleeps(begin("a-reclaims", reclaim));
	if (!access(GROUPS "/shrunk/memory.reclaim", F_OK))
		sleeps(begin("g-reclaims", reclaim_from_group));
	sleeps(begin("m-holds", hold_mutex));
	sleeps(begin("m-waits", hold_mutex));
	sleeps(begin("v-dies", be_killed));
	begin("v-eats", have_it_killed);
	until(GROUPS "/dies/memory.events", "oom_kill 1");
	sleeps(begin("o-holds", hold_oom_lock));
	sleeps(begin("o-waits", be_over));
	sleeps(begin("c-holds", hold_cgroup_mutex));
	sleeps(begin("c-waits", make_cgroup));
	file = "/tmp/locked";
	sleeps(begin("l-holds", hold_folio));
	sleeps(begin("l-waits", write_it));
	file = "/tmp/read";
	sleeps(begin("r-holds", hold_file_to_read));
	sleeps(begin("r-waits", map_too));
	file = "/tmp/written";
	sleeps(begin("w-holds", hold_file_to_write));
	sleeps(begin("w-waits", map_too));
	// Apart, or they were one VMA.
	read_area = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	write_area = read_area + 2 * PAGE;
	must(read_area != MAP_FAILED && !mprotect(read_area, PAGE, PROT_READ | PROT_WRITE), "cannot map");
	must(!mprotect(write_area, PAGE, PROT_READ | PROT_WRITE), "cannot map");
	touch(read_area, PAGE, PAGE);
	touch(write_area, PAGE, PAGE);
	pids[0] = begin("ar-waits", unmap_read);
	pids[1] = begin("aw-waits", unmap_written);
	pids[2] = begin("ar-holds", hold_anon_to_read);
	pids[3] = begin("aw-holds", hold_anon_to_write);
	for (int i = 3; i >= 0; i--)
		goes_on(pids[i]);
	freeze_when = spin;
	notes_as("/stages/locks");
}
