// SPDX-License-Identifier: LGPL-2.1-or-later
// Who owns the memory: known numbers of pages and objects, held by the lab's module (module/mmscope_lab.c), by processes
// with known names, and by files; a leak in steps; HighAtomic reserves; unmovable pages in movable pageblocks; pages that
// were migrated, and pages whose owner is gone. For a kernel with page_owner=on.
//
// The names of the processes try to forge a line of page_owner's text, which prints them as they are.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODULE "/sys/kernel/debug/mmscope_lab"
#define STACKS "/sys/kernel/debug/page_owner_stacks/"
#define CGROUPS "/tmp/cgroup"
#define LEAK_STEPS 8
#define LEAK_PAGES 250
#define KEEP_FREE_KB (50 << 10)
#define MPOL_MF_MOVE 2

// Anonymous pages of each process. Names are cut to 15 bytes by the kernel.
static const struct holder {
	const char *comm;
	int pages;
} holders[] = {
	{ "plain_holder", 5000 },
	{ "nl\nPFN 0x0 type", 301 },
	{ "\n\nPage allocat", 302 },
	{ "\nhandle: 4\nnr_", 303 },
	{ "a), ts 1 ns\nx(", 304 },
	{ "Page allocated ", 305 },
	{ "\xff\xfe\x80 bytes", 306 },
	{ "<img src=x>;\"", 307 },
	{ "", 308 },
};
static const struct holder *holder;

void ask_module(const char *job, long number)
{
	char command[64];

	snprintf(command, sizeof(command), "%s %ld", job, number);
	write_file(MODULE, command);
}

static char *hold(size_t pages)
{
	char *memory = map_memory((pages * PAGE + HUGE - 1) & -HUGE, MADV_NOHUGEPAGE);

	touch(memory, pages * PAGE, PAGE);
	return memory;
}

static void hold_pages(void)
{
	hold(holder->pages);
}

static void hold_huge_pages(void)
{
	touch(map_memory(8 * HUGE, MADV_HUGEPAGE), 8 * HUGE, PAGE);
}

static void *thread(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "a_thread");
	hold(400);
	for (;;)
		pause();
	return NULL;
}

// A thread has a pid of its own, and its process's tgid.
static void hold_in_thread(void)
{
	pthread_t id;

	if (pthread_create(&id, NULL, thread, NULL))
		fail("pthread_create: %s", strerror(errno));
	usleep(300000);
}

// Faulted in on node 1, moved to node 0.
static void hold_migrated(void)
{
	enum { COUNT = 600 };
	static void *pages[COUNT];
	static int nodes[COUNT], status[COUNT];

	run_on_cpu(1);
	char *memory = hold(COUNT);
	for (int i = 0; i < COUNT; i++)
		pages[i] = memory + i * PAGE;
	if (syscall(SYS_move_pages, 0, COUNT, pages, nodes, status, MPOL_MF_MOVE))
		fail("move_pages: %s", strerror(errno));
}

static void write_pages(const char *path, int pages)
{
	static char data[PAGE] = "x";
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);

	for (int i = 0; i < pages; i++)
		if (write(fd, data, PAGE) != (ssize_t)PAGE)
			fail("cannot write %s: %s", path, strerror(errno));
	close(fd);
}

static void write_file_pages(void)
{
	write_pages("/tmp/of a process that is gone", 700);
}

static void let_go(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void make_cgroup(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), CGROUPS "/%s", name);
	if (mkdir(path, 0755))
		fail("no cgroup %s: %s", path, strerror(errno));
}

// Moves this process, whose memory is charged from now on.
static void enter_cgroup(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), CGROUPS "/%s/cgroup.procs", name);
	write_file(path, "0");
}

static void in_plain_cgroup(void)
{
	enter_cgroup("lab");
	hold(900);
}

// The kernel refuses newlines in a cgroup's name, and nothing else.
#define HOSTILE_CGROUP "Charged to memcg x), ts 1 ns <b>"

static void in_hostile_cgroup(void)
{
	enter_cgroup(HOSTILE_CGROUP);
	hold(901);
}

static void in_offline_cgroup(void)
{
	enter_cgroup("gone");
	write_pages("/tmp/of a cgroup that is gone", 902);
}

static void cgroups(void)
{
	mkdir(CGROUPS, 0755);
	if (mount("cgroup2", CGROUPS, "cgroup2", 0, NULL))
		fail("no cgroups: %s", strerror(errno));
	write_file(CGROUPS "/cgroup.subtree_control", "+memory");
	make_cgroup("lab");
	make_cgroup(HOSTILE_CGROUP);
	make_cgroup("gone");
	keep_child("in_cgroup", in_plain_cgroup);
	keep_child("in_hostile_cg", in_hostile_cgroup);
	let_go(keep_child("in_gone_cgroup", in_offline_cgroup));
	if (rmdir(CGROUPS "/gone"))
		fail("cannot remove a cgroup: %s", strerror(errno));
}

// The number after `key` in a zone's part of /proc/zoneinfo.
static long zone_number(int node, const char *zone, const char *key)
{
	static char text[64 << 10];
	char heading[32];

	read_file("/proc/zoneinfo", text, sizeof(text));
	snprintf(heading, sizeof(heading), "Node %d, zone %8s", node, zone);
	char *at = strstr(text, heading);
	if (!at || !(at = strstr(at, key)))
		fail("no %s of %s in zoneinfo", key, heading);
	return atol(at + strlen(key));
}

// Of the zone that a CPU allocates from, free memory shall lie between the min and the low watermark: then every
// allocation takes the slow path, and none has to reclaim. Each node has one large zone.
static void reserves(void)
{
	const struct zone zones[] = { low_zone, high_zone };
	long ordinary_kb;
	char text[64];

	read_file("/proc/sys/vm/min_free_kbytes", text, sizeof(text));
	ordinary_kb = atol(text);
	write_file("/proc/sys/vm/watermark_scale_factor", "3000");
	for (int cpu = 0; cpu < 2; cpu++) {
		long free = zone_number(cpu, zones[cpu].name, "pages free "), managed = zone_number(cpu, zones[cpu].name, "managed ");
		run_on_cpu(cpu);
		set_number("/proc/sys/vm/min_free_kbytes", number_in("/proc/meminfo", "MemTotal") * free / managed * 85 / 100);
		ask_module("atomic", 100);
		for (int tries = 0; tries < 8 && pageblocks(zones[cpu], 3) < 2; tries++)
			ask_module("atomic", 32);  // as many as a pageblock has
		say("    %ld HighAtomic blocks in %s", pageblocks(zones[cpu], 3), zones[cpu].name);
	}
	set_number("/proc/sys/vm/min_free_kbytes", ordinary_kb);
	write_file("/proc/sys/vm/watermark_scale_factor", "10");
}

// Fills nearly all memory with movable pages and frees every fourth: what is unmovable has to go between them from now
// on, for a pageblock with so little free is not worth claiming (mm/page_alloc.c, try_to_claim_block).
static void fill_and_free(void)
{
	char *memory = map_memory(2UL << 30, MADV_NOHUGEPAGE);
	size_t filled = 0;

	// Only now: every write to transparent_hugepage/enabled raises it to khugepaged's wish.
	write_file("/proc/sys/vm/min_free_kbytes", "4096");
	while (number_in("/proc/meminfo", "MemFree") > KEEP_FREE_KB) {
		touch(memory + filled, 2 * HUGE, PAGE);
		filled += 2 * HUGE;
	}
	for (size_t at = 0; at < filled; at += 4 * PAGE)
		if (madvise(memory + at, PAGE, MADV_DONTNEED))
			fail("madvise: %s", strerror(errno));
	say("    filled %zu MiB, freed a quarter", filled >> 20);
}

// Movable pageblocks with pages in them that ask for another type: column 2 of the tables with that heading, one a node.
static long mixed_blocks(void)
{
	static char text[64 << 10];
	long sum = 0, movable;

	read_file("/proc/pagetypeinfo", text, sizeof(text));
	for (char *at = text; (at = strstr(at, "Number of mixed blocks")); )
		for (at = strchr(at, '\n') + 1; sscanf(at, "Node %*d, zone %*s %*d %ld", &movable) == 1; at = strchr(at, '\n') + 1)
			sum += movable;
	return sum;
}

// Once unmovable pageblocks are full, single pages of movable ones are taken (mm/page_alloc.c, __rmqueue_steal).
static void pollute(void)
{
	int tries = 0;

	do
		ask_module("fallback", 256);
	while (++tries < 60 && mixed_blocks() < 10);
	say("    %ld movable blocks are mixed", mixed_blocks());
}

// What needs whole blocks, and what does not.
static void hold_blocks(void)
{
	ask_module("order3", 64);
	ask_module("movable", 512);
	ask_module("vmalloc", 100);
	ask_module("slab_cache", 10000);
	ask_module("slab_small", 10000);
	ask_module("slab_large", 500);
}

static void hold_single_pages(void)
{
	ask_module("order0", 1000);
	ask_module("tree", 8);
	ask_module("churn", 5000);
}

static void leak(void)
{
	char name[64];

	for (int step = 0; step < LEAK_STEPS; step++) {
		ask_module("leak", LEAK_PAGES);
		ask_module("level", 100 + step * 37 % 5 * 50);
		if (!access(STACKS "show_handles", F_OK)) { // since v6.19
			snprintf(name, sizeof(name), "/series/%d/show_handles", step);
			truth_note(STACKS "show_handles", name);
		}
		snprintf(name, sizeof(name), "/series/%d/show_stacks", step);
		truth_note(STACKS "show_stacks", name);
		snprintf(name, sizeof(name), "/series/%d/mmscope_lab", step);
		truth_note(MODULE, name);
	}
}

static void processes(void)
{
	write_file("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	for (size_t i = 0; i < ARRAY_SIZE(holders); i++) {
		holder = &holders[i];
		keep_child(holder->comm, hold_pages);
	}
	keep_child("huge_holder", hold_huge_pages);
	keep_child("threads", hold_in_thread);
	keep_child("migrated", hold_migrated);
	let_go(keep_child("writer_gone", write_file_pages));
}

// Everything but what takes all memory.
void own_memory(void)
{
	hold_blocks();
	processes();
	cgroups();
	hold_single_pages();
}

void workload_owner(void)
{
	write_file("/proc/sys/vm/overcommit_memory", "1");
	reserves();
	hold_blocks();
	processes();
	cgroups();
	// To read a cache's alloc_traces takes large blocks (mm/slub.c, add_location), and what does not fit is left out.
	pid_t spare = keep_child("spare", hold_huge_pages);
	keep_child("filler", fill_and_free);
	hold_single_pages();
	leak();
	pollute();
	let_go(spare);
	say("    done: %ld pages leaked", (long)LEAK_STEPS * LEAK_PAGES);
}
