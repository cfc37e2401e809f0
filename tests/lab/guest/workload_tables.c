// SPDX-License-Identifier: LGPL-2.1-or-later
// Page tables of every shape, each in a process of its own: sparse ones, breadth-first ones, tables deposited behind huge
// pages, empty ones, shared ones; entries that are zero pages, swapped out, poisoned, markers, PROT_NONE. What could be
// made is said on the console ("tables: PROCESS WHAT ADDRESS COUNT"), since not every kernel can do all of it.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // v6.13
#endif
#define HUGE_ENTRY (HUGE * SLOTS)         // what a PUD entry maps
#define GIANT_ENTRY (HUGE_ENTRY * SLOTS)  // what an entry of a four-level PGD maps, where pages are small

static const char *process;

static void made(const char *what, const void *address, size_t count)
{
	say("tables: %s %s %#lx %zu", process, what, (unsigned long)address, count);
}

static void read_touch(const char *memory, size_t bytes, size_t step)
{
	for (size_t at = 0; at < bytes; at += step)
		(void)*(volatile const char *)(memory + at);
}

static void advise(char *memory, size_t bytes, int advice)
{
	if (madvise(memory, bytes, advice))
		fail("madvise %d in %s: %s", advice, process, strerror(errno));
}

// One page in each table.
static void sparse(void)
{
	process = "sparse";
	char *memory = map_memory(400 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 400 * HUGE, HUGE);
	made("written", memory, 400);
	memory = map_memory(200 * HUGE, MADV_NOHUGEPAGE);
	read_touch(memory, 200 * HUGE, HUGE);
	made("zero", memory, 200);
	memory = map_memory(3 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 3 * HUGE, PAGE);
	made("full", memory, 3);
}

// A huge page takes no table, but one lies deposited behind each.
static void huge(void)
{
	process = "huge";
	char *memory = map_memory(300 * HUGE, MADV_HUGEPAGE);
	read_touch(memory, 300 * HUGE, HUGE);
	made("huge_zero", memory, 300);
	memory = map_memory(5 * HUGE, MADV_HUGEPAGE);
	touch(memory, 5 * HUGE, HUGE);
	made("huge", memory, 5);
	memory = map_memory(4 * HUGE, MADV_HUGEPAGE);
	touch(memory, 4 * HUGE, HUGE);
	if (mprotect(memory, 4 * HUGE, PROT_NONE))
		fail("mprotect: %s", strerror(errno));
	made("huge_protnone", memory, 4);
	memory = map_memory(3 * HUGE, MADV_HUGEPAGE);
	touch(memory, 3 * HUGE, HUGE);
	advise(memory, PAGE, MADV_DONTNEED);  // splits the first one: its deposited table comes to use
	made("huge_split", memory, 3);
}

// New tables of the upper levels first, as in the case: 253 entries of the PGD, 16 of each PUD, then the PMDs again. With
// larger pages there are not as many entries of a PGD: those of one PUD instead.
static void breadth(void)
{
	size_t small = PAGE == 4096, entry = small ? GIANT_ENTRY : HUGE_ENTRY;
	size_t entries = 253, puds = small ? 16 : 1, pmds = small ? 3 : 16, faults = 0;

	process = "breadth";
	char *memory = mmap((void *)entry, entries * entry, PROT_READ,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap of %zu entries: %s", entries, strerror(errno));
	advise(memory, entries * entry, MADV_NOHUGEPAGE);
	for (size_t pmd = 0; pmd < pmds; pmd++)
		for (size_t pud = 0; pud < puds; pud++)
			for (size_t at = 0; at < entries; at++, faults++)
				read_touch(memory + at * entry + pud * HUGE_ENTRY + pmd * HUGE, 1, 1);
	made("faults", memory, faults);
}

// What madvise() gives back of tables, and what it does not.
static void given_back(void)
{
	process = "given-back";
	char *memory = map_memory(100 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 100 * HUGE, HUGE);
	advise(memory, 100 * HUGE, MADV_DONTNEED);
	made("dontneed", memory, 100);
	memory = map_memory(60 * HUGE, MADV_HUGEPAGE);
	read_touch(memory, 60 * HUGE, HUGE);
	advise(memory, 60 * HUGE, MADV_DONTNEED);
	made("huge_dontneed", memory, 60);
	memory = map_memory(40 * HUGE, MADV_NOHUGEPAGE);
	read_touch(memory, 40 * HUGE, HUGE);
	advise(memory, 40 * HUGE, MADV_FREE);
	made("free", memory, 40);
	memory = map_memory(50 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 50 * HUGE, HUGE);
	for (size_t at = 0; at < 50 * HUGE; at += HUGE)
		advise(memory + at, PAGE, MADV_DONTNEED);
	made("pages_dontneed", memory, 50);
}

// As a program that gives back at once whatever it has read: a byte of each region that a table maps.
static void read_and_advise(const char *name, int thp, int advice)
{
	process = name;
	char *memory = map_memory(80 * HUGE, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	for (size_t at = 0; at < 80 * HUGE; at += HUGE) {
		read_touch(memory + at, 1, 1);
		advise(memory + at, HUGE, advice);
	}
	made("regions", memory, 80);
}

static void advise_free(void)
{
	read_and_advise("free", 0, MADV_FREE);
}

static void advise_free_thp(void)
{
	read_and_advise("free-thp", 1, MADV_FREE);
}

static void advise_dontneed(void)
{
	read_and_advise("dontneed", 0, MADV_DONTNEED);
}

static void advise_dontneed_thp(void)
{
	read_and_advise("dontneed-thp", 1, MADV_DONTNEED);
}

static void protected(void)
{
	process = "protected";
	char *memory = map_memory(2 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 30 * PAGE, PAGE);
	read_touch(memory + HUGE, 20 * PAGE, PAGE);
	if (mprotect(memory, 2 * HUGE, PROT_NONE))
		fail("mprotect: %s", strerror(errno));
	made("protnone", memory, 30);
	made("protnone_zero", memory + HUGE, 20);
	// Many mappings that share a table, each of a few slots.
	memory = map_memory(2 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 2 * HUGE, PAGE);
	for (size_t at = 0; at < 2 * HUGE; at += 8 * PAGE)
		munmap(memory + at, 3 * PAGE);
	made("holes", memory, 2 * 64);
}

// The disk has room for three quarters of it, whatever the size of a page.
static void swapped(void)
{
	size_t bytes = 4096 * PAGE;

	process = "swapped";
	char *memory = map_memory(bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += PAGE)
		*(size_t *)(memory + at) = at + 1;
	// What is still on the per-CPU lists on the way to the LRU is not taken at once.
	for (int tries = 0; tries < 5; tries++)
		advise(memory, bytes / 4 * 3, MADV_PAGEOUT);
	made("swap", memory, bytes / 4 * 3 / PAGE);
}

static void survive(int signal)
{
	(void)signal;
}

static void poisoned(void)
{
	process = "poisoned";
	signal(SIGBUS, survive);  // it comes for every page, and cannot be ignored
	char *memory = map_memory(HUGE, MADV_NOHUGEPAGE);
	touch(memory, HUGE, PAGE);
	size_t pages = 0;
	while (pages < 4 && !madvise(memory + pages * PAGE, PAGE, MADV_HWPOISON))
		pages++;
	made("hwpoison", memory, pages);
}

static void markers(void)
{
	process = "markers";
	char *memory = map_memory(HUGE, MADV_NOHUGEPAGE);
	touch(memory, 8 * PAGE, PAGE);
	made("guard", memory + HUGE / 2, madvise(memory + HUGE / 2, 16 * PAGE, MADV_GUARD_INSTALL) ? 0 : 16);

	// Write protection of shared memory that is not there yet has to be remembered somewhere: in markers.
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 12 /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM */ };
	memory = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *aligned = (char *)(((unsigned long)memory + HUGE - 1) & -HUGE);
	struct uffdio_register range = { .range = { (unsigned long)aligned, HUGE }, .mode = UFFDIO_REGISTER_MODE_WP };
	struct { struct uffdio_range range; uint64_t mode; } protect = { { (unsigned long)aligned, 24 * PAGE }, 1 };
	int done = fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &range) &&
		   !ioctl(fd, _IOWR(UFFDIO, 0x06, protect), &protect);
	made("uffd_wp", aligned, done ? 24 : 0);
}

static void *sleep_forever(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static void threads(void)
{
	process = "threads";
	for (int i = 0; i < 4; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, sleep_forever, NULL))
			fail("pthread_create");
	}
	char *memory = map_memory(20 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 20 * HUGE, HUGE);
	made("written", memory, 20);
}

static int share(void *nothing)
{
	prctl(PR_SET_NAME, "the-sharer");
	sleep_forever(nothing);
	return 0;
}

// As after vfork(): another process in the same memory.
static void vforked(void)
{
	static char stack[64 << 10] __attribute__((aligned(16)));

	process = "vforked";
	if (clone(share, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL) < 0)
		fail("clone: %s", strerror(errno));
	char *memory = map_memory(30 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 30 * HUGE, HUGE);
	made("written", memory, 30);
}

// Its first thread has ended, another lives on: the process has memory, but its leader has none.
static void *outlive(void *nothing)
{
	sleep(1);
	char *memory = map_memory(10 * HUGE, MADV_NOHUGEPAGE);
	touch(memory, 10 * HUGE, HUGE);
	return sleep_forever(nothing);
}

static pid_t leaderless(void)
{
	pthread_t thread;
	pid_t pid = fork();

	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_NAME, "leaderless");
		if (pthread_create(&thread, NULL, outlive, NULL))
			fail("pthread_create");
		syscall(SYS_exit, 0);
	}
	return pid;
}

// Two processes map the same huge pages at addresses that lie alike: one PMD table serves both.
static int huge_file;

static void map_huge_file(void)
{
	char *memory = mmap((void *)(1UL << 45), HUGE_ENTRY, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, huge_file, 0);
	if (memory == MAP_FAILED)
		fail("mmap of huge pages: %s", strerror(errno));
	touch(memory, 6 * HUGE, HUGE);
	made("hugetlb", memory, 6);
	memory = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap of private huge pages: %s", strerror(errno));
	touch(memory, 2 * HUGE, HUGE);
	made("hugetlb_private", memory, 2);
}

static void hugetlb_first(void)
{
	process = "hugetlb-1";
	map_huge_file();
}

static void hugetlb_second(void)
{
	process = "hugetlb-2";
	map_huge_file();
}

static void files(void)
{
	process = "files";
	int fd = memfd_create("file", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, 3 * HUGE))
		fail("memfd: %s", strerror(errno));
	char *memory = mmap(NULL, 3 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	touch(memory, 40 * PAGE, PAGE);
	made("shared", memory, 40);
	char *copy = mmap(NULL, 3 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	touch(copy, 10 * PAGE, PAGE);
	read_touch(copy + 10 * PAGE, 30 * PAGE, PAGE);
	made("private", copy, 40);
}

static void nothing(void)
{
	process = "plain";
}

static int make_swap(void)
{
	struct { char boot[1024]; uint32_t version, last_page, bad_pages; char rest[PAGE - 1036 - 10]; char magic[10]; } header;
	int fd = -1;

	// The disk's driver may take a moment to find it.
	for (int tries = 0; tries < 20 && (fd = open("/dev/vda", O_RDWR | O_CLOEXEC)) < 0; tries++)
		usleep(100000);
	if (fd < 0)
		return 0;
	memset(&header, 0, sizeof(header));
	header.version = 1;
	header.last_page = lseek(fd, 0, SEEK_END) / PAGE - 1;
	memcpy(header.magic, "SWAPSPACE2", 10);
	if (pwrite(fd, &header, sizeof(header), 0) != sizeof(header) || fsync(fd) || close(fd))
		fail("cannot write to the disk: %s", strerror(errno));
	if (swapon("/dev/vda", 0))
		fail("swapon: %s", strerror(errno));
	return 1;
}

// What a process says of itself, or one of its threads. Kernel threads come and go, but for the first.
static void add_process(const char *folder)
{
	static char text[4096];
	char path[128];

	snprintf(path, sizeof(path), "%s/status", folder);
	if (read_file(path, text, sizeof(text)) <= 0)
		return;
	if (strstr(text, "VmPTE:") || strstr(text, "\nPid:\t2\n"))
		truth_add(path);
	if (!strstr(text, "VmPTE:"))
		return;
	snprintf(path, sizeof(path), "%s/smaps", folder);
	truth_add(path);
	snprintf(path, sizeof(path), "%s/smaps_rollup", folder);
	truth_add(path);
}

static void add_processes(const char *pattern)
{
	glob_t found;

	if (glob(pattern, 0, NULL, &found))
		fail("no %s", pattern);
	for (size_t i = 0; i < found.gl_pathc; i++)
		add_process(found.gl_pathv[i]);
	globfree(&found);
}

void workload_tables(void)
{
	static const struct {
		const char *comm;
		void (*work)(void);
	} processes[] = {
		{ "plain", nothing },
		{ "sparse", sparse },
		{ "huge", huge },
		{ "breadth", breadth },
		{ "given-back", given_back },
		{ "free", advise_free },
		{ "free-thp", advise_free_thp },
		{ "dontneed", advise_dontneed },
		{ "dontneed-thp", advise_dontneed_thp },
		{ "protected", protected },
		{ "poisoned", poisoned },
		{ "markers", markers },
		{ "<b>thr\033[1m;\"&", threads },
		{ "vforked", vforked },
		{ "files", files },
		{ "hugetlb-1", hugetlb_first },
		{ "hugetlb-2", hugetlb_second },
	};

	// khugepaged would change at moments of its own choosing what is made here.
	set_number("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", 1000000);
	set_number("/proc/sys/vm/nr_hugepages", 12);
	huge_file = syscall(SYS_memfd_create, "huge", MFD_CLOEXEC | MFD_HUGETLB);
	if (huge_file < 0 || ftruncate(huge_file, HUGE_ENTRY))
		fail("a file of huge pages: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(processes); i++)
		keep_child(processes[i].comm, processes[i].work);
	pid_t dead = leaderless();
	if (make_swap())
		keep_child("swapped", swapped);
	else
		say("tables: swapped swap 0x0 0");
	share_memory();
	sleep(2);
	add_processes("/proc/[0-9]*");
	char threads[64];
	snprintf(threads, sizeof(threads), "/proc/%d/task/[0-9]*", dead);
	add_processes(threads);
}

// For the benchmark: as many page tables as the guest has room for, and next to nothing in them.
static void many(void)
{
	process = "many";
	char *memory = map_memory(200000 * HUGE, MADV_NOHUGEPAGE);
	read_touch(memory, 200000 * HUGE, HUGE);
	made("zero", memory, 200000);
}

// And a mapping in as many pieces as vm.max_map_count lets it be.
static void pieces(void)
{
	size_t bytes = 64000 * PAGE;

	process = "pieces";
	char *memory = map_memory(bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += 2 * PAGE)
		if (mprotect(memory + at, PAGE, PROT_READ))
			fail("mprotect: %s", strerror(errno));
	made("vmas", memory, 64000);
}

void workload_many_tables(void)
{
	keep_child("many", many);
	keep_child("pieces", pieces);
}
