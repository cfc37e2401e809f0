// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": tasks that wait, for what is known. A FUSE server stops while it owes
// an answer to an fsync, a read and a lookup, a fault waits for what the first writes, and others queue for the locks that
// these have; a page that nobody fills
// in keeps a writer in its pipe's lock; a cgroup is over its memory.high. Each task is called after what it does.
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNTED "/tmp/fuse"
#define GROUPS "/tmp/groups"
#define CONNECTIONS "/sys/fs/fuse/connections"
#define FILE_BYTES (1UL << 20)
#define DIRTY_BYTES (16 * PAGE)
#define HIGH "4194304"

static char request[(128 << 10) + 4096] __attribute__((aligned(8)));
static char data[128 << 10];

// The server: a directory with a file, /data, whose attributes are good for long.
static int device;

static void reply(const struct fuse_in_header *asked, int error, const void *body, size_t length)
{
	char answer[sizeof(struct fuse_out_header) + sizeof(data)];
	struct fuse_out_header head = { .len = sizeof(head) + length, .error = error, .unique = asked->unique };

	memcpy(answer, &head, sizeof(head));
	memcpy(answer + sizeof(head), body, length);
	if (write(device, answer, head.len) < 0 && errno != ENOENT)
		_exit(2);
}

static struct fuse_attr attributes(unsigned long node)
{
	return (struct fuse_attr){
		.ino = node, .size = node == 1 ? 0 : FILE_BYTES, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1,
		.blksize = PAGE,
	};
}

static void answer(const struct fuse_in_header *asked)
{
	const void *body = asked + 1;
	struct fuse_attr_out attr = { .attr_valid = 3600, .attr = attributes(asked->nodeid) };
	struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };

	switch (asked->opcode) {
	case FUSE_INIT: {
		const struct fuse_init_in *in = body;
		struct fuse_init_out out = {
			.major = 7, .minor = 31, .max_readahead = in->max_readahead, .max_background = 12,
			.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_WRITEBACK_CACHE | FUSE_PARALLEL_DIROPS,
			.congestion_threshold = 9, .max_write = 64 << 10, .time_gran = 1,
		};
		reply(asked, 0, &out, sizeof(out));
		return;
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = { .nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = attributes(2) };
		reply(asked, strcmp(body, "data") ? -ENOENT : 0, &out, strcmp(body, "data") ? 0 : sizeof(out));
		return;
	}
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		reply(asked, 0, &attr, sizeof(attr));
		return;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		reply(asked, 0, &opened, sizeof(opened));
		return;
	case FUSE_READ:
		reply(asked, 0, data, ((const struct fuse_read_in *)body)->size);
		return;
	case FUSE_WRITE: {
		raise(SIGSTOP);  // it has read what it will not answer
		struct fuse_write_out out = { .size = ((const struct fuse_write_in *)body)->size };
		reply(asked, 0, &out, sizeof(out));
		return;
	}
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_RELEASE:
		reply(asked, 0, NULL, 0);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		reply(asked, -ENOSYS, NULL, 0);
	}
}

static void mount_fuse(void)
{
	char options[96];

	device = open("/dev/fuse", O_RDWR);
	must(device >= 0, "no /dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
	must(!mount("labserver", MOUNTED, "fuse.lab", 0, options), "cannot mount");
}

static void serve(void)
{
	for (;;) {
		ssize_t got = read(device, request, sizeof(request));
		if (got < 0 && errno != EINTR && errno != ENOENT)
			_exit(3);
		if (got > 0)
			answer((const struct fuse_in_header *)request);
	}
}

// A process with dirty pages of the file, whose threads act when told.
static char *area;
static int file, turns[4][2];

static void sync_file(void)
{
	fsync(file);
}

static void write_area(void)
{
	*(volatile char *)area = 1;
}

static void unmap_area(void)
{
	munmap(area, DIRTY_BYTES);
}

static void map_more(void)
{
	mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static const struct {
	const char *comm;
	void (*work)(void);
} threads[] = { { "f-sync", sync_file }, { "f-fault", write_area }, { "f-unmap", unmap_area }, { "f-map", map_more } };

static pid_t numbers[ARRAY_SIZE(threads)];
static volatile pid_t *told;  // shared with the parent

static void *thread(void *number)
{
	size_t i = (size_t)number;
	char byte;

	prctl(PR_SET_NAME, threads[i].comm);
	told[i] = syscall(SYS_gettid);
	must(read(turns[i][0], &byte, 1) == 1, "no turn");
	threads[i].work();
	pause();
	return NULL;
}

static void dirty(void)
{
	pthread_t any;

	file = open(MOUNTED "/data", O_RDWR);
	must(file >= 0, "no file of the server");
	must(pwrite(file, data, DIRTY_BYTES, 0) == (ssize_t)DIRTY_BYTES, "cannot write");
	area = mmap(NULL, DIRTY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(area != MAP_FAILED, "cannot map");
	touch(area, DIRTY_BYTES, PAGE);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		must(!pthread_create(&any, NULL, thread, (void *)i), "no thread");
	for (;;)
		pause();
}

static int other_file;

static void read_file_of_server(void)
{
	pread(other_file, data, PAGE, FILE_BYTES / 2);
}

static void look(void)
{
	struct stat found;

	stat(MOUNTED "/one", &found);
}

static void make(void)
{
	mkdir(MOUNTED "/two", 0755);
}

static void look_again(void)
{
	struct stat found;

	stat(MOUNTED "/three", &found);
}

// A pipe, whose lock the first who writes keeps.
static int ends[2];

static void write_unfilled(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register wanted = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	char *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "no userfaultfd");
	wanted.range = (struct uffdio_range){ .start = (unsigned long)memory, .len = 16 * PAGE };
	must(!ioctl(fd, UFFDIO_REGISTER, &wanted), "cannot register");
	must(write(ends[1], memory, PAGE) < 0, "it was filled in");
}

static void write_pipe(void)
{
	must(write(ends[1], data, PAGE) < 0, "the pipe is free");
}

static void take_memory(void)
{
	write_file(GROUPS "/high/cgroup.procs", "0");
	for (;;) {
		char *memory = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		touch(memory, 64 * PAGE, PAGE);
	}
}

// It runs now and then, for a moment.
static char state_of_high[64];

static int high_sleeps(void)
{
	char text[512], *end;

	return read_file(state_of_high, text, sizeof(text)) > 0 && (end = strrchr(text, ')')) && end[2] == 'D';
}

void __wrap_workload_sizes(void)
{
	mkdir(MOUNTED, 0755);
	mkdir(GROUPS, 0755);
	told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(!mount("none", CONNECTIONS, "fusectl", 0, NULL), "no fusectl");
	mount_fuse();
	pid_t server = begin("fuse-server", serve);
	close(device);
	for (size_t i = 0; i < ARRAY_SIZE(turns); i++)
		must(!pipe(turns[i]), "pipe");
	must(!pipe(ends), "pipe");
	pid_t dirties = begin("fuse-dirty", dirty);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		while (!told[i])
			usleep(10000);
		numbers[i] = told[i];
		record(threads[i].comm, dirties, numbers[i]);
	}
	other_file = open(MOUNTED "/data", O_RDONLY);
	must(other_file >= 0, "no file of the server");
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		must(write(turns[i][1], "x", 1) == 1, "no turn");
		must(i || waitpid(server, NULL, WUNTRACED) == server, "the server does not stop");
		usleep(700000);
	}
	begin("f-read", read_file_of_server);
	begin("f-look", look);
	begin("f-make", make);
	begin("f-look-again", look_again);
	begin("u-write", write_unfilled);
	begin("u-queue", write_pipe);
	begin("u-queue-too", write_pipe);
	must(!mount("none", GROUPS, "cgroup2", 0, NULL), "no cgroups");
	write_file(GROUPS "/cgroup.subtree_control", "+memory");
	mkdir(GROUPS "/high", 0755);
	write_file(GROUPS "/high/memory.high", HIGH);
	pid_t high = begin("c-high", take_memory);
	snprintf(state_of_high, sizeof(state_of_high), "/proc/%d/stat", high);
	freeze_when = high_sleeps;
	sleep(12);
	char path[96];
	for (int minor = 0; minor < 256; minor++) {
		snprintf(path, sizeof(path), CONNECTIONS "/%d/waiting", minor);
		if (!access(path, R_OK)) {
			truth_note(path, "/stages/waiting");
			note_number("connection", minor);
		}
	}
	notes_as("/stages/stuck");
}
