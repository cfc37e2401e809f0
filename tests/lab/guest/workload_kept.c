// SPDX-License-Identifier: LGPL-2.1-or-later
// Memory that the kernel does not get, does not map, or has given up: what the command line keeps from it (mem=,
// memmap= as reserved, persistent and soft-reserved memory, crashkernel=), a memory block that is offline, secret memory
// outside of the direct map, and pages that count as poisoned: base pages, a huge page, and one optimised by HVO.
//
// Poisoned through /sys/devices/system/memory/hard_offline_page, which needs no access by the process that has the page.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL "/proc/sys/vm/nr_hugepages"
#define HVO "/proc/sys/vm/hugetlb_optimize_vmemmap"
#define HARD_OFFLINE "/sys/devices/system/memory/hard_offline_page"

#define SECRET_PAGES 37
#define BASE_PAGES 3
#define HUGE_PAGES 2

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

static const char *const always_recorded[] = {
	"/proc/sys/vm/defrag_mode",
	"/sys/firmware/memmap/*/*",
	"/sys/devices/system/memory/block_size_bytes",
	"/sys/devices/system/memory/memory*/state",
	"/sys/devices/system/node/node*/memory_failure/*",
	HVO,
};

static void record(void)
{
	glob_t found;

	for (size_t i = 0; i < ARRAY_SIZE(always_recorded); i++) {
		if (glob(always_recorded[i], 0, NULL, &found))
			continue;
		for (size_t j = 0; j < found.gl_pathc; j++)
			truth_add(found.gl_pathv[j]);
		globfree(&found);
	}
}

static unsigned long pfn_of(const void *address)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || pread(fd, &entry, sizeof(entry), (unsigned long)address / PAGE * sizeof(entry)) != sizeof(entry) ||
	    !(entry >> 63))
		fail("no page frame at %p", address);
	close(fd);
	return entry & ((1UL << 55) - 1);
}

// The kernel says "busy" of a page that it marks but cannot take out, as of a huge page that stays in its file.
static void poison(const char *what, unsigned long pfn)
{
	char text[32];
	int fd = open(HARD_OFFLINE, O_WRONLY | O_CLOEXEC);
	int length = snprintf(text, sizeof(text), "%#lx", pfn * PAGE);

	if (fd < 0)
		fail("cannot open " HARD_OFFLINE);
	ssize_t written = write(fd, text, length);
	say("poison %s %#lx: %s", what, pfn, written < 0 ? strerror(errno) : "done");
	close(fd);
	note_number(what, pfn);
}

static void keep_secret(void)
{
	int fd = syscall(SYS_memfd_secret, 0);

	if (fd < 0) {
		say("no secret memory: %s", strerror(errno));
		return;
	}
	if (ftruncate(fd, SECRET_PAGES * PAGE))
		fail("secret memory: %s", strerror(errno));
	char *memory = mmap(NULL, SECRET_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("secret memory: %s", strerror(errno));
	touch(memory, SECRET_PAGES * PAGE, PAGE);
	for (size_t page = 0; page < SECRET_PAGES; page++)
		note_number("secret", pfn_of(memory + page * PAGE));
}

static char *huge_pages(void)
{
	char *memory = mmap(NULL, HUGE_PAGES * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (memory == MAP_FAILED)
		fail("no huge pages: %s", strerror(errno));
	touch(memory, HUGE_PAGES * HUGE, HUGE);
	return memory;
}

static void be_poisoned(void)
{
	char *base = map_memory(16 * PAGE, MADV_NOHUGEPAGE);

	touch(base, 16 * PAGE, PAGE);
	for (int page = 0; page < BASE_PAGES; page++)
		poison("base", pfn_of(base + 2 * page * PAGE));
	int hvo = !access(HVO, W_OK);  // arm64 has none
	if (hvo)
		set_number(HVO, 0);
	set_number(POOL, HUGE_PAGES);
	unsigned long plain = pfn_of(huge_pages());
	poison("huge", plain + 5);
	poison("huge", plain + 300);
	if (!hvo)
		return;
	set_number(HVO, 1);
	set_number(POOL, 4 * HUGE_PAGES);
	unsigned long optimised = pfn_of(huge_pages());
	poison("optimised", optimised + 7);
	poison("optimised", optimised + 70);
	poison("optimised", optimised + 511);
}

// The last block that can go: of zone Movable. On arm64 none can that was there at boot.
static void block_offline(void)
{
	glob_t found;
	unsigned long number;

	if (glob("/sys/devices/system/memory/memory*/state", 0, NULL, &found))
		fail("no memory blocks");
	for (size_t i = found.gl_pathc; i--; ) {
		int fd = open(found.gl_pathv[i], O_WRONLY | O_CLOEXEC);
		ssize_t written = write(fd, "offline", 7);
		close(fd);
		if (written == 7 && sscanf(found.gl_pathv[i], "/sys/devices/system/memory/memory%lu", &number) == 1) {
			note_number("offline", number);
			globfree(&found);
			return;
		}
	}
	globfree(&found);
	say("no memory block can be put offline");
}

void workload_kept(void)
{
	block_offline();
	keep_child("secret", keep_secret);
	if (!access(HARD_OFFLINE, W_OK))
		keep_child("poisoned", be_poisoned);
	notes_as("/stages/kept");
	record();
}
