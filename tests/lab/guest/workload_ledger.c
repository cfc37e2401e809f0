// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory of every class, in amounts that are known: files of tmpfs (one of them deleted), a memfd, SysV shared memory,
// anonymous memory, hugetlb pages in use, reserved and free, pages that no mark explains (in pipes), threads' stacks, and
// vmalloc memory of a BPF map.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define FILE_BYTES (40 * MIB)
#define DELETED_BYTES (10 * MIB)
#define MEMFD_BYTES (12 * MIB)
#define SHM_BYTES (8 * MIB)
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

static void shared_memory(void)
{
	int fd = open("/tmp/ledger-file", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	fill(fd, FILE_BYTES, "the file");
	close(fd);
	fd = open("/tmp/ledger-deleted", O_RDWR | O_CREAT, 0644);
	fill(fd, DELETED_BYTES, "the deleted file");
	unlink("/tmp/ledger-deleted");
	fill(memfd_create("ledger-memfd", 0), MEMFD_BYTES, "the memfd");
	int id = shmget(IPC_PRIVATE, SHM_BYTES, IPC_CREAT | 0600);
	char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
	if (memory == (char *)-1)
		fail("no SysV shared memory: %s", strerror(errno));
	touch(memory, SHM_BYTES, PAGE);
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
	union bpf_attr wanted = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = PAGE, .max_entries = MAP_BYTES / PAGE,
	};

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
	add_status(keep_child("ledger-anon", anonymous));
	hugetlb();
	add_status(keep_child("ledger-pipes", pipes));
	add_status(keep_child("ledger-threads", threads));
	bpf_map();
	say("planted: %lu MiB of shared memory, %lu MiB anonymous, %lu MiB in pipes, %d threads",
	    (FILE_BYTES + DELETED_BYTES + MEMFD_BYTES + SHM_BYTES) / MIB, ANON_BYTES / MIB, PIPES * PIPE_BYTES / MIB, THREADS);
}
