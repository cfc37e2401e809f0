// SPDX-License-Identifier: LGPL-2.1-or-later
// Reverse maps that are expensive, in known numbers:
//
//   ksm-vmas   one mapping of VMAS pages that are all alike, every second one read-only: VMAS VMAs on one anon_vma, no
//              fork; KSM merges them into VMAS / max_page_sharing pages, in one chain
//   ksm-few    FEW_VMAS VMAs likewise, of which FEW_PAGES have a page: KSM leaves pages of three mappings, of two and of one
//   ksm-share  SHARERS processes with SHARED_PAGES pages each that are all alike, too many for one KSM page
//   ksm-zero   ZERO_PAGES pages of zeros, merged into the zero page
//   ksm-fork   FORKED_PAGES KSM pages of FORKED_COPIES mappings each; forked once KSM is stopped, so that the child has
//              VMAs in the trees and no item of its own
//   fork-N     a fork hierarchy of FORKS processes, each of which wrote to the memory it was given
//   advice     ADVISED VMAs that differ in advice, not in protection
//   remapped   REMAPPED VMAs side by side that are alike and may not merge: mremap() has put them in reverse order
//   huge       one huge page under 512 VMAs, if there was one to have
//   anon-vmas  as ksm-vmas, but no two pages are alike, so that KSM has nothing to merge
//
// and files, see workload_file_maps.c.
//
// Then some pages of each kind are migrated, with kprobes that say how long each walk took: one that unmaps the page
// (try_to_migrate(), in which compilers may have put rmap_walk() inline), and rmap_walk() for the one that maps it again
// where it is now (remove_migration_ptes()).
//
// The workload `rmap_stall` has only ksm-vmas, with some VMAs of two pages behind it; SPLITTERS children of it, which share
// the lock of its anon_vma, split and merge one of these each, for which they need that lock, while another process has a
// KSM page migrated to and fro, which holds it. The splitters have precedence: whenever anybody else runs, they wait. It is
// frozen as soon as one of them is seen to be queued on the lock.
#include "guest.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VMAS 20000L
#define FEW_VMAS 22169L
#define FEW_PAGES 7L  // three alike, two, and two of which one is then written to
#define SHARERS 4
#define SHARED_PAGES 200L
#define ZERO_PAGES 300L
#define FORKED_PAGES 10L
#define FORKED_COPIES 4L
#define FORKS 5
#define FORK_PAGES 50L
#define ADVISED 500L
#define REMAPPED 64L
#define SPLITTERS 5
#define MAX_MAP_COUNT 24000  // ksm-vmas and ksm-few are near it

#define KSM "/sys/kernel/mm/ksm/"
#define TRACING "/sys/kernel/tracing/"

// What the processes tell each other: who has which memory.
static struct {
	struct {
		char name[16];
		volatile pid_t pid;
		char *memory;
		size_t bytes;
	} parts[64];
	volatile int taken, used;  // used: those of them that are filled in
} *known;

int has(const char *name, char *memory, size_t bytes)
{
	int number = __sync_fetch_and_add(&known->taken, 1);

	strncpy(known->parts[number].name, name, sizeof(known->parts[0].name) - 1);
	known->parts[number].memory = memory;
	known->parts[number].bytes = bytes;
	known->parts[number].pid = getpid();
	__sync_fetch_and_add(&known->used, 1);
	prctl(PR_SET_NAME, name);
	return number;
}

static int find(const char *name)
{
	for (int i = 0; i < known->used; i++)
		if (!strcmp(known->parts[i].name, name) && known->parts[i].pid)
			return i;
	fail("nobody is called %s", name);
}

// Memory with a hole on either side: no neighbour whose anon_vma it could share (mm/vma.c, find_mergeable_anon_vma).
static char *alone(size_t bytes, int advice)
{
	char *memory = mmap(NULL, bytes + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of %zu bytes: %s", bytes, strerror(errno));
	munmap(memory, PAGE);
	munmap(memory + PAGE + bytes, PAGE);
	if (madvise(memory + PAGE, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		fail("madvise: %s", strerror(errno));
	if (advice && madvise(memory + PAGE, bytes, advice))
		fail("madvise %d: %s", advice, strerror(errno));
	return memory + PAGE;
}

static void protect(char *memory, long pages, int protection)
{
	if (mprotect(memory, pages * PAGE, protection))
		fail("mprotect: %s", strerror(errno));
}

// Behind the VMAS pages `pairs` of pages that no other is like, each pair a VMA.
static void hold_ksm_vmas(long pairs)
{
	long pages = VMAS + 2 * pairs;
	char *memory = alone(pages * PAGE, MADV_MERGEABLE);

	memset(memory, 0x5a, VMAS * PAGE);
	for (long i = VMAS; i < pages; i++)
		memset(memory + i * PAGE, 0x80 + i - VMAS, PAGE);
	for (long i = 1; i < VMAS; i += 2)
		protect(memory + i * PAGE, 1, PROT_READ);
	for (long i = VMAS + 2; i < pages; i += 4)
		protect(memory + i * PAGE, 2, PROT_READ);
	has("ksm-vmas", memory, pages * PAGE);
}

static void ksm_vmas(void)
{
	hold_ksm_vmas(0);
}

static void part_with_one(int signal)
{
	(void)signal;
	memset(known->parts[find("ksm-few")].memory + (FEW_PAGES - 1) * PAGE, 0xff, PAGE);
}

static void ksm_few(void)
{
	char *memory = alone(FEW_VMAS * PAGE, MADV_MERGEABLE);

	for (long i = 0; i < FEW_PAGES; i++)
		memset(memory + i * PAGE, 0x70 + (i > 2) + (i > 4), PAGE);
	for (long i = 1; i < FEW_VMAS; i += 2)
		protect(memory + i * PAGE, 1, PROT_READ);
	signal(SIGUSR1, part_with_one);
	has("ksm-few", memory, FEW_VMAS * PAGE);
}

static void ksm_share(void)
{
	char *memory = alone(SHARED_PAGES * PAGE, MADV_MERGEABLE);

	memset(memory, 0x33, SHARED_PAGES * PAGE);
	has("ksm-share", memory, SHARED_PAGES * PAGE);
}

static void ksm_zero(void)
{
	char *memory = alone(ZERO_PAGES * PAGE, MADV_MERGEABLE);

	for (long i = 0; i < ZERO_PAGES; i++)
		((volatile char *)memory)[i * PAGE] = 0;
	has("ksm-zero", memory, ZERO_PAGES * PAGE);
}

static void fork_now(int signal)
{
	int number = find("ksm-fork");

	(void)signal;
	if (fork() == 0)
		has("ksm-forked", known->parts[number].memory, known->parts[number].bytes);
	// Both go back to their pause.
}

static void ksm_fork(void)
{
	size_t bytes = FORKED_PAGES * FORKED_COPIES * PAGE;
	char *memory = alone(bytes, MADV_MERGEABLE);

	for (long i = 0; i < FORKED_PAGES * FORKED_COPIES; i++)
		memset(memory + i * PAGE, 0x60 + i % FORKED_PAGES, PAGE);
	signal(SIGUSR1, fork_now);
	has("ksm-fork", memory, bytes);
}

static void fork_level(char *memory, int level)
{
	char name[] = "fork-0";
	int used;

	name[5] += level;
	// Each writes to fewer pages than the one it came from.
	touch(memory, (FORK_PAGES - 10 * level) * PAGE, PAGE);
	used = has(name, memory, FORK_PAGES * PAGE) + 1;
	if (level + 1 == FORKS)
		return;
	pid_t pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		fork_level(memory, level + 1);
		for (;;)
			pause();
	}
	while (known->used < used + FORKS - 1 - level)
		usleep(1000);
}

static void forks(void)
{
	fork_level(alone(FORK_PAGES * PAGE, 0), 0);
}

static void advice(void)
{
	char *memory = alone(ADVISED * PAGE, 0);

	touch(memory, ADVISED * PAGE, PAGE);
	for (long i = 1; i < ADVISED; i += 2)
		if (madvise(memory + i * PAGE, PAGE, MADV_SEQUENTIAL))
			fail("madvise: %s", strerror(errno));
	has("advice", memory, ADVISED * PAGE);
}

static void remapped(void)
{
	char *memory = alone(REMAPPED * PAGE, 0), *place = alone(REMAPPED * PAGE, 0);

	touch(memory, REMAPPED * PAGE, PAGE);
	for (long i = 0; i < REMAPPED; i++)
		if (mremap(memory + i * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + (REMAPPED - 1 - i) * PAGE) ==
		    MAP_FAILED)
			fail("mremap: %s", strerror(errno));
	has("remapped", place, REMAPPED * PAGE);
}

static void anon_vmas(void)
{
	char *memory = alone(VMAS * PAGE, 0);

	touch(memory, VMAS * PAGE, PAGE);
	for (long i = 1; i < VMAS; i += 2)
		protect(memory + i * PAGE, 1, PROT_READ);
	has("anon-vmas", memory, VMAS * PAGE);
}

static void huge(void)
{
	char *memory = map_memory(HUGE, MADV_HUGEPAGE);

	memory[0] = 1;
	has("huge", memory, HUGE);
	for (size_t at = PAGE; at < HUGE; at += 2 * PAGE)
		protect(memory + at, 1, PROT_READ);
}

static void merge(long pages)
{
	long merged = 0, scans, before;
	int seconds;

	if (!access(KSM "smart_scan", W_OK))
		set_number(KSM "smart_scan", 0);
	set_number(KSM "use_zero_pages", 1);
	set_number(KSM "sleep_millisecs", 1);
	set_number(KSM "pages_to_scan", 100000);
	before = number_of(KSM "full_scans");
	set_number(KSM "run", 1);
	for (seconds = 0; seconds < 240; seconds++) {
		sleep(1);
		merged = number_of(KSM "pages_shared") + number_of(KSM "pages_sharing");
		scans = number_of(KSM "full_scans") - before;
		if (merged == pages && scans >= 4)
			break;
	}
	set_number(KSM "run", 0);
	if (merged != pages)
		fail("KSM has merged %ld of %ld pages in %d s", merged, pages, seconds);
	say("    KSM has merged %ld pages in %d s", merged, seconds);
}

// To the other node, whichever it is on: its mappings are unmapped by one walk and mapped again by another.
static void migrate(const char *name, long page)
{
	int number = find(name), status = -1, moved = -1;
	pid_t pid = known->parts[number].pid;
	void *address = known->parts[number].memory + page * PAGE;

	if (syscall(SYS_move_pages, pid, 1L, &address, NULL, &status, 0) || status < 0)
		fail("where is page %ld of %s? %d %s", page, name, status, strerror(errno));
	int node = !status;
	if (syscall(SYS_move_pages, pid, 1L, &address, &node, &moved, MPOL_MF_MOVE_ALL) || moved != node)
		fail("page %ld of %s does not move: %d %s", page, name, moved, strerror(errno));
}

// What is migrated: `counted` with every VMA and every lock that its walks meet, then, without, all as they are timed.
static const struct {
	const char *name;
	long page;
} counted[] = {
	{ "ksm-vmas", 0 }, { "ksm-fork", 0 }, { "anon-vmas", 0 }, { "file-same", 0 },
}, timed[] = {
	{ "ksm-vmas", 0 },  { "ksm-share", 0 }, { "ksm-fork", 0 },  { "ksm-vmas", VMAS - 1 },
	{ "anon-vmas", 0 }, { "file-vmas", 0 }, { "file-same", 0 }, { "ksm-few", 0 },       { "ksm-few", FEW_PAGES - 2 },
};

static int has_symbol(const char *name)
{
	char line[256], found[128];
	FILE *symbols = fopen("/proc/kallsyms", "re");
	int has = 0;

	while (symbols && !has && fgets(line, sizeof(line), symbols))
		has = sscanf(line, "%*s %*s %127s", found) == 1 && !strcmp(found, name);
	if (symbols)
		fclose(symbols);
	return has;
}

__attribute__((format(printf, 1, 0))) static void add_probe(const char *format, const char *function)
{
	char line[128];

	snprintf(line, sizeof(line), format, function);
	append_file(TRACING "kprobe_events", line);
}

static void measure_walks(void)
{
	mkdir(TRACING, 0755);
	if (mount("tracefs", TRACING, "tracefs", 0, NULL) && errno != EBUSY)
		fail("cannot mount tracefs: %s", strerror(errno));
	if (access(TRACING "kprobe_events", W_OK)) {
		say("    no kprobes: walks are not measured");
		return;
	}
	// Before v5.14 try_to_unmap() did what try_to_migrate() does.
	const char *unmap = has_symbol("try_to_migrate") ? "try_to_migrate" : "try_to_unmap";
	add_probe("p:lab/unmap %s folio=$arg1\n", unmap);
	add_probe("r:lab/unmapped %s\n", unmap);
	append_file(TRACING "kprobe_events", "p:lab/walk rmap_walk folio=$arg1\n");
	append_file(TRACING "kprobe_events", "r:lab/walked rmap_walk\n");
	add_probe("p:count/one %s_one\n", unmap);
	append_file(TRACING "kprobe_events", "p:count/one_again remove_migration_pte\n");
	append_file(TRACING "kprobe_events", "p:count/let_go up_read\n");
	set_number(TRACING "buffer_size_kb", 8192);
	write_file(TRACING "events/count/filter", "common_pid == 1");
	write_file(TRACING "events/lab/enable", "1");
	write_file(TRACING "events/count/enable", "1");
	for (size_t i = 0; i < ARRAY_SIZE(counted); i++)
		migrate(counted[i].name, counted[i].page);
	write_file(TRACING "events/count/enable", "0");
	for (size_t i = 0; i < ARRAY_SIZE(timed); i++)
		migrate(timed[i].name, timed[i].page);
	write_file(TRACING "events/lab/enable", "0");
	truth_note(TRACING "trace", "/trace");
}

static void know(void)
{
	known = mmap(NULL, sizeof(*known), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (known == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
}

static void note_who_is_who(void)
{
	FILE *list = fopen("/tmp/rmap", "w");

	for (int i = 0; list && i < known->used; i++)
		fprintf(list, "%s %d %#lx %zu\n", known->parts[i].name, known->parts[i].pid,
			(unsigned long)known->parts[i].memory, known->parts[i].bytes);
	if (!list || fclose(list))
		fail("cannot write the list of processes");
	truth_note("/tmp/rmap", "/rmap");
}

void workload_rmap(void)
{
	char path[64];

	know();
	pid_t few = keep_child("ksm-few", ksm_few);
	merge(FEW_PAGES);
	kill(few, SIGUSR1);
	keep_child("ksm-vmas", ksm_vmas);
	for (int i = 0; i < SHARERS; i++)
		keep_child("ksm-share", ksm_share);
	keep_child("ksm-zero", ksm_zero);
	pid_t forking = keep_child("ksm-fork", ksm_fork);
	merge(FEW_PAGES - 1 + VMAS + SHARERS * SHARED_PAGES + FORKED_PAGES * FORKED_COPIES);
	int parts = known->used;
	kill(forking, SIGUSR1);
	while (known->used == parts)
		usleep(1000);
	keep_child("fork-0", forks);
	keep_child("advice", advice);
	keep_child("remapped", remapped);
	keep_child("huge", huge);
	keep_child("anon-vmas", anon_vmas);
	file_maps();
	set_number("/proc/sys/vm/max_map_count", MAX_MAP_COUNT);
	measure_walks();
	note_who_is_who();
	for (int i = 0; i < known->used; i++) {
		snprintf(path, sizeof(path), "/proc/%d/maps", known->parts[i].pid);
		truth_add(path);
		snprintf(path, sizeof(path), "/proc/%d/ksm_stat", known->parts[i].pid);
		if (!access(path, R_OK))
			truth_add(path);
	}
}

static void split_for_ever(int number)
{
	int part = find("ksm-vmas");
	char *pair = known->parts[part].memory + (VMAS + 2 * number) * PAGE;

	struct sched_param first = { .sched_priority = 1 };

	run_on_cpu(1);
	if (sched_setscheduler(0, SCHED_FIFO, &first))
		fail("SCHED_FIFO: %s", strerror(errno));
	has("splitter", known->parts[part].memory, known->parts[part].bytes);
	while (known->used < 2 + SPLITTERS)
		usleep(1000);
	for (;; usleep(50)) {  // they shall wait, not keep the machine busy
		protect(pair, 1, PROT_NONE);
		protect(pair, 1, number % 2 ? PROT_READ : PROT_READ | PROT_WRITE);
	}
}

static void fork_splitters(int signal)
{
	(void)signal;
	for (int i = 0; i < SPLITTERS; i++)
		if (fork() == 0)
			split_for_ever(i);
}

static void ksm_vmas_for_splitters(void)
{
	hold_ksm_vmas(SPLITTERS);
	signal(SIGUSR1, fork_splitters);
}

// It sleeps, and no signal would wake it; who holds the lock walks for milliseconds more.
static int a_splitter_is_queued(void)
{
	char path[32], text[512];

	for (int i = 0; i < known->used; i++) {
		if (strcmp(known->parts[i].name, "splitter"))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/stat", known->parts[i].pid);
		read_file(path, text, sizeof(text));
		const char *name_end = strrchr(text, ')');
		if (name_end && !strncmp(name_end, ") D", 3))
			return 1;
	}
	return 0;
}

void workload_rmap_stall(void)
{
	know();
	run_on_cpu(0);
	pid_t pid = keep_child("ksm-vmas", ksm_vmas_for_splitters);
	merge(VMAS);
	kill(pid, SIGUSR1);
	while (known->used < 1 + SPLITTERS)
		usleep(1000);
	if (fork() == 0) {
		run_on_cpu(1);
		has("walker", NULL, 0);
		for (;;)
			migrate("ksm-vmas", 0);
	}
	while (known->used < 2 + SPLITTERS)
		usleep(1000);
	note_who_is_who();
	freeze_when = a_splitter_is_queued;
}
