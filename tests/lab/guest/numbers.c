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

long column_of(const char *path, const char *zone, const char *part, int column)
{
	if (read_file(path, text, sizeof(text)) < 0)
		fail("cannot read %s", path);
	for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *at = strstr(line, zone);
		if (!at || strncmp(line, "Node", 4) || !(at = strstr(at, part)))
			continue;
		at += strlen(part);
		for (long value; column-- >= 0; )
			if (value = strtol(at, &at, 10), column < 0)
				return value;
	}
	return 0;
}

// In pagetypeinfo's census a blank follows the zone, in its free lists a comma.
long pageblocks(const char *zone, int migratetype)
{
	char word[32];

	snprintf(word, sizeof(word), "%s ", zone);
	return column_of("/proc/pagetypeinfo", "zone", word, migratetype);
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
