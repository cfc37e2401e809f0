// SPDX-License-Identifier: LGPL-2.1-or-later
// Numbers in and out of the kernel's text files, and memory that is touched: what several workloads need.
#include "guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[128 << 10];

long number_in(const char *path, const char *key)
{
	if (read_file(path, text, sizeof(text)) < 0)
		fail("cannot read %s", path);
	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, strlen(key)) && strchr(" :", line[strlen(key)]))
			return atol(line + strlen(key) + 1);
	}
	return -1;
}

// See architectures.py: on x86 node 1 begins at 4 GiB, on arm64 all of it is below.
#if defined(__x86_64__)
const struct zone low_zone = { 0, "DMA32" }, high_zone = { 1, "Normal" };
#else
const struct zone low_zone = { 0, "DMA" }, high_zone = { 1, "DMA" };
#endif

long column_of(const char *path, struct zone zone, const char *part, int column)
{
	char name[16];
	int node, end;

	if (read_file(path, text, sizeof(text)) < 0)
		fail("cannot read %s", path);
	for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (sscanf(line, "Node %d, zone %15[^, ]%n", &node, name, &end) != 2 || node != zone.node || strcmp(name, zone.name))
			continue;
		char *at = strstr(line + end, part);
		if (!at || (!*part && line[end] != ' '))
			continue;
		at += strlen(part);
		for (long value; column-- >= 0; )
			if (value = strtol(at, &at, 10), column < 0)
				return value;
	}
	return 0;
}

// In pagetypeinfo's census numbers follow the zone, in its free lists a comma.
long pageblocks(struct zone zone, int migratetype)
{
	return column_of("/proc/pagetypeinfo", zone, "", migratetype);
}

long number_of(const char *path)
{
	if (read_file(path, text, sizeof(text)) < 0)
		fail("cannot read %s", path);
	return atol(text);
}

void set_number(const char *path, long value)
{
	char number[32];

	snprintf(number, sizeof(number), "%ld", value);
	write_file(path, number);
}

void touch(char *memory, size_t bytes, size_t step)
{
	for (size_t at = 0; at < bytes; at += step)
		((volatile char *)memory)[at] = 1;
}
