// SPDX-License-Identifier: LGPL-2.1-or-later
// The lab guest's first and only program: mounts, loads modules, runs the workload that the kernel command line names
// (lab.workload=NAME), records what the kernel says of itself, and freezes the machine.
//
// A new workload is one file workload_NAME.c, its prototype in guest.h and its line in `workloads` below.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const struct {
	const char *name;
	void (*run)(void);
} workloads[] = {
	{ "idle", NULL },
	{ "fragment", workload_fragment },
	{ "demo", workload_demo },
	{ "live", workload_live },
	{ "owner", workload_owner },
	{ "slab", workload_slab },
	{ "owner_slab", workload_owner },
	{ "owner_inputs", workload_owner_inputs },
	{ "tables", workload_tables },
	{ "sizes", workload_sizes },
	{ "many_tables", workload_many_tables },
	{ "vmemmap", workload_vmemmap },
	{ "vmemmap_boot", workload_vmemmap_boot },
	{ "dax", workload_dax },
	{ "kept", workload_kept },
	{ "ledger", workload_ledger },
	{ "cgroups", workload_cgroups },
	{ "storage", workload_storage },
	{ "ledger_poison", workload_ledger },
	{ "many_files", workload_many_files },
	{ "oom", workload_oom },
	{ "leak", workload_leak },
	{ "rmap", workload_rmap },
	{ "rmap_stall", workload_rmap_stall },
};

void say(const char *format, ...)
{
	char line[512];
	struct timespec now;
	va_list args;

	clock_gettime(CLOCK_BOOTTIME, &now);
	int length = snprintf(line, sizeof(line), "lab: [%3ld.%01ld] ", (long)now.tv_sec, now.tv_nsec / 100000000);
	va_start(args, format);
	length += vsnprintf(line + length, sizeof(line) - length - 1, format, args);
	va_end(args);
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	if (write(STDOUT_FILENO, line, length) < 0)
		return;
}

void fail(const char *format, ...)
{
	char text[400];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	say("FAILED: %s", text);
	sync();
	reboot(RB_AUTOBOOT);  // QEMU runs with -no-reboot: the machine ends
	for (;;)
		pause();
}

static int could_write(const char *path, const char *text, int flags)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags);
	int written = fd >= 0 && write(fd, text, strlen(text)) >= 0;

	if (fd >= 0)
		close(fd);
	return written;
}

int try_to_write(const char *path, const char *text)
{
	return could_write(path, text, 0);
}

static void write_text(const char *path, const char *text, int flags)
{
	if (!could_write(path, text, flags))
		fail("cannot write '%s' to %s: %s", text, path, strerror(errno));
}

void write_file(const char *path, const char *text)
{
	write_text(path, text, 0);
}

void append_file(const char *path, const char *text)
{
	write_text(path, text, O_APPEND);
}

long read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t got;

	text[0] = 0;
	if (fd < 0)
		return -1;
	while (length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0)
		length += got;
	close(fd);
	text[length] = 0;
	return length;
}

void run_on_cpu(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("cannot run on CPU %d: %s", cpu, strerror(errno));
}

pid_t keep_child(const char *comm, void (*work)(void))
{
	int done[2];
	char byte;

	if (pipe2(done, O_CLOEXEC))
		fail("pipe: %s", strerror(errno));
	pid_t pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_NAME, comm);
		work();
		if (write(done[1], "", 1) != 1)
			fail("the child %s cannot report", comm);
		close(done[0]);
		close(done[1]);
		for (;;)
			pause();
	}
	close(done[1]);
	if (read(done[0], &byte, 1) != 1)
		fail("the child %s died", comm);
	close(done[0]);
	return pid;
}

char *map_memory(size_t bytes, int advice)
{
	char *memory = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of %zu bytes: %s", bytes, strerror(errno));
	char *aligned = (char *)(((unsigned long)memory + HUGE - 1) & -HUGE);
	if (aligned > memory)
		munmap(memory, aligned - memory);
	munmap(aligned + bytes, memory + HUGE - aligned);
	// A kernel without transparent huge pages has none to forbid.
	if (madvise(aligned, bytes, advice) && !(errno == EINVAL && advice == MADV_NOHUGEPAGE))
		fail("madvise %d: %s", advice, strerror(errno));
	return aligned;
}

static void mount_all(void)
{
	static const struct {
		const char *type, *where;
	} mounts[] = {
		{ "proc", "/proc" },
		{ "sysfs", "/sys" },
		{ "devtmpfs", "/dev" },
		{ "debugfs", "/sys/kernel/debug" },
		{ "tmpfs", "/tmp" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
		mkdir(mounts[i].where, 0755);
		if (mount(mounts[i].type, mounts[i].where, mounts[i].type, 0, NULL))
			fail("cannot mount %s: %s", mounts[i].type, strerror(errno));
	}
}

static void load_modules(void)
{
	glob_t found;

	if (glob("/modules/*.ko", 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
			fail("cannot load %s: %s", found.gl_pathv[i], strerror(errno));
		close(fd);
	}
	globfree(&found);
}

static void run_workload(void)
{
	char line[4096], name[64] = "";

	read_file("/proc/cmdline", line, sizeof(line));
	char *given = strstr(line, "lab.workload=");
	if (given)
		sscanf(given, "lab.workload=%63s", name);
	for (size_t i = 0; i < ARRAY_SIZE(workloads); i++) {
		if (strcmp(workloads[i].name, name))
			continue;
		say("workload %s", name);
		if (workloads[i].run)
			workloads[i].run();
		return;
	}
	fail("no workload is called '%s'", name);
}

// Waits until the kernel's own threads (kswapd, kcompactd, khugepaged) have come to rest: no event of theirs in a second.
static void settle(void)
{
	static const char *const events[] = {
		"pageoutrun ", "compact_migrate_scanned ", "compact_free_scanned ", "pgmigrate_success ", "pgmigrate_fail ",
		"allocstall_movable ", "thp_collapse_alloc_failed ",
	};
	static char vmstat[64 << 10];
	long before = -1, now = 0;
	int seconds;

	for (seconds = 0; now != before && seconds < 30; seconds++) {
		sleep(1);
		before = now;
		now = 0;
		read_file("/proc/vmstat", vmstat, sizeof(vmstat));
		for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
			char *at = strstr(vmstat, events[i]);
			now += at ? atol(at + strlen(events[i])) : 0;
		}
	}
	say("the kernel's threads %s after %d s", now == before ? "are quiet" : "STILL WORK", seconds);
}

int main(void)
{
	if (getpid() != 1)
		return 1;
	signal(SIGPIPE, SIG_IGN);
	mount_all();
	sethostname("lab-guest", 9);
	say("up");
	load_modules();
	prepare_to_freeze();
	run_workload();

	// The address is good as long as this CPU runs this process: QEMU reads the bytes through CPU 0's page tables.
	run_on_cpu(0);
	settle();
	truth_prepare();
	say("recording truth at %#lx size %zu", (unsigned long)truth, truth_size);
	sleep(1);  // the console comes to rest
	truth_record();
	freeze();
}
