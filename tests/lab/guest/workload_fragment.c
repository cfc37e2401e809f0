// SPDX-License-Identifier: LGPL-2.1-or-later
// Free memory that nobody may use: a HighAtomic reserve that holds the free order-9 blocks, while Movable has none of
// them although a third of memory is free; THP faults and direct compaction that fail; all pageblock types; hugetlb
// pages, pages on the CPUs' free lists, pages that cannot be migrated.
//
// Facts relied on (7.2, mm/page_alloc.c): an atomic allocation of order > 0 that had to take the slow path turns the
// whole pageblock it got into HighAtomic, up to a cap of 1 % of the zone; direct reclaim that made "progress" and still
// found no page gives one such block back. So the reserve comes first, while whole blocks are free, and reclaim is
// never given anything to reclaim: no swap, no page cache, no unused dentries.
//
// With pages of 16 KiB a pageblock has 32 MiB. 1 % of a zone of this machine is less, so that there can be no reserve, and
// watermarks that are raised as here would end in OOM kills. All the rest is as with small pages, of fewer huge pages.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/icmp.h>
#include <linux/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SMALL_PAGES (PAGE == 4096)
#define PAGES_PER_BLOCK ((int)SLOTS)
#define BLOCK_ORDER __builtin_ctzl(SLOTS)
#define STEP (4UL << 20)  // of memory that is filled
#define NR_PFNS (2UL << 20)  // 8 GiB
#define HIGH_FRACTION "/proc/sys/vm/percpu_pagelist_high_fraction"
#define SCALE_FACTOR "/proc/sys/vm/watermark_scale_factor"
#define KEEP_FREE_KB ((SMALL_PAGES ? 30 : 64) << 10)  // the reserve and the watermarks: below them direct reclaim would begin

static char text[64];
static long ordinary_min_kb;

static long vmstat(const char *name)
{
	return number_in("/proc/vmstat", name);
}

static void say_state(const char *stage)
{
	long reserved[2], movable[2];

	for (int above = 0; above < 2; above++) {
		reserved[above] = column_of("/proc/pagetypeinfo", high_zone, "HighAtomic", BLOCK_ORDER + above);
		movable[above] = column_of("/proc/pagetypeinfo", high_zone, "Movable", BLOCK_ORDER + above);
	}
	say("%s: free %ld MiB, reserve node 1 %ld node 0 %ld blocks, order-%d+ free HighAtomic %ld+%ld Movable %ld+%ld", stage,
	    number_in("/proc/meminfo", "MemFree") >> 10, pageblocks(high_zone, 3), pageblocks(low_zone, 3), BLOCK_ORDER,
	    reserved[0], reserved[1], movable[0], movable[1]);
	say("    thp alloc %ld fallback %ld, compaction stall %ld success %ld fail %ld, allocstall %ld+%ld",
	    vmstat("thp_fault_alloc"), vmstat("thp_fault_fallback"), vmstat("compact_stall"), vmstat("compact_success"),
	    vmstat("compact_fail"), vmstat("allocstall_normal"), vmstat("allocstall_movable"));
}

static void loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
		fail("loopback does not come up: %s", strerror(errno));
	close(fd);
}

static void ping(int socket, int count)
{
	static char packet[60000];
	struct sockaddr_in self = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct icmphdr *echo = (struct icmphdr *)packet;

	echo->type = ICMP_ECHO;
	echo->checksum = (unsigned short)~ICMP_ECHO;  // the type is the only word that is not zero
	for (int sent = 0; sent < count; sent++)
		if (sendto(socket, packet, sizeof(packet), 0, (struct sockaddr *)&self, sizeof(self)) < 0)
			fail("ping: %s", strerror(errno));
	usleep(20000);  // the answers come from another CPU
}

// Atomic allocations: the kernel answers a ping out of its receive path (GFP_ATOMIC), and nobody reads the answers. The
// receive path runs on `cpu` and the sender elsewhere, or the sender's own allocations would keep that CPU's free lists
// stocked and the atomic ones would never get to the buddy system.
static void reserve(int cpu, struct zone zone)
{
	struct icmp_filter only = { ~(1U << ICMP_ECHOREPLY) };
	int room = 256 << 20, fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
	long now = 0, rounds = 0;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) ||
	    setsockopt(fd, SOL_RAW, ICMP_FILTER, &only, sizeof(only)))
		fail("no ICMP socket: %s", strerror(errno));
	write_file("/sys/class/net/lo/queues/rx-0/rps_cpus", cpu ? "2" : "1");
	run_on_cpu(!cpu);
	// First without any shortage: the answers take what is left in pageblocks that are in use, so that those which get
	// reserved next are empty otherwise, and come back whole.
	ping(fd, 400);
	// Free memory shall lie between the min and the low watermark: then every allocation takes the slow path, and none
	// has to reclaim.
	// Before v5.18 no more than 1000, and a quarter of the min watermark is more.
	int percent = try_to_write(SCALE_FACTOR, "3000") ? 75 : 80;
	set_number("/proc/sys/vm/min_free_kbytes", number_in("/proc/meminfo", "MemTotal") * percent / 100);
	for (int idle = 0; idle < 8 && rounds < 60; rounds++) {
		long before = now;
		ping(fd, 32);
		now = pageblocks(zone, 3);
		idle = now && now == before ? idle + 1 : 0;  // at the cap
	}
	set_number("/proc/sys/vm/min_free_kbytes", ordinary_min_kb);
	write_file(SCALE_FACTOR, "10");
	say("    %ld pings answered by CPU %d: %ld HighAtomic blocks in %s", 400 + 32 * rounds, cpu, now, zone.name);
	close(fd);
}

static void hugetlb(void)
{
	size_t pool = SMALL_PAGES ? 24 : 5, mapped = SMALL_PAGES ? 10 : 4;

	set_number("/proc/sys/vm/nr_hugepages", pool);
	char *memory = mmap(NULL, mapped * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		fail("no hugetlb pages: %s", strerror(errno));
	touch(memory, (mapped - 3) * HUGE, HUGE);  // three stay reserved
}

static void huge_faults_that_succeed(void)
{
	write_file("/sys/kernel/mm/transparent_hugepage/enabled", "madvise");
	// Every page is written to: a huge page of zeroes is "underused", and reclaim would split it (since 6.12).
	size_t kept = (SMALL_PAGES ? 12 : 2) * HUGE, returned = (SMALL_PAGES ? 8 : 2) * HUGE;
	touch(map_memory(kept, MADV_HUGEPAGE), kept, PAGE);
	char *given_back = map_memory(returned, MADV_HUGEPAGE);
	touch(given_back, returned, HUGE);
	munmap(given_back, returned);
	say_state("huge faults that succeed");
}

// Unmovable and Reclaimable allocations: pipes with data, inodes and dentries that are in use. Every other file goes
// again, so that such blocks have free pages too.
static void kernel_objects(int round)
{
	char path[64], data[PAGE] = "x";

	snprintf(path, sizeof(path), "/tmp/%d", round);
	mkdir(path, 0755);
	for (int i = 0; i < 600; i++) {
		snprintf(path, sizeof(path), "/tmp/%d/a file of the lab, %d", round, i);
		int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
		if (fd < 0 || (i % 8 == 0 && write(fd, data, sizeof(data)) < 0))
			fail("%s: %s", path, strerror(errno));
		close(fd);
	}
	for (int i = 0; i < 600; i += 2) {
		snprintf(path, sizeof(path), "/tmp/%d/a file of the lab, %d", round, i);
		unlink(path);
	}
	for (int i = 0; i < 16; i++) {
		int ends[2];
		if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
			fail("pipe: %s", strerror(errno));
		for (int j = 0; j < 1 + i % 8; j++)
			if (write(ends[1], data, sizeof(data)) < 0)
				fail("pipe: %s", strerror(errno));
	}
}

// A page that a pipe holds has a reference which no page table explains: compaction leaves it where it is.
static void pin(struct iovec *pages, int count)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) || fcntl(ends[1], F_SETPIPE_SZ, 256 * PAGE) < 0)
		fail("no pipe for 256 pages: %s", strerror(errno));
	for (int done = 0; done < count; done++)
		if (vmsplice(ends[1], pages + done, 1, 0) != (ssize_t)PAGE)
			fail("vmsplice: %s", strerror(errno));
}

// Faults in nearly all memory as base pages, with kernel objects in between. Returns how many bytes of `memory`.
static size_t fill(char *memory, size_t bytes)
{
	// 5.10 would kill us for what is left of that beside the reserve.
	long keep_free_kb = KEEP_FREE_KB + (access(HIGH_FRACTION, F_OK) ? 16 << 10 : 0);
	size_t filled = 0;
	int rounds = 0;

	// Only now: every write to transparent_hugepage/enabled raises it to khugepaged's wish, 67584 kB here.
	write_file("/proc/sys/vm/min_free_kbytes", "2048");
	while (filled < bytes && number_in("/proc/meminfo", "MemFree") > keep_free_kb) {
		touch(memory + filled, STEP, PAGE);
		filled += STEP;
		if (filled % (8 * STEP) == 0 && rounds < 24)
			kernel_objects(rounds++);
	}
	say("    filled %zu MiB, %d rounds of kernel objects", filled >> 20, rounds);
	return filled;
}

// Frees by physical address: in every pageblock every second chunk of 2^k pages, k going round all orders below that of a
// pageblock; pins one of the pages that stay in each half.
static void free_half(char *memory, size_t filled)
{
	static uint32_t page_at[NR_PFNS];  // page number in `memory` + 1
	size_t nr = filled / PAGE, nr_pins = 0, nr_freed = 0;
	static uint64_t entries[PAGES_PER_BLOCK];
	static struct iovec pins[256];
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	char *go = calloc(nr, 1);

	for (size_t page = 0; page < nr; page += PAGES_PER_BLOCK) {
		if (pread(pagemap, entries, sizeof(entries), ((unsigned long)memory / PAGE + page) * 8) != sizeof(entries))
			fail("pagemap: %s", strerror(errno));
		for (int i = 0; i < PAGES_PER_BLOCK; i++) {
			uint64_t pfn = entries[i] & ((1ULL << 55) - 1);
			if (entries[i] >> 63 && pfn < NR_PFNS)
				page_at[pfn] = page + i + 1;
		}
	}
	close(pagemap);
	for (size_t block = 0; block < NR_PFNS / PAGES_PER_BLOCK; block++) {
		uint32_t *pages = page_at + block * PAGES_PER_BLOCK;
		int order = block % BLOCK_ORDER, pinned[2] = { -1, -1 };

		for (int i = 0; i < PAGES_PER_BLOCK; i++) {
			if (!pages[i])
				continue;
			int kept = (i >> order) & 1, half = i / (PAGES_PER_BLOCK / 2);
			if (kept && pinned[half] < 0)
				pinned[half] = i;
			go[pages[i] - 1] = !kept;
		}
		if (pinned[0] < 0 && pinned[1] < 0)  // ours in part, and by chance nothing kept: one page is enough
			for (int i = 0; i < PAGES_PER_BLOCK && pinned[0] < 0; i++)
				if (pages[i])
					go[pages[i] - 1] = 0, pinned[0] = i;
		for (int half = 0; half < 2; half++) {
			if (pinned[half] < 0)
				continue;
			pins[nr_pins % 256] = (struct iovec){ memory + (pages[pinned[half]] - 1) * PAGE, PAGE };
			if (++nr_pins % 256 == 0)
				pin(pins, 256);
		}
	}
	pin(pins, nr_pins % 256);
	for (size_t page = 0; page < nr; page++) {
		size_t run = 0;
		while (page + run < nr && go[page + run])
			run++;
		if (run && madvise(memory + page * PAGE, run * PAGE, MADV_DONTNEED))
			fail("madvise: %s", strerror(errno));
		nr_freed += run;
		page += run;
	}
	say("    %zu pages pinned, %zu freed", nr_pins, nr_freed);
}

static void huge_faults_that_fail(void)
{
	char *memory = map_memory(340 * HUGE, MADV_HUGEPAGE);  // kept: so is the odd block that was left

	write_file("/sys/kernel/mm/transparent_hugepage/defrag", "never");
	touch(memory, 300 * HUGE, HUGE);
	say_state("huge faults that fail");
	if (!SMALL_PAGES)
		return;

	// Now with direct compaction. Free memory shall lie between the low and the high watermark: enough for compaction to
	// try, too little for reclaim to call another try worth it (mm/vmscan.c, compaction_ready), which would count as
	// progress and cost the reserve.
	long total_kb = number_in("/proc/meminfo", "MemTotal"), free_kb = number_in("/proc/meminfo", "MemFree");
	// In hundredths of a percent; before v5.18 no more than 1000.
	int percent = try_to_write(SCALE_FACTOR, "2000") ? 20 : 10;
	if (percent == 10)
		write_file(SCALE_FACTOR, "1000");
	set_number("/proc/sys/vm/min_free_kbytes", free_kb - total_kb * percent * 3 / 2 / 100);
	write_file("/sys/kernel/mm/transparent_hugepage/defrag", "always");
	touch(memory + 300 * HUGE, 40 * HUGE, HUGE);
	write_file("/sys/kernel/mm/transparent_hugepage/defrag", "madvise");
	write_file(SCALE_FACTOR, "10");
	say_state("direct compaction");
}

// Pages that go back to the free lists of each CPU rather than to the buddy system.
static void cpu_lists(void)
{
	for (int cpu = 0; cpu < 2; cpu++) {
		run_on_cpu(cpu);
		char *memory = map_memory(HUGE, MADV_NOHUGEPAGE);
		touch(memory, 200 * PAGE, PAGE);
		munmap(memory, HUGE);
	}
}

static void hold_memory(void)
{
	hugetlb();
	huge_faults_that_succeed();
	run_on_cpu(1);
	char *memory = map_memory(2UL << 30, MADV_NOHUGEPAGE);
	free_half(memory, fill(memory, 2UL << 30));
	say_state("fill and free");
	for (int round = 100; round < 104; round++)
		kernel_objects(round);
	huge_faults_that_fail();
}

// Who holds the memory.
static const char *holder = "<img src=x>;\"";

void workload_fragment(void)
{
	struct rlimit files = { 65536, 65536 };

	setrlimit(RLIMIT_NOFILE, &files);
	read_file("/proc/sys/vm/min_free_kbytes", text, sizeof(text));
	ordinary_min_kb = atol(text);
	write_file("/proc/sys/vm/overcommit_memory", "1");
	write_file("/proc/sys/vm/compaction_proactiveness", "0");
	// khugepaged would collapse what the workload spread out, and its failing direct reclaim would cost the reserve.
	write_file("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "600000");
	write_file("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
	write_file("/proc/sys/vm/drop_caches", "3");
	// The CPUs' lists grow with the watermarks, up to an eighth of a zone; what lies there would be out of reach.
	// Before v5.14 they do not.
	if (!access(HIGH_FRACTION, W_OK))
		write_file(HIGH_FRACTION, "1000");
	loopback_up();
	if (SMALL_PAGES) {
		reserve(1, high_zone);
		reserve(0, low_zone);
		sleep(1);  // the last buffers are freed by RCU
		say_state("reserve");
	}
	keep_child(holder, hold_memory);
	set_number("/proc/sys/vm/min_free_kbytes", ordinary_min_kb);
	if (!access(HIGH_FRACTION, W_OK))
		write_file(HIGH_FRACTION, "0");
	cpu_lists();
	say_state("done");
	// A capture without what it is for is worse than none: it would be kept.
	if (SMALL_PAGES && column_of("/proc/pagetypeinfo", high_zone, "HighAtomic", 9) + column_of("/proc/pagetypeinfo", high_zone, "HighAtomic", 10) == 0)
		fail("the HighAtomic reserve has no free block of order 9: boot again, and if it stays so, see reserve()");
}

// The same, held by what a reader of the demo's report expects.
void workload_demo(void)
{
	holder = "database";
	workload_fragment();
}
