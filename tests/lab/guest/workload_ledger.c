// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory of every class, in amounts that are known: files of tmpfs (one deleted, one of huge pages), of ramfs and of
// hugetlbfs, a memfd, SysV shared memory (a segment that nobody has attached), a block device's pages, anonymous memory,
// hugetlb pages in use, reserved and free, pages that no mark explains (in pipes), threads' stacks, vmalloc memory of a
// BPF map, and negative dentries. What mincore() says of the files is noted.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define FILE_BYTES (40 * MIB)
#define DELETED_BYTES (10 * MIB)
#define MEMFD_BYTES (12 * MIB)
#define SHM_BYTES (8 * MIB)
#define LOCKED_BYTES (2 * MIB)
#define RAMFS_BYTES (6 * MIB)
#define HUGE_FILE_BYTES (4 * MIB)
#define LEFT_BYTES (3 * MIB)
#define DISK "/dev/vda"
#define DISK_BYTES (8 * MIB)
#define DIRTY_BYTES (5 * MIB)
#define NEGATIVE 20000
#define GONE 3000
#define ANON_BYTES (32 * MIB)
#define PIPES 16
#define PIPE_BYTES (1 * MIB)
#define THREADS 200
#define MAP_BYTES (4 * MIB)

static char block[64 << 10];

static void fill(int fd, size_t bytes, const char *what)
{
	memset(block, 'x', sizeof(block));
	for (size_t done = 0; done < bytes; done += sizeof(block))
		if (write(fd, block, sizeof(block)) != sizeof(block))
			fail("cannot fill %s: %s", what, strerror(errno));
}

static int fill_file(const char *path, size_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	fill(fd, bytes, path);
	note_pages(path, fd, bytes);
	return fd;
}

static char *attach(int id)
{
	char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);

	if (memory == (char *)-1)
		fail("no SysV shared memory: %s", strerror(errno));
	return memory;
}

static void shared_memory(void)
{
	int fd = fill_file("/tmp/ledger-file", FILE_BYTES);
	char *memory = mmap(NULL, LOCKED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED || mlock(memory, LOCKED_BYTES))
		fail("cannot lock a part of the file: %s", strerror(errno));
	close(fd);
	close(fill_file("/tmp/ledger-unused", MIB));
	fill_file("/tmp/ledger-deleted", DELETED_BYTES);
	unlink("/tmp/ledger-deleted");
	fd = memfd_create("ledger-memfd", 0);
	fill(fd, MEMFD_BYTES, "the memfd");
	note_pages("memfd:ledger-memfd", fd, MEMFD_BYTES);
	int id = shmget(IPC_PRIVATE, SHM_BYTES, IPC_CREAT | 0600);
	touch(attach(id), SHM_BYTES, PAGE);
	note_number("SYSV-attached", id);
	id = shmget(0x1ed6e4, LEFT_BYTES, IPC_CREAT | 0600);
	memory = attach(id);
	touch(memory, LEFT_BYTES, PAGE);
	shmdt(memory);
	note_number("SYSV-left", id);
}

static void mounted(const char *type, const char *where, const char *options)
{
	mkdir(where, 0755);
	if (mount("ledger", where, type, 0, options))
		fail("cannot mount %s: %s", type, strerror(errno));
}

static void other_files(void)
{
	mounted("ramfs", "/ledger-ram", NULL);
	close(fill_file("/ledger-ram/file", RAMFS_BYTES));
	mounted("tmpfs", "/ledger-huge", "huge=always");
	close(fill_file("/ledger-huge/file", HUGE_FILE_BYTES));
}

// A part of it written back, and a part that stays dirty.
static void block_device(void)
{
	int fd = open(DISK, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;  // this kernel has no driver for it here
	write_file("/proc/sys/vm/dirty_writeback_centisecs", "0");
	fill(fd, DISK_BYTES, DISK);
	if (fsync(fd) || lseek(fd, 0, SEEK_SET))
		fail("cannot write " DISK " back: %s", strerror(errno));
	fill(fd, DIRTY_BYTES, DISK);
	note_pages(DISK, fd, DISK_BYTES);
	// Its pages go with the last that has it open.
}

// sysfs keeps negative dentries (kernfs_iop_lookup()); tmpfs and proc do not.
static void negative_dentries(void)
{
	char path[64];
	struct stat found;

	for (int i = 0; i < NEGATIVE; i++) {
		snprintf(path, sizeof(path), "/sys/kernel/nothing-%d", i);
		if (!stat(path, &found))
			fail("%s exists", path);
		snprintf(path, sizeof(path), "/tmp/nothing-%d", i);
		stat(path, &found);
	}
}

// Slots of dentries and inodes that are free again.
static void files_that_are_gone(void)
{
	char path[64];

	for (int i = 0; i < GONE; i++) {
		snprintf(path, sizeof(path), "/tmp/gone-%d", i);
		close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	}
	for (int i = 0; i < GONE; i++) {
		snprintf(path, sizeof(path), "/tmp/gone-%d", i);
		if (unlink(path))
			fail("%s is not there: %s", path, strerror(errno));
	}
}

static void anonymous(void)
{
	touch(map_memory(ANON_BYTES, MADV_NOHUGEPAGE), ANON_BYTES, PAGE);
}

static void hugetlb(void)
{
	write_file("/proc/sys/vm/nr_hugepages", "8");
	char *memory = mmap(NULL, 5 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		fail("no hugetlb pages: %s", strerror(errno));
	touch(memory, 3 * HUGE, HUGE);  // two stay reserved
	int fd = memfd_create("ledger-hugetlb", MFD_HUGETLB);
	if (fd < 0 || ftruncate(fd, HUGE))
		fail("no file of huge pages: %s", strerror(errno));
	memory = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("no huge page for a file: %s", strerror(errno));
	touch(memory, HUGE, HUGE);
}

// Each page of data that is written to a pipe is a page of its own (fs/pipe.c, pipe_write()).
static void pipes(void)
{
	write_file("/proc/sys/fs/pipe-user-pages-soft", "0");
	for (int i = 0; i < PIPES; i++) {
		int ends[2];
		if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) < (int)PIPE_BYTES)
			fail("no pipe of %lu bytes: %s", PIPE_BYTES, strerror(errno));
		fill(ends[1], PIPE_BYTES, "a pipe");
	}
}

static void *wait_for_good(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static void threads(void)
{
	pthread_attr_t small;
	pthread_t thread;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, &small, wait_for_good, NULL))
			fail("thread %d cannot be made", i);
}

static void bpf_map(void)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	union bpf_attr wanted = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = PAGE, .max_entries = MAP_BYTES / PAGE,
	};

	setrlimit(RLIMIT_MEMLOCK, &unlimited);  // before v5.11 maps count in it
	if (syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof(wanted)) < 0)
		fail("no BPF map: %s", strerror(errno));
}

static void add_status(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	truth_add(path);
}

void workload_ledger(void)
{
	truth_add("/proc/vmallocinfo");
	add_status(1);
	shared_memory();
	other_files();
	block_device();
	add_status(keep_child("ledger-anon", anonymous));
	hugetlb();
	add_status(keep_child("ledger-pipes", pipes));
	add_status(keep_child("ledger-threads", threads));
	bpf_map();
	files_that_are_gone();
	negative_dentries();
	notes_as("/stages/ledger");
	say("planted: %lu MiB of shared memory, %lu MiB anonymous, %lu MiB in pipes, %d threads",
	    (FILE_BYTES + MIB + DELETED_BYTES + MEMFD_BYTES + SHM_BYTES + LEFT_BYTES + HUGE_FILE_BYTES) / MIB, ANON_BYTES / MIB, PIPES * PIPE_BYTES / MIB, THREADS);
}
