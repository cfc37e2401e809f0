// SPDX-License-Identifier: LGPL-2.1-or-later
// The first and only program of a machine of any size, which it fills in proportion to that size: for each GiB, files,
// memory in pieces, and processes with page tables. Most of the memory is never touched, so that it takes no room where the
// machine's memory is a sparse file; what describes that memory is all there. With crowd.full=1 most of it is in use. With
// crowd.processes=N it is not filled: so many processes are forked, a hundredth of them by the first one, and the others by
// these.
//
// Says "crowd: ready" on the console when it is done, and waits to be frozen.
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
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

#define PAGE 4096L
#define HUGE (2L << 20)
// For each GiB.
#define FILES 500
#define PIECES 8  // files of PIECE_PAGES pages; once all are there, every second run of 2^0, 2^1, … 2^7 pages is freed
#define PIECE_PAGES 4096L
#define WHOLE 40  // such files of which nothing is freed: five eighths of each GiB
#define PROCESSES 4
#define TABLES 8  // PTE tables of a process, with a page each

// Of many processes.
#define WORKERS 99  // of each that the first one forks

static void say(const char *words, long number)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	dprintf(1, "crowd: [%ld s] %ld %s\n", (long)now.tv_sec, number, words);
}

static void fail(const char *what)
{
	dprintf(1, "crowd: FAILED: %s: %s\n", what, strerror(errno));
	sleep(1);
	reboot(RB_AUTOBOOT);  // QEMU runs with -no-reboot: the machine ends
	for (;;)
		pause();
}

static void set(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		fail(path);
	close(fd);
}

static void load_modules(void)
{
	glob_t found;

	if (glob("/modules/*.ko", 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
			fail(found.gl_pathv[i]);
		close(fd);
	}
}

static void make_files(long gib)
{
	char path[64];

	for (long i = 0; i < gib * FILES; i++) {
		if (i % 10000 == 0) {
			snprintf(path, sizeof(path), "/crowd/%ld", i / 10000);
			if (mkdir(path, 0755))
				fail(path);
		}
		snprintf(path, sizeof(path), "/crowd/%ld/%ld", i / 10000, i);
		int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
		if (fd < 0)
			fail(path);
		close(fd);
	}
}

// Page cache that nobody wrote to: tmpfs gives such pages without clearing them.
static int piece(long number)
{
	char path[64];

	snprintf(path, sizeof(path), "/crowd/piece-%ld", number);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		fail(path);
	return fd;
}

static void make_pieces(long gib, long whole)
{
	for (long i = 0; i < gib * (PIECES + whole); i++) {
		int fd = piece(i);
		if (fallocate(fd, 0, 0, PIECE_PAGES * PAGE))
			fail("fallocate");
		close(fd);
		if ((i + 1) % (64 * PIECES) == 0)
			say("files of memory", i + 1);
	}
	for (long i = 0; i < gib * PIECES; i++) {
		long run = PAGE << i % PIECES;
		int fd = piece(i);
		for (long at = 0; at < PIECE_PAGES * PAGE; at += 2 * run)
			if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, run))
				fail("punch a hole");
		close(fd);
		if ((i + 1) % (64 * PIECES) == 0)
			say("files in pieces", i + 1);
	}
}

static void sleep_on(void)
{
	for (;;)
		pause();
}

// A process and its workers; each writes to a page that it has from whoever forked it.
static void serve(long workers, int done)
{
	static char memory[PAGE];
	char name[16];

	for (long i = 0; i < workers; i++) {
		pid_t pid = fork();
		if (pid < 0)
			fail("fork");
		if (pid == 0) {
			snprintf(name, sizeof(name), "worker-%ld", i);
			prctl(PR_SET_NAME, name);
			memory[0] = 2;
			if (write(done, "", 1) != 1)
				fail("write");
			sleep_on();
		}
	}
	memory[0] = 3;
	if (write(done, "", 1) != 1)
		fail("write");
	sleep_on();
}

// A number that the kernel was booted with.
static long option(const char *line, const char *name, long otherwise)
{
	const char *given = strstr(line, name);

	return given ? atol(given + strlen(name)) : otherwise;
}

static void make_many_processes(long count)
{
	int done[2];
	char bytes[WORKERS + 1];
	long services = 0, made = 0;

	if (pipe(done))
		fail("pipe");
	while (made < count) {
		long each = count - made < WORKERS + 1 ? count - made : WORKERS + 1;
		pid_t pid = fork();
		if (pid < 0)
			fail("fork");
		if (pid == 0) {
			prctl(PR_SET_NAME, "service");
			serve(each - 1, done[1]);
		}
		for (long here = 0; here < each; ) {
			ssize_t got = read(done[0], bytes, each - here);
			if (got <= 0)
				fail("a process died");
			here += got;
		}
		made += each;
		if (++services % 50 == 0)
			say("processes so far", made);
	}
}

static void make_processes(long gib)
{
	int done[2];
	char byte;

	for (long i = 0; i < gib * PROCESSES; i++) {
		if (pipe2(done, O_CLOEXEC))
			fail("pipe");
		pid_t pid = fork();
		if (pid < 0)
			fail("fork");
		if (pid == 0) {
			prctl(PR_SET_NAME, "crowd");
			char *memory = mmap(NULL, TABLES * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
					    -1, 0);
			if (memory == MAP_FAILED || madvise(memory, TABLES * HUGE, MADV_NOHUGEPAGE))
				fail("mmap");
			for (int table = 0; table < TABLES; table++)
				memory[table * HUGE] = 1;
			for (int part = 1; part < TABLES; part += 2)  // each second one a VMA of its own
				mprotect(memory + part * HUGE, HUGE, PROT_READ);
			if (write(done[1], "", 1) != 1)
				fail("write");
			for (;;)
				pause();
		}
		if (read(done[0], &byte, 1) != 1)
			fail("a process died");
		close(done[0]);
		close(done[1]);
	}
}

int main(void)
{
	char line[4096] = "";

	mkdir("/proc", 0755);
	mkdir("/crowd", 0755);
	if (mount("proc", "/proc", "proc", 0, NULL) ||
	    mount("tmpfs", "/crowd", "tmpfs", 0, "size=100%,nr_inodes=0,huge=never"))
		fail("mount");
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, line, sizeof(line) - 1) < 0)
		fail("/proc/cmdline");
	close(fd);
	long gib = option(line, "crowd.gib=", 1);
	long many = option(line, "crowd.processes=", 0);
	// Gives every process its own PID up to a million of them.
	set("/proc/sys/kernel/pid_max", "1000000");
	set("/proc/sys/kernel/threads-max", "1000000");
	say("GiB, up", gib);
	load_modules();
	if (many) {
		make_many_processes(many);
		say("processes", many);
	} else {
		make_files(gib);
		say("files", gib * FILES);
		make_pieces(gib, option(line, "crowd.full=", 0) * WHOLE);
		make_processes(gib);
		say("processes", gib * PROCESSES);
	}
	sleep(2);  // freed by RCU
	dprintf(1, "crowd: ready\n");
	for (;;)
		pause();
}
