// SPDX-License-Identifier: LGPL-2.1-or-later
// The OOM killer for every reason that it knows: a memory cgroup's limit (one task, and a whole group), a cpuset, a
// memory policy, the machine, and somebody at the keyboard. Before that the kernel's log goes round once, with lines from
// outside of the kernel that look like its own, and bytes that are no text.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CGROUPS "/sys/fs/cgroup"
#define MIB (1UL << 20)
#define MPOL_BIND 2

static const char *cgroup;  // of the next child
static const char *adj;     // its oom_score_adj
static size_t bytes;        // that it takes at once, or until it is killed
static int bound;           // by a memory policy to node 0

static void make_cgroup(const char *name, const char *file, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), CGROUPS "/%s", name);
	if (mkdir(path, 0755) && errno != EEXIST)
		fail("cannot make cgroup %s", name);
	snprintf(path, sizeof(path), CGROUPS "/%s/%s", name, file);
	write_file(path, value);
}

static void be_so(void)
{
	char path[128], pid[16];
	unsigned long nodes = 1;

	if (cgroup) {
		snprintf(path, sizeof(path), CGROUPS "/%s/cgroup.procs", cgroup);
		snprintf(pid, sizeof(pid), "%d", getpid());
		write_file(path, pid);
	}
	write_file("/proc/self/oom_score_adj", adj);
	if (bound && syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes)))
		fail("set_mempolicy: %s", strerror(errno));
	// Pages of 4 KiB where a cgroup has but few, huge ones where a node is to be filled.
	touch(map_memory(bytes, bytes < 256 * MIB ? MADV_NOHUGEPAGE : MADV_HUGEPAGE), bytes, PAGE);
}

static void expect_killed(pid_t pid, const char *comm)
{
	int status;

	for (int seconds = 0; seconds < 60; seconds++) {
		if (waitpid(pid, &status, WNOHANG) == pid) {
			if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
				fail("%s ended by itself", comm);
			say("%s was killed", comm);
			return;
		}
		sleep(1);
	}
	fail("%s still lives", comm);
}

static void be_killed(const char *comm)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_NAME, comm);
		be_so();
		_exit(0);
	}
	expect_killed(pid, comm);
}

static void log_line(int fd, const char *text, size_t length)
{
	if (write(fd, text, length) != (ssize_t)length)
		fail("cannot write to /dev/kmsg: %s", strerror(errno));
}

// A log of 128 KiB with 4096 descriptors, as Debian's kernels have it: short lines take those round, long ones the text.
// Not for the console, which is slow.
static void fill_log(void)
{
	static const char odd[] = "<13>tab\there, escape \x1b[31m red, \xff\xfe no text, \xc3\xa9 text, back\\slash";
	static const char forged[] =
		"<3>Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:1kB, UID:0 "
		"pgtables:1kB oom_score_adj:0";
	char line[400];
	int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open /dev/kmsg");
	for (int number = 0; number < 3720; number++) {
		int width = number < 3200 ? 1 : 1 + number * 37 % 331;
		int length = snprintf(line, sizeof(line), "<15>lab line %d %0*d", number, width, 0);
		log_line(fd, line, length);
	}
	log_line(fd, odd, sizeof(odd) - 1);
	log_line(fd, forged, sizeof(forged) - 1);
	log_line(fd, "<14>", 4);
	close(fd);
}

void workload_oom(void)
{
	pid_t pids[2];

	fill_log();
	if (mount("cgroup2", CGROUPS, "cgroup2", 0, NULL))
		fail("cannot mount cgroup2: %s", strerror(errno));
	write_file(CGROUPS "/cgroup.subtree_control", "+memory +cpuset");

	make_cgroup("small, one", "memory.max", "25165824");
	cgroup = "small, one", adj = "-900", bytes = 16 * MIB;
	keep_child("protected", be_so);
	adj = "200", bytes = 64 * MIB;
	be_killed("cgroup hog");

	make_cgroup("group", "memory.max", "8388608");
	make_cgroup("group", "memory.oom.group", "1");
	cgroup = "group", adj = "0", bytes = MIB;
	pids[0] = keep_child("member", be_so);
	bytes = 64 * MIB;
	be_killed("group hog");
	expect_killed(pids[0], "member");

	// A name in two lines in the tables of what follows.
	cgroup = NULL, bytes = 2 * MIB;
	keep_child("two\nlines", be_so);
	adj = "1000", bytes = MIB;
	pids[0] = keep_child("keyboard", be_so);
	write_file("/proc/sysrq-trigger", "f");
	expect_killed(pids[0], "keyboard");

	make_cgroup("node 0", "cpuset.mems", "0");
	cgroup = "node 0", adj = "0", bytes = 600 * MIB;
	be_killed("cpuset hog");

	cgroup = NULL, bound = 1;
	write_file("/proc/sys/vm/oom_kill_allocating_task", "1");
	be_killed("policy hog");
	write_file("/proc/sys/vm/oom_kill_allocating_task", "0");

	bound = 0, bytes = 2048 * MIB;
	be_killed("a) b, (c");
}
