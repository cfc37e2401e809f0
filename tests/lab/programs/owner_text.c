// SPDX-License-Identifier: LGPL-2.1-or-later
// The guest's /init, which also writes what page_owner prints of many busy processes to its disk, as it is: kernels without
// file systems can do that. Linked with --wrap=truth_prepare, so that the captures of others stay as they are. On the disk
// is a block that says how many bytes there are, and the text behind it.
//
// The processes take turns at what allocates, few pages at a time: neighbours among the pages are of different stacks and
// tasks, as on a host that has been up for long, and not thousands of one fault behind the other.
#include "../guest/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define OWNER "/sys/kernel/debug/page_owner"
#define DISK "/dev/vda"
#define WORKERS 96
#define TURNS 900
#define GROUPS 12
#define BLOCK 4096
#define BUFFER (1UL << 20)

void __real_truth_prepare(void);

static unsigned int number, state;
static char *memory;  // of this process, of which the first `used` bytes were touched
static size_t used;
static int file = -1;

static unsigned int any(unsigned int below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

// Some bytes that no page is behind yet; who writes there first is in the stack.
static char *fresh(size_t pages)
{
	char *here = memory + used;

	used += pages * PAGE;
	return here;
}

static void kernel_writes(void)
{
	char *to = fresh(1);
	int fd;

	switch (any(14)) {
	case 0: uname((struct utsname *)to); break;
	case 1: sysinfo((struct sysinfo *)to); break;
	case 2: times((struct tms *)to); break;
	case 3: getcwd(to, PAGE); break;
	case 4: getrusage(RUSAGE_SELF, (struct rusage *)to); break;
	case 5: stat("/proc/self", (struct stat *)to); break;
	case 6: statfs("/tmp", (struct statfs *)to); break;
	case 7: readlink("/proc/self/exe", to, PAGE); break;
	case 8: getrlimit(RLIMIT_NOFILE, (struct rlimit *)to); break;
	case 9: mincore(memory, PAGE, (unsigned char *)to); break;
	case 10: clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ 0, 1000 }, (struct timespec *)to); break;
	case 11: pipe((int *)to); break;
	default:
		fd = open(any(2) ? "/dev/zero" : "/proc/self/maps", O_RDONLY | O_CLOEXEC);
		if (read(fd, to, PAGE) < 0)
			fail("cannot read: %s", strerror(errno));
		close(fd);
	}
}

static void in_files(void)
{
	char path[64];
	off_t end = lseek(file, 0, SEEK_END);
	int pipes[2];
	char *map;

	switch (any(7)) {
	case 0:
	case 1:
		if (pwrite(file, memory, PAGE * (1 + any(3)), end) < 0)
			fail("cannot write: %s", strerror(errno));
		break;
	case 2:
		if (ftruncate(file, end + 2 * PAGE))
			fail("cannot grow a file: %s", strerror(errno));
		map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, end & -PAGE);
		map[0] = map[PAGE] = 1;
		munmap(map, 2 * PAGE);
		break;
	case 3:
		if (fallocate(file, 0, end, PAGE))
			fail("cannot allocate a file: %s", strerror(errno));
		break;
	case 4:
		if (!pipe2(pipes, O_CLOEXEC | O_NONBLOCK) && write(pipes[1], memory, 2 * PAGE) < 0)
			fail("cannot write to a pipe: %s", strerror(errno));
		break;
	case 5:
		snprintf(path, sizeof(path), "/tmp/%u.%u", number, any(100000));
		mkdir(path, 0755);
		break;
	default:
		snprintf(path, sizeof(path), "/tmp/%u-%u", number, any(100000));
		if (symlink("/proc/self/fd", path))
			break;
	}
}

static void in_kernel(void)
{
	static const char *const files[] = {
		"/proc/self/status", "/proc/self/smaps", "/proc/meminfo", "/proc/vmstat", "/proc/zoneinfo", "/proc/interrupts",
		"/proc/self/mountinfo", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/buddyinfo", "/proc/stat",
	};
	static char text[2 * PAGE];
	char *apart;
	int fd;

	switch (any(6)) {
	case 0:  // page tables
		apart = mmap(NULL, HUGE * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		madvise(apart, HUGE * 2, MADV_NOHUGEPAGE);
		apart[HUGE] = 1;
		break;
	case 1:
		if (epoll_create1(EPOLL_CLOEXEC) < 0 || eventfd(1, EFD_CLOEXEC) < 0)
			break;
		break;
	case 2:
		apart = shmat(shmget(IPC_PRIVATE, 2 * PAGE, 0600), NULL, 0);
		if (apart != (void *)-1)
			apart[PAGE] = 1;
		break;
	case 3:
		if (fork() == 0) {
			for (int i = 0; i < 4; i++)  // copies of the parent's
				memory[any(used / PAGE) * PAGE] = 2;
			for (;;)
				pause();
		}
		break;
	default:
		fd = open(files[any(ARRAY_SIZE(files))], O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && read(fd, text, sizeof(text)) < 0)
			fail("cannot read: %s", strerror(errno));
		if (any(8))
			close(fd);
	}
}

static void join(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/groups/service-%u", number % GROUPS);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "/groups/service-%u/cgroup.procs", number % GROUPS);
	write_file(path, "0");
}

static void work(void)
{
	char path[32];

	snprintf(path, sizeof(path), "/tmp/file-%u", number);
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	memory = map_memory(TURNS * 4 * PAGE + HUGE, MADV_NOHUGEPAGE);
	used = HUGE / 16;
	for (int turn = 0; turn < TURNS; turn++) {
		switch (any(8)) {
		case 0: case 1: touch(fresh(3), 3 * PAGE, PAGE); break;
		case 2: (void)*(volatile char *)(memory + used); touch(fresh(1), PAGE, PAGE); break;
		case 3: case 4: kernel_writes(); break;
		case 5: case 6: in_files(); break;
		default: if (!any(4)) in_kernel();
		}
		if (!any(4))
			usleep(500);
	}
}

static void write_text(void)
{
	static char buffer[BUFFER + PAGE] __attribute__((aligned(BLOCK)));
	int in = open(OWNER, O_RDONLY | O_CLOEXEC), out = open(DISK, O_WRONLY | O_DIRECT | O_CLOEXEC);
	size_t length = 0, filled = 0;
	ssize_t got = 1;

	if (in < 0 || out < 0)
		fail("cannot copy " OWNER " to " DISK ": %s", strerror(errno));
	while (got) {
		// One read is one record, and fails if it has no room for it.
		while (filled < BUFFER && (got = read(in, buffer + filled, PAGE)) > 0)
			filled += got;
		if (got < 0)
			fail("cannot read " OWNER ": %s", strerror(errno));
		size_t whole = filled < BUFFER ? filled : BUFFER;
		if (pwrite(out, buffer, (whole + BLOCK - 1) & -BLOCK, BLOCK + length) < 0)
			fail("cannot write " DISK ": %s", strerror(errno));
		length += whole;
		filled -= whole;
		memmove(buffer, buffer + whole, filled);
	}
	memset(buffer, 0, BLOCK);
	snprintf(buffer, BLOCK, "%zu\n", length);
	if (pwrite(out, buffer, BLOCK, 0) != BLOCK)
		fail("cannot write " DISK ": %s", strerror(errno));
	say("    page_owner: %zu MiB", length >> 20);
}

void __wrap_truth_prepare(void)
{
	pid_t workers[WORKERS];
	int done[2];
	char name[16], byte;

	if (pipe(done))
		fail("pipe: %s", strerror(errno));
	mkdir("/groups", 0755);
	if (mount("none", "/groups", "cgroup2", 0, NULL))
		fail("cannot mount cgroup2: %s", strerror(errno));
	write_file("/groups/cgroup.subtree_control", "+memory");
	for (number = 0; number < WORKERS; number++) {
		workers[number] = fork();
		if (workers[number])
			continue;
		state = number * 2654435761U;
		snprintf(name, sizeof(name), "worker-%u", number % 24);
		write_file("/proc/self/comm", name);
		join();
		work();
		if (write(done[1], "", 1) != 1)
			fail("a worker cannot report");
		for (;;)
			pause();
	}
	for (int i = 0; i < WORKERS; i++)
		if (read(done[0], &byte, 1) != 1)
			fail("a worker died");
	write_text();
	__real_truth_prepare();
}
