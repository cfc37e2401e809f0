// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory that stands for a disk: files of ext4 (read, dirty, deleted, a swap file), anonymous pages in the swap file and
// in the swap cache, and anonymous pages that zram, and after it zswap, hold compressed, once and as they are; some of these
// are many processes'. What mincore() says of the files, and what the device says of itself, is noted.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define DISK "/dev/vda"
#define READ_BYTES (6 * MIB)
#define DIRTY_BYTES (3 * MIB)
#define DELETED_BYTES (4 * MIB)
#define SWAP_FILE_BYTES (16 * MIB)
#define SWAPPED_BYTES (8 * MIB)
#define READ_BACK_BYTES (2 * MIB)
#define ZRAM "/dev/zram0"
#define ZRAM_BYTES (32 * MIB)
#define SMALL_BYTES (8 * MIB)  // a third of each page is noise
#define LARGE_BYTES (2 * MIB)  // all of it: zram keeps such pages as they are
#define ZSWAP "/sys/module/zswap/parameters/"
#define ZSWAP_BYTES (6 * MIB)  // a third of each page is noise
#define SAME_BYTES (4 * MIB)   // one word throughout: zram keeps the word

// Of the crowd's pages a third is everyone's, a third is that of a few, a third its own. A count of many has no room in a
// byte of swap_map (62), nor that of the few more in a word of the swap table (15).
#define CROWD_PAGES (48 * PAGE)
#define FEW 5
#define SOME 15
#define MANY 50

static char block[64 << 10];

// Never the same twice, and nothing that compresses.
static void noise(char *memory, size_t bytes)
{
	static uint64_t state = 88172645463325252ULL;

	for (size_t at = 0; at + sizeof(state) <= bytes; at += sizeof(state)) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memcpy(memory + at, &state, sizeof(state));
	}
}

static int filled(const char *path, size_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	noise(block, sizeof(block));
	for (size_t done = 0; done < bytes; done += sizeof(block))
		if (write(fd, block, sizeof(block)) != sizeof(block))
			fail("cannot fill %s: %s", path, strerror(errno));
	return fd;
}

// What mkswap(8) writes: union swap_header, include/linux/swap.h.
static void make_swap(int fd, size_t bytes)
{
	static char header[PAGE];
	uint32_t info[] = { 1, bytes / PAGE - 1, 0 };  // version, last_page, nr_badpages

	memcpy(header + 1024, info, sizeof(info));
	memcpy(header + PAGE - 10, "SWAPSPACE2", 10);
	if (pwrite(fd, header, sizeof(header), 0) != sizeof(header) || fsync(fd))
		fail("cannot make a swap area: %s", strerror(errno));
}

static void swap_to(const char *path, int priority)
{
	if (swapon(path, SWAP_FLAG_PREFER | priority))
		fail("cannot swap to %s: %s", path, strerror(errno));
}

static void files(void)
{
	int fd;

	// The disk's driver may take a moment to find it.
	for (int i = 0; access(DISK, F_OK) && i < 50; i++)
		usleep(100000);
	mkdir("/disk", 0755);
	if (mount(DISK, "/disk", "ext4", MS_NOATIME, NULL))
		fail("cannot mount " DISK ": %s", strerror(errno));
	write_file("/proc/sys/vm/dirty_writeback_centisecs", "0");
	fd = filled("/disk/swap-file", SWAP_FILE_BYTES);
	make_swap(fd, SWAP_FILE_BYTES);
	close(fd);
	fd = filled("/disk/written back", READ_BYTES);
	if (fsync(fd))
		fail("cannot write a file back: %s", strerror(errno));
	note_pages("written-back", fd, READ_BYTES);
	close(fd);
	fd = filled("/disk/dirty", DIRTY_BYTES);
	note_pages("dirty", fd, DIRTY_BYTES);
	close(fd);
	fd = filled("/disk/deleted", DELETED_BYTES);  // stays open
	note_pages("deleted", fd, DELETED_BYTES);
	unlink("/disk/deleted");
}

static void page_out(char *memory, size_t bytes)
{
	if (madvise(memory, bytes, MADV_PAGEOUT))
		fail("MADV_PAGEOUT: %s", strerror(errno));
}

static void in_the_file(void)
{
	char *memory = map_memory(SWAPPED_BYTES, MADV_NOHUGEPAGE);
	unsigned long sum = 0;

	noise(memory, SWAPPED_BYTES);
	page_out(memory, SWAPPED_BYTES);
	// Read, not written: they keep their place in the area (mm/memory.c, should_try_to_free_swap()).
	for (size_t at = 0; at < READ_BACK_BYTES; at += PAGE)
		sum += *(volatile char *)(memory + at);
	note_number("sum", sum & 1);
}

static void in_zram(void)
{
	char *memory = map_memory(SMALL_BYTES, MADV_NOHUGEPAGE);

	for (size_t at = 0; at < SMALL_BYTES; at += PAGE)
		noise(memory + at, PAGE / 3 & ~7UL);
	page_out(memory, SMALL_BYTES);
	memory = map_memory(LARGE_BYTES, MADV_NOHUGEPAGE);
	noise(memory, LARGE_BYTES);
	page_out(memory, LARGE_BYTES);
	memory = map_memory(SAME_BYTES, MADV_NOHUGEPAGE);
	memset(memory, 'x', SAME_BYTES);
	page_out(memory, SAME_BYTES);
}

static void sleep_on(void)
{
}

static void crowd(void)
{
	char *memory = map_memory(CROWD_PAGES, MADV_NOHUGEPAGE);

	for (size_t at = 0; at < CROWD_PAGES; at += PAGE)
		noise(memory + at, PAGE / 3 & ~7UL);
	page_out(memory, CROWD_PAGES);
	madvise(memory + CROWD_PAGES / 3 * 2, CROWD_PAGES / 3, MADV_DONTFORK);
	for (int i = 0; i < FEW; i++)
		keep_child("crowd-few", sleep_on);
	madvise(memory + CROWD_PAGES / 3, CROWD_PAGES / 3, MADV_DONTFORK);
	for (int i = 0; i < MANY; i++)
		keep_child("crowd-many", sleep_on);
	madvise(memory + CROWD_PAGES / 6, CROWD_PAGES / 6, MADV_DONTFORK);
	for (int i = 0; i < SOME; i++)
		keep_child("crowd-some", sleep_on);
}

// What the processes map and have swapped out, as they share it.
static void add_rollups(void)
{
	static char text[4096];
	glob_t found;

	if (glob("/proc/[0-9]*/smaps_rollup", 0, NULL, &found))
		fail("no smaps_rollup");
	for (size_t i = 0; i < found.gl_pathc; i++)
		if (read_file(found.gl_pathv[i], text, sizeof(text)) > 0)
			truth_add(found.gl_pathv[i]);
	globfree(&found);
}

static void in_zswap(void)
{
	char *memory = map_memory(ZSWAP_BYTES, MADV_NOHUGEPAGE);

	for (size_t at = 0; at < ZSWAP_BYTES; at += PAGE)
		noise(memory + at, PAGE / 3 & ~7UL);
	page_out(memory, ZSWAP_BYTES);
}

// What is swapped out from now on goes there, and takes slots of an area that nothing is written to. Stock kernels before
// 7.2 are built without it.
static pid_t zswap(void)
{
	try_to_write(ZSWAP "compressor", "lzo");
	if (!try_to_write(ZSWAP "enabled", "Y"))
		return 0;
	return keep_child("in-zswap", in_zswap);
}

static void zram(void)
{
	char text[32];
	int fd;

	snprintf(text, sizeof(text), "%lu", ZRAM_BYTES);
	write_file("/sys/block/zram0/disksize", text);
	fd = open(ZRAM, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail("no " ZRAM ": %s", strerror(errno));
	make_swap(fd, ZRAM_BYTES);
	close(fd);
	swap_to(ZRAM, 100);
}

void workload_storage(void)
{
	files();
	swap_to("/disk/swap-file", 1);
	pid_t pid = keep_child("in-the-file", in_the_file);
	zram();
	pid_t other = keep_child("in-zram", in_zram);
	keep_child("crowd", crowd);
	pid_t third = zswap();
	char path[64];

	if (third) {
		snprintf(path, sizeof(path), "/proc/%d/status", third);
		truth_add(path);
		truth_add(ZSWAP "enabled");
		truth_add(ZSWAP "compressor");
	}
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	truth_add(path);
	snprintf(path, sizeof(path), "/proc/%d/status", other);
	truth_add(path);
	add_rollups();
	truth_add("/proc/swaps");
	truth_add("/sys/block/zram0/mm_stat");
	notes_as("/stages/storage");
	say("planted: %lu MiB in files of ext4, %lu MiB swapped out to a file, %lu MiB to zram",
	    (READ_BYTES + DIRTY_BYTES + DELETED_BYTES) / MIB, SWAPPED_BYTES / MIB, (SMALL_BYTES + LARGE_BYTES + SAME_BYTES) / MIB);
}
