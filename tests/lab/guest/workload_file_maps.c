// SPDX-License-Identifier: LGPL-2.1-or-later
// Files that are mapped in known ways, beside the anonymous memory of workload_rmap.c:
//
//   file-vmas   one shared mapping of FILE_VMAS pages, every second one read-only: FILE_VMAS VMAs on one tree, one a page
//   file-same   the first page of a file, mapped FILE_VMAS times: all of these VMAs lie over one page
//   file-share  SHARERS processes, each with WINDOWS windows of 3 pages, two pages apart; every second one private, and
//               of the shared ones every second one opened for reading only
//   file-gone   a file that no directory has any more; its name tries what a name can
//   file-memfd, file-sysv, file-huge   memory in no directory: memfd, System V shared memory, huge pages
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define FILE_VMAS 20000L
#define SHARERS 3
#define WINDOWS 12
#define WINDOW_PAGES 3
#define GONE "/tmp/gone\n\033[31m\xe2\x80\xae\xff.txt"

static int file_of(const char *path, long pages)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, pages * PAGE))
		fail("cannot make %s: %s", path, strerror(errno));
	return fd;
}

static char *map(int fd, long pages, long first, int protection, int flags)
{
	char *memory = mmap(NULL, pages * PAGE, protection, flags, fd, first * PAGE);

	if (memory == MAP_FAILED)
		fail("mmap of %ld pages: %s", pages, strerror(errno));
	return memory;
}

static void file_vmas(void)
{
	int fd = file_of("/tmp/file-vmas", FILE_VMAS);
	char *memory = map(fd, FILE_VMAS, 0, PROT_READ | PROT_WRITE, MAP_SHARED);

	touch(memory, FILE_VMAS * PAGE, PAGE);
	for (long i = 1; i < FILE_VMAS; i += 2)
		if (mprotect(memory + i * PAGE, PAGE, PROT_READ))
			fail("mprotect: %s", strerror(errno));
	has("file-vmas", memory, FILE_VMAS * PAGE);
}

static void file_same(void)
{
	int fd = file_of("/tmp/file-same", 1);
	char *first = NULL;

	for (long i = 0; i < FILE_VMAS; i++) {
		first = map(fd, 1, 0, PROT_READ | PROT_WRITE, MAP_SHARED);
		*first = 1;
	}
	has("file-same", first, PAGE);
}

static void file_share(void)
{
	long pages = 2 * WINDOWS + 1;
	int fd = file_of("/tmp/file-share", pages), reading = open("/tmp/file-share", O_RDONLY | O_CLOEXEC);

	for (long i = 0; i < WINDOWS; i++) {
		char *memory = map(i % 4 == 2 ? reading : fd, WINDOW_PAGES, 2 * i, PROT_READ, i % 2 ? MAP_PRIVATE : MAP_SHARED);
		for (long page = 0; page < WINDOW_PAGES; page++)
			(void)((volatile char *)memory)[page * PAGE];
	}
	has("file-share", NULL, pages * PAGE);
}

static void file_gone(void)
{
	char *memory = map(file_of(GONE, 2), 2, 0, PROT_READ | PROT_WRITE, MAP_SHARED);

	touch(memory, 2 * PAGE, PAGE);
	unlink(GONE);
	has("file-gone", memory, 2 * PAGE);
}

static void file_memfd(void)
{
	int fd = memfd_create("lab memfd", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, 4 * PAGE))
		fail("memfd: %s", strerror(errno));
	char *memory = map(fd, 2, 1, PROT_READ | PROT_WRITE, MAP_SHARED);
	touch(memory, 2 * PAGE, PAGE);
	has("file-memfd", memory, 2 * PAGE);
}

static void file_sysv(void)
{
	int id = shmget(0x1ab, 3 * PAGE, IPC_CREAT | 0600);
	char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);

	if (memory == (char *)-1)
		fail("System V shared memory: %s", strerror(errno));
	touch(memory, 3 * PAGE, PAGE);
	has("file-sysv", memory, 3 * PAGE);
}

static void file_huge(void)
{
	char *memory = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of huge pages: %s", strerror(errno));
	touch(memory, 2 * HUGE, HUGE);
	has("file-huge", memory, 2 * HUGE);
}

void file_maps(void)
{
	keep_child("file-vmas", file_vmas);
	keep_child("file-same", file_same);
	for (int i = 0; i < SHARERS; i++)
		keep_child("file-share", file_share);
	keep_child("file-gone", file_gone);
	keep_child("file-memfd", file_memfd);
	keep_child("file-sysv", file_sysv);
	set_number("/proc/sys/vm/nr_hugepages", 2);
	keep_child("file-huge", file_huge);
}
