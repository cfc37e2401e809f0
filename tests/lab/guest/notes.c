// SPDX-License-Identifier: LGPL-2.1-or-later
// What a workload notes of itself: a line "NAME NUMBER" each, which becomes a file of the truth.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOTES "/tmp/notes"

void note_number(const char *what, unsigned long number)
{
	char line[96];
	int fd = open(NOTES, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	int length = snprintf(line, sizeof(line), "%s %lu\n", what, number);

	if (fd < 0 || write(fd, line, length) != length)
		fail("cannot note %s", what);
	close(fd);
}

void note_pages(const char *what, int fd, size_t bytes)
{
	static unsigned char there[16 << 10];
	unsigned long pages = 0;
	char *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	if (bytes / PAGE > sizeof(there) || memory == MAP_FAILED || mincore(memory, bytes, there))
		fail("mincore of %s: %s", what, strerror(errno));
	for (size_t i = 0; i < bytes / PAGE; i++)
		pages += there[i] & 1;
	munmap(memory, bytes);
	note_number(what, pages);
}

void notes_as(const char *name)
{
	close(open(NOTES, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));  // there may be none
	truth_note(NOTES, name);
}
