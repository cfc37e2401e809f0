// SPDX-License-Identifier: LGPL-2.1-or-later
// What the kernel says of itself, read without moving it: files are opened and read once beforehand, so that when it
// counts, seq_file has its buffers (fs/seq_file.c frees them on close only) and a reading allocates next to nothing.
// Two full readings, A and B, show how much the kernel moved by itself. The bytes stay in this process: the host takes
// them from the stopped machine, so nothing runs between the last reading and the freeze.
#include "guest.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/klog.h>
#include <unistd.h>

// A record: a line of HEADER bytes "FILE <set> <path> <length>", padded with blanks; the bytes. The last is "END".
#define HEADER 256

#define TRUTH_SIZE (64 << 20)
size_t truth_size = TRUTH_SIZE;
char truth[TRUTH_SIZE];
static char log_text[1 << 20];
static size_t used, noted;

// Big and slow ones first, the small ones that tests compare most closely last.
static const char *const patterns[] = {
	"/proc/uptime",
	"/proc/cmdline",
	"/proc/version",
	"/proc/iomem",
	"/sys/kernel/vmcoreinfo",
	"/sys/devices/system/node/online",
	"/sys/devices/system/node/node*/meminfo",
	"/sys/kernel/mm/transparent_hugepage/enabled",
	"/sys/kernel/mm/transparent_hugepage/defrag",
	"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
	"/sys/kernel/mm/hugepages/*/nr_hugepages",
	"/sys/kernel/mm/hugepages/*/free_hugepages",
	"/sys/kernel/mm/hugepages/*/resv_hugepages",
	"/sys/kernel/mm/hugepages/*/surplus_hugepages",
	"/sys/kernel/mm/ksm/*",
	"/proc/sys/vm/max_map_count",
	"/proc/sys/vm/min_free_kbytes",
	"/proc/sys/vm/watermark_scale_factor",
	"/sys/kernel/debug/page_owner_stacks/show_*",
	"/sys/kernel/debug/mmscope_lab",
	"/sys/kernel/debug/extfrag/unusable_index",
	"/sys/kernel/debug/extfrag/extfrag_index",
	"/proc/slabinfo",
	"/proc/sys/fs/dentry-state",
	"/proc/sys/fs/inode-nr",
	"/proc/meminfo",
	"/proc/vmstat",
	"/proc/zoneinfo",
	"/proc/pagetypeinfo",
	"/proc/buddyinfo",
};

// What the kernel composes when these are opened is what it reads out ever after: they are opened anew for each reading.
static const char *const composed_when_opened[] = {
	"/sys/kernel/debug/slab/*/alloc_traces",
	"/sys/kernel/debug/page_owner_stacks/count_threshold",  // nonseekable_open(): there is no going back to its start
};

static struct {
	char path[HEADER - 32];
	int fd;  // -1: opened for each reading
} files[1024];
static size_t nr_files;

static int open_truth(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open %s to record it", path);
	return fd;
}

static void add(const char *path, int fd)
{
	if (nr_files == ARRAY_SIZE(files) || strlen(path) >= sizeof(files[0].path))
		fail("too many files to record, or too long a path: %s", path);
	strcpy(files[nr_files].path, path);
	files[nr_files++].fd = fd;
}

void truth_add(const char *path)
{
	add(path, open_truth(path));
}

static void header(char set, const char *path, size_t length)
{
	memset(truth + used, ' ', HEADER);
	int end = sprintf(truth + used, "FILE %c %s %zu", set, path, length);
	truth[used + end] = ' ';
	truth[used + HEADER - 1] = '\n';
	used += HEADER;
}

static void append(char set, const char *path, const char *text, size_t length)
{
	if (used + length + 2 * HEADER > truth_size)
		fail("more to record than fits: %s", path);
	header(set, path, length);
	memcpy(truth + used, text, length);
	used += length;
}

static void read_set(char set)
{
	for (size_t i = 0; i < nr_files; i++) {
		char *text = truth + used + HEADER;
		size_t length = 0, room = truth_size - used - 2 * HEADER;
		// /proc/sys allocates as much as one asks for (fs/proc/proc_sysctl.c, proc_sys_call_handler): to ask for
		// megabytes there is an allocation of order 10, whose failure would cost the HighAtomic reserve.
		size_t chunk = strncmp(files[i].path, "/proc/sys/", 10) ? 64 << 10 : 1 << 10;
		ssize_t got = 0;
		int fd = files[i].fd < 0 ? open_truth(files[i].path) : files[i].fd;

		// From offset 0, seq_file shows the file anew.
		while (length + chunk <= room &&
		       (got = files[i].fd < 0 ? read(fd, text + length, chunk) : pread(fd, text + length, chunk, length)) > 0)
			length += got;
		if (got)
			fail("cannot record %s", files[i].path);
		if (files[i].fd < 0)
			close(fd);
		header(set, files[i].path, length);
		used += length;
	}
}

static void add_all(const char *pattern, int when_opened)
{
	glob_t found;

	if (glob(pattern, 0, NULL, &found))
		return;  // not on this kernel
	for (size_t i = 0; i < found.gl_pathc; i++)
		add(found.gl_pathv[i], when_opened ? -1 : open_truth(found.gl_pathv[i]));
	globfree(&found);
}

void truth_note(const char *path, const char *name)
{
	int fd = open_truth(path);
	size_t length = 0, room = TRUTH_SIZE / 4 - noted - 2 * HEADER;
	ssize_t got = -1;

	if (noted + 2 * HEADER < TRUTH_SIZE / 4)
		while (length < room && (got = read(fd, truth + noted + HEADER + length, room - length)) > 0)
			length += got;
	if (got)
		fail("cannot note %s", path);
	close(fd);
	used = noted;
	header('A', name, length);
	noted = used + length;
}

void truth_prepare(void)
{
	used = noted;
	// truth_record() opens it between folding the counters and reading them: its inode may need a new slab.
	close(open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC));
	for (size_t i = 0; i < ARRAY_SIZE(composed_when_opened); i++)
		add_all(composed_when_opened[i], 1);
	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
		add_all(patterns[i], 0);
	read_set('A');
	// No page fault while it is recorded: twice what was just read, the kernel log twice, and room to grow.
	size_t expected = noted + 2 * (used - noted + sizeof(log_text)) + (1 << 20);
	truth_size = expected < TRUTH_SIZE ? expected : TRUTH_SIZE;
	memset(truth + noted, 1, truth_size - noted);
	memset(log_text, 1, sizeof(log_text));
	used = noted;
}

void truth_record(void)
{
	// Folds the per-CPU differences of vmstat into the counters (mm/vmstat.c, vmstat_refresh).
	write_file("/proc/sys/vm/stat_refresh", "1");
	// show_mem() is the only text that has reserved_highatomic and free_highatomic.
	write_file("/proc/sysrq-trigger", "m");
	int length = klogctl(3, log_text, sizeof(log_text));
	if (length < 0)
		fail("cannot read the kernel log");
	append('A', "/dmesg", log_text, length);
	append('B', "/dmesg", log_text, length);
	read_set('A');
	read_set('B');
	memcpy(truth + used, "END\n", 5);
}
