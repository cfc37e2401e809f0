// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes", that does not end: a machine that is busy and healthy. Threads of one
// address space fault, map, protect and unmap; files on a disk are written and synced, others made, renamed and removed in one
// directory, or cut and punched while others map them; processes fork and end, queue for a pipe, read what others map, and make and
// remove cgroups; pages are merged, become huge ones, or are filled in by a thread with userfaultfd; in a cgroup at its limit a file
// is read, mapped and written that is larger, all of whose pages can be reclaimed; another cgroup goes over its memory.high with what
// cannot be. Whoever waits, waits for a moment.
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DISK "/tmp/disk"
#define AREA (1UL << 20)
#define GROUPS "/tmp/groups"
#define LIMIT "25165824"
#define HIGH "8388608"
#define MERGED (256UL << 10)
#define LARGE (64L << 20)

static char data[64 << 10];
static int ends[2];

static void map(void)
{
	char *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	touch(area, AREA, PAGE);
	mprotect(area, AREA / 2, PROT_READ);
	munmap(area, AREA);
}

static void sync_file(void)
{
	int fd = open(DISK "/file", O_RDWR | O_CREAT, 0644);

	must(fd >= 0 && pwrite(fd, data, sizeof(data), 0) > 0, "cannot write");
	fsync(fd);
	close(fd);
}

static void map_file(void)
{
	int fd = open(DISK "/mapped", O_RDWR | O_CREAT, 0644);

	must(fd >= 0 && !ftruncate(fd, sizeof(data)), "cannot make a file");
	char *area = mmap(NULL, sizeof(data), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	touch(area, sizeof(data), PAGE);
	msync(area, sizeof(data), MS_SYNC);
	munmap(area, sizeof(data));
	close(fd);
}

// More than its cgroup may have.
static void read_large(void)
{
	static char taken[256 << 10];
	static off_t at;
	int fd = open(DISK "/large", O_RDWR);

	must(fd >= 0 && pread(fd, taken, sizeof(taken), at) > 0, "cannot read");
	at = (at + sizeof(taken)) % LARGE;
	char *area = mmap(NULL, sizeof(data), PROT_READ | PROT_WRITE, MAP_SHARED, fd, LARGE - sizeof(data));
	touch(area, sizeof(data), PAGE);
	munmap(area, sizeof(data));
	close(fd);
}

static void make_names(void)
{
	char from[64], to[64];

	snprintf(from, sizeof(from), DISK "/from-%d", getpid());
	snprintf(to, sizeof(to), DISK "/to-%d", getpid());
	close(open(from, O_CREAT | O_WRONLY, 0644));
	rename(from, to);
	unlink(to);
}

static void fork_once(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	waitpid(pid, NULL, 0);
}

static void write_pipe(void)
{
	must(write(ends[1], data, PAGE) > 0, "pipe");
}

static void read_pipe(void)
{
	char taken[4096];

	must(read(ends[0], taken, sizeof(taken)) > 0, "pipe");
}

static void read_maps(void)
{
	static char text[16384];
	char path[64];

	for (int pid = 2; pid < 400; pid++) {
		snprintf(path, sizeof(path), "/proc/%d/maps", pid);
		int fd = open(path, O_RDONLY);
		while (fd >= 0 && read(fd, text, sizeof(text)) > 0)
			;
		close(fd);
	}
}

// Under those who map it.
static void cut_file(void)
{
	int fd = open(DISK "/mapped", O_RDWR | O_CREAT, 0644);

	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 2 * PAGE);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void merge(void)
{
	char *area = mmap(NULL, MERGED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(area, MERGED, MADV_MERGEABLE);
	for (int times = 0; times < 20; times++) {
		memset(area, times, MERGED);
		usleep(20000);
	}
	munmap(area, MERGED);
}

static void be_huge(void)
{
	char *area = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(area, 2 * HUGE, MADV_HUGEPAGE);
	touch(area, 2 * HUGE, PAGE);
	mprotect(area + HUGE / 2, HUGE, PROT_READ);
	munmap(area, 2 * HUGE);
}

// Gives the pages that another thread faults on.
static void *fill(void *number)
{
	int fd = (int)(long)number;
	struct uffd_msg message;

	while (read(fd, &message, sizeof(message)) == sizeof(message)) {
		struct uffdio_zeropage page = {
			.range = { message.arg.pagefault.address & -PAGE, PAGE },
		};
		ioctl(fd, UFFDIO_ZEROPAGE, &page);
	}
	return NULL;
}

static void be_filled(void)
{
	static char *area;
	static int fd;
	pthread_t any;

	if (!area) {
		struct uffdio_api api = { .api = UFFD_API };
		fd = syscall(SYS_userfaultfd, O_CLOEXEC);
		must(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "no userfaultfd");
		area = mmap(NULL, MERGED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct uffdio_register all = {
			.range = { (unsigned long)area, MERGED }, .mode = UFFDIO_REGISTER_MODE_MISSING,
		};
		must(!ioctl(fd, UFFDIO_REGISTER, &all), "no pages");
		must(!pthread_create(&any, NULL, fill, (void *)(long)fd), "no thread");
	}
	touch(area, MERGED, PAGE);
	madvise(area, MERGED, MADV_DONTNEED);
}

static void take_too_much(void)
{
	char *area = mmap(NULL, 3 * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	touch(area, 3 * AREA, PAGE);
	munmap(area, 3 * AREA);
}

static void make_cgroup(void)
{
	char path[64];

	snprintf(path, sizeof(path), GROUPS "/of-%d", getpid());
	mkdir(path, 0755);
	rmdir(path);
	usleep(10000);
}

static void compact(void)
{
	write_file("/proc/sys/vm/drop_caches", "2");
	write_file("/proc/sys/vm/compact_memory", "1");
	sleep(1);
}

static void *forever(void *work)
{
	for (;;)
		((void (*)(void))work)();
}

static const struct {
	const char *comm;
	void (*work)(void);
	int processes, threads;
	const char *group;
} works[] = {
	{ "maps", map, 2, 4 }, { "syncs", sync_file, 2, 2 }, { "maps-file", map_file, 2, 2 }, { "names", make_names, 3, 1 },
	{ "forks", fork_once, 2, 1 }, { "writes", write_pipe, 2, 1 }, { "reads", read_pipe, 2, 1 }, { "looks", read_maps, 1, 1 },
	{ "compacts", compact, 1, 1 }, { "reclaims", read_large, 2, 2, "limited" }, { "cuts", cut_file, 1, 1 },
	{ "merges", merge, 1, 2 }, { "is-huge", be_huge, 1, 2 }, { "is-filled", be_filled, 1, 1 },
	{ "is-high", take_too_much, 4, 1, "high" }, { "groups", make_cgroup, 2, 1 },
};

void __wrap_workload_sizes(void)
{
	pthread_t any;
	char path[64];

	mkdir(DISK, 0755);
	mkdir(GROUPS, 0755);
	must(!mount("/dev/vda", DISK, "ext4", 0, NULL) && !pipe(ends), "no disk");
	must(!mount("none", GROUPS, "cgroup2", 0, NULL), "no cgroups");
	write_file(GROUPS "/cgroup.subtree_control", "+memory +io");
	mkdir(GROUPS "/limited", 0755);
	write_file(GROUPS "/limited/memory.max", LIMIT);
	mkdir(GROUPS "/high", 0755);
	write_file(GROUPS "/high/memory.high", HIGH);
	write_file("/sys/kernel/mm/ksm/run", "1");
	int fd = open(DISK "/large", O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && !ftruncate(fd, LARGE), "cannot make a file");
	close(fd);
	for (size_t i = 0; i < ARRAY_SIZE(works); i++)
		for (int number = 0; number < works[i].processes; number++)
			if (fork() == 0) {
				prctl(PR_SET_NAME, works[i].comm);
				if (works[i].group) {
					snprintf(path, sizeof(path), GROUPS "/%s/cgroup.procs", works[i].group);
					write_file(path, "0");
				}
				for (int thread = 1; thread < works[i].threads; thread++)
					must(!pthread_create(&any, NULL, forever, works[i].work), "no thread");
				forever(works[i].work);
			}
	for (;;)
		pause();
}
