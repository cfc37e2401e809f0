// SPDX-License-Identifier: LGPL-2.1-or-later
// The guest's /init, which also records what page_owner prints: linked with it (--wrap=truth_prepare,pread), so that the
// captures of others stay as they are.
//
// Where a record begins is known to the open file alone: the offset is a page frame, and one read is one record. So
// the file is read from its beginning by opening it anew, and never by an offset.
#include "../guest/guest.h"

#include <fcntl.h>
#include <unistd.h>

#define OWNER "/sys/kernel/debug/page_owner"

void __real_truth_prepare(void);
ssize_t __real_pread(int fd, void *buffer, size_t size, off_t offset);

static int owner;

void __wrap_truth_prepare(void)
{
	owner = open(OWNER, O_RDONLY);
	if (owner < 0)
		fail("cannot open " OWNER);
	truth_add(OWNER);  // whose descriptor is the next one
	__real_truth_prepare();
}

ssize_t __wrap_pread(int fd, void *buffer, size_t size, off_t offset)
{
	if (fd != owner + 1)
		return __real_pread(fd, buffer, size, offset);
	if (!offset) {
		close(fd);
		if (open(OWNER, O_RDONLY) != fd)
			fail("cannot open " OWNER " anew");
	}
	return read(fd, buffer, size);
}
