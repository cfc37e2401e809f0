// SPDX-License-Identifier: LGPL-2.1-or-later
// What a visit of a reverse map walk takes on this machine, without root: writeback of a file's page walks the file's tree
// of VMAs (folio_mkclean()) to make the page read-only in every process. Private VMAs it passes by; of shared ones that
// have written to the page it changes the page table. The walk with none beside the one that writes is taken off.
//
//   bench_visits FILE VMAS       a file to make, on a file system that writes back (no tmpfs)
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 21

static double microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void failed(const char *what)
{
	perror(what);
	exit(1);
}

// The least time it took to begin the writeback of a page that `vmas` VMAs map beside the one that writes to it: other
// work on the machine only makes it longer.
static double writeback(int fd, long vmas, int flags)
{
	volatile char **maps = calloc(vmas + 1, sizeof(*maps));
	double least = 1e12;

	for (long i = 0; i <= vmas; i++) {
		maps[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, i ? flags : MAP_SHARED, fd, 0);
		if (maps[i] == MAP_FAILED)
			failed("mmap");
		(void)maps[i][0];
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (long i = 0; i <= (flags == MAP_SHARED ? vmas : 0); i++)
			maps[i][0] = round;
		double begin = microseconds();
		if (sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE))
			failed("sync_file_range");
		double taken = microseconds() - begin;
		least = taken < least ? taken : least;
		if (fsync(fd))
			failed("fsync");
	}
	for (long i = 0; i <= vmas; i++)
		munmap((void *)maps[i], 4096);
	free(maps);
	return least;
}

int main(int count, char **arguments)
{
	long vmas = count == 3 ? atol(arguments[2]) : 0;
	int fd = vmas > 0 ? open(arguments[1], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (fd < 0 || ftruncate(fd, 4096))
		failed("bench_visits FILE VMAS");
	unlink(arguments[1]);
	double alone = writeback(fd, 0, MAP_SHARED);
	// Nanoseconds of a VMA that is passed by, and of one whose page table is changed.
	printf("%.1f %.1f\n", (writeback(fd, vmas, MAP_PRIVATE) - alone) * 1e3 / vmas,
	       (writeback(fd, vmas, MAP_SHARED) - alone) * 1e3 / vmas);
}
