// SPDX-License-Identifier: LGPL-2.1-or-later
// A million files of a page each, in tmpfs: for the benchmark.
#include "guest.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS 1000
#define FILES_EACH 1000

void workload_many_files(void)
{
	char path[64];

	for (int i = 0; i < FOLDERS; i++) {
		snprintf(path, sizeof(path), "/tmp/many-%d", i);
		mkdir(path, 0755);
		for (int j = 0; j < FILES_EACH; j++) {
			snprintf(path, sizeof(path), "/tmp/many-%d/%d", i, j);
			int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
			if (write(fd, "x", 1) != 1)
				fail("cannot write %s", path);
			close(fd);
		}
	}
	say("%d files", FOLDERS * FILES_EACH);
}
