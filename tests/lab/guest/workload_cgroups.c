// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory cgroups: a tree with limits, protection and memory of every kind, one cgroup at its limit and one beyond it, and
// cgroups that were removed: each pinned by a page of a tmpfs file of its own, many by pages of the same file, a few by a
// socket. Where the kernel gives the pages of a removed cgroup to its parent (7.2), sockets alone pin.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CGROUPS "/sys/fs/cgroup"
#define MIB (1UL << 20)
#define OWN_FILE 200   // removed cgroups, each with a page of a file of its own
#define ONE_FILE 1000  // … with a page of the same file
#define SOCKETS 3      // … with a socket
#define PIPES 4
#define SMALL_FILES 5000  // without a page, but with an inode and a dentry
#define HOSTILE "shop/evil\x1b[31m\"<b>&amp;,\xff"

static const char *cgroup;  // that the next child is in

static void path_in(char *path, size_t size, const char *name, const char *file)
{
	if (snprintf(path, size, CGROUPS "/%s/%s", name, file) >= (int)size)
		fail("too long a name: %s", name);
}

static void set_in(const char *name, const char *file, const char *value)
{
	char path[200];

	path_in(path, sizeof(path), name, file);
	write_file(path, value);
}

static void join(const char *name)
{
	set_in(name, "cgroup.procs", "0");
}

// All that the kernel prints of it is recorded.
static void make_cgroup(const char *name)
{
	static const char *const files[] = {
		"memory.current", "memory.min", "memory.low", "memory.high", "memory.max", "memory.peak", "memory.events",
		"memory.events.local", "memory.swap.current", "memory.swap.max", "memory.swap.events", "memory.stat",
	};
	char path[200];

	path_in(path, sizeof(path), name, "");
	if (mkdir(path, 0755))
		fail("cannot make cgroup %s: %s", name, strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		path_in(path, sizeof(path), name, files[i]);
		if (!access(path, R_OK))
			truth_add(path);
	}
}

static void write_pages(const char *path, size_t bytes, int flags)
{
	static char page[PAGE];
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0644);

	memset(page, 'x', sizeof(page));
	for (size_t done = 0; fd >= 0 && done < bytes; done += PAGE)
		if (write(fd, page, PAGE) != PAGE)
			fail("cannot fill %s: %s", path, strerror(errno));
	if (fd < 0)
		fail("cannot open %s: %s", path, strerror(errno));
	close(fd);
}

static void anonymous(void)
{
	join(cgroup);
	touch(map_memory(24 * MIB, MADV_NOHUGEPAGE), 24 * MIB, PAGE);
}

static void huge(void)
{
	join(cgroup);
	touch(map_memory(4 * HUGE, MADV_HUGEPAGE), 4 * HUGE, PAGE);
}

static void files(void)
{
	join(cgroup);
	write_pages("/files/kept", 12 * MIB, 0);  // of ramfs, which nobody can reclaim
}

static void shared(void)
{
	join(cgroup);
	write_pages("/tmp/shop-shared", 10 * MIB, 0);
}

// Pages in pipes and kernel stacks are charged as kernel memory.
static void kernel_memory(void)
{
	static char block[64 << 10];
	int ends[2];

	join(cgroup);
	for (int i = 0; i < PIPES; i++) {
		if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, MIB) < (int)MIB)
			fail("no pipe of a MiB: %s", strerror(errno));
		for (size_t done = 0; done < MIB; done += sizeof(block))
			if (write(ends[1], block, sizeof(block)) != sizeof(block))
				fail("cannot fill a pipe");
	}
}

static void objects(void)
{
	char path[64];

	join(cgroup);
	mkdir("/tmp/small", 0755);
	for (int i = 0; i < SMALL_FILES; i++) {
		snprintf(path, sizeof(path), "/tmp/small/a-name-that-is-too-long-to-be-in-a-dentry-%d", i);
		int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		if (fd < 0)
			fail("cannot make %s: %s", path, strerror(errno));
		close(fd);
	}
}

// Memory that may be freed lazily is what a cgroup at its limit can reclaim without a disk and without swap.
static void at_its_limit(void)
{
	join(cgroup);
	for (int i = 0; i < 64; i++) {
		char *memory = map_memory(HUGE, MADV_NOHUGEPAGE);
		touch(memory, HUGE, PAGE);
		if (madvise(memory, HUGE, MADV_FREE))
			fail("MADV_FREE: %s", strerror(errno));
	}
}

static void beyond_its_limit(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		prctl(PR_SET_NAME, "too large");
		join(cgroup);
		touch(map_memory(64 * MIB, MADV_NOHUGEPAGE), 64 * MIB, PAGE);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
		fail("the task in %s was not killed", cgroup);
}

static void in_cgroup(const char *name, const char *comm, void (*work)(void))
{
	make_cgroup(name);
	cgroup = name;
	keep_child(comm, work);
}

// This process goes through them; what it leaves there stays.
static void removed(const char *kind, int number)
{
	char name[64], path[128];
	int left = 0;

	snprintf(name, sizeof(name), "gone/%s-%d", kind, number);
	snprintf(path, sizeof(path), CGROUPS "/%s", name);
	if (mkdir(path, 0755))
		fail("cannot make cgroup %s: %s", name, strerror(errno));
	join(name);
	if (!strcmp(kind, "own")) {
		snprintf(path, sizeof(path), "/tmp/pin-%d", number);
		write_pages(path, PAGE, 0);
	} else if (!strcmp(kind, "one")) {
		write_pages("/tmp/journal", PAGE, O_APPEND);
	} else {
		left = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	}
	if (left < 0)
		fail("no socket: %s", strerror(errno));
	write_file(CGROUPS "/cgroup.procs", "0");
	snprintf(path, sizeof(path), CGROUPS "/%s", name);
	if (rmdir(path))
		fail("cannot remove %s: %s", path, strerror(errno));
}

void workload_cgroups(void)
{
	long dying = -1;

	if (mount("cgroup2", CGROUPS, "cgroup2", 0, NULL))
		fail("cannot mount cgroup2: %s", strerror(errno));
	mkdir("/files", 0755);
	if (mount("ramfs", "/files", "ramfs", 0, NULL))
		fail("cannot mount ramfs: %s", strerror(errno));
	write_file(CGROUPS "/cgroup.subtree_control", "+memory");
	truth_add(CGROUPS "/cgroup.stat");
	if (!access("/sys/kernel/debug/lru_gen", R_OK))
		truth_add("/sys/kernel/debug/lru_gen");

	make_cgroup("shop");
	set_in("shop", "cgroup.subtree_control", "+memory");
	set_in("shop", "memory.max", "268435456");
	in_cgroup("shop/web", "web", anonymous);
	set_in("shop/web", "memory.min", "4194304");
	set_in("shop/web", "memory.low", "16777216");
	set_in("shop/web", "memory.high", "201326592");
	set_in("shop/web", "memory.swap.max", "1048576");
	in_cgroup("shop/huge", "huge", huge);
	in_cgroup("shop/files", "files", files);
	in_cgroup("shop/shared", "shared", shared);
	in_cgroup("shop/kernel", "kernel", kernel_memory);
	in_cgroup("shop/objects", "objects", objects);
	make_cgroup("shop/deep");
	set_in("shop/deep", "cgroup.subtree_control", "+memory");
	make_cgroup("shop/deep/empty");
	in_cgroup(HOSTILE, "evil", anonymous);

	make_cgroup("limit");
	set_in("limit", "memory.max", "8388608");
	cgroup = "limit";
	keep_child("limit", at_its_limit);
	make_cgroup("killed");
	set_in("killed", "memory.max", "8388608");
	cgroup = "killed";
	beyond_its_limit();

	make_cgroup("gone");
	set_in("gone", "cgroup.subtree_control", "+memory");
	truth_add(CGROUPS "/gone/cgroup.stat");
	for (int i = 0; i < OWN_FILE; i++)
		removed("own", i);
	for (int i = 0; i < ONE_FILE; i++)
		removed("one", i);
	for (int i = 0; i < SOCKETS; i++)
		removed("socket", i);
	// Until those are gone that nothing pins.
	for (int seconds = 0; seconds < 60; seconds++) {
		long now = number_in(CGROUPS "/gone/cgroup.stat", "nr_dying_descendants");
		if (now == dying)
			break;
		dying = now;
		sleep(2);
	}
	say("%d cgroups were removed, %ld are dying", OWN_FILE + ONE_FILE + SOCKETS, dying);
}
