// SPDX-License-Identifier: LGPL-2.1-or-later
// What it takes to decompress the pages of a kdump-compressed file, with the libraries that pack them and nothing else.
//
//   bench_unpack DUMP LIST ROUNDS      LIST: of each page its offset (8 bytes), size and flags (4 each)
//
// Prints the nanoseconds of CPU time of the fastest round. The libraries have no header files here: a machine that reads
// dumps has them without.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#define PAGE 4096

int uncompress(unsigned char *to, unsigned long *room, const unsigned char *from, unsigned long size);
int lzo1x_decompress_safe(const unsigned char *from, size_t size, unsigned char *to, size_t *room, void *work);
int snappy_uncompress(const char *from, size_t size, char *to, size_t *room);
size_t ZSTD_decompress(void *to, size_t room, const void *from, size_t size);

struct packed {
	uint64_t offset;
	uint32_t size, flags;
};

static void *contents(const char *name, size_t *size)
{
	struct stat about;
	int fd = open(name, O_RDONLY);
	void *data;

	if (fd < 0 || fstat(fd, &about)) {
		perror(name);
		exit(1);
	}
	*size = about.st_size;
	data = mmap(NULL, *size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (data == MAP_FAILED) {
		perror(name);
		exit(1);
	}
	return data;
}

static int unpack(const unsigned char *from, const struct packed *page, unsigned char *to)
{
	unsigned long room = PAGE;
	size_t same = PAGE;

	switch (page->flags) {
	case 0x01:
		return uncompress(to, &room, from, page->size) || room != PAGE;
	case 0x02:
		return lzo1x_decompress_safe(from, page->size, to, &same, NULL) || same != PAGE;
	case 0x04:
		return snappy_uncompress((const char *)from, page->size, (char *)to, &same) || same != PAGE;
	case 0x20:
		return ZSTD_decompress(to, PAGE, from, page->size) != PAGE;
	}
	return page->size != PAGE; // as it is
}

int main(int argc, char **argv)
{
	unsigned char to[PAGE];
	size_t size, bytes;
	double least = 1e18;

	if (argc != 4)
		return 2;

	const unsigned char *dump = contents(argv[1], &size);
	const struct packed *pages = contents(argv[2], &bytes);

	for (int round = atoi(argv[3]); round; round--) {
		struct timespec begin, end;
		double taken;

		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
		for (size_t i = 0; i < bytes / sizeof(*pages); i++) {
			if (unpack(dump + pages[i].offset, &pages[i], to)) {
				fprintf(stderr, "page %zu is damaged\n", i);
				return 1;
			}
		}
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
		taken = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
		if (taken < least)
			least = taken;
	}
	printf("%.0f\n", least);
	return 0;
}
