// SPDX-License-Identifier: LGPL-2.1-or-later
// A /init that does what would free memory, one deed after the other. Before each, and behind the last, it says so and
// stops the machine (pvpanic), for who forecasts to read it; told to go on, it does the deed.
//
// /dev/vda is an ext4 file system with the files read and mapped, /dev/vdb is for swap.
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define HUGE (2 * MIB)
#define PVPANIC 0x505

static long page;

static void fail(const char *what)
{
	printf("deeds: FAILED: %s: %s\n", what, strerror(errno));
	sync();
	reboot(RB_AUTOBOOT);  // QEMU runs with -no-reboot: the machine ends
	for (;;)
		pause();
}

static void must(int failed, const char *what)
{
	if (failed)
		fail(what);
}

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	must(fd < 0 || write(fd, text, strlen(text)) < 0, path);
	close(fd);
}

// What is freed by RCU, and stacks and areas that are freed later, are free then.
static void freeze(const char *deed)
{
	usleep(500000);
	printf("deeds: before %s\n", deed);
	tcdrain(STDOUT_FILENO);
	outb(1, PVPANIC);
}

static char *memory(size_t bytes, int flags, int fd)
{
	char *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);

	must(found == MAP_FAILED, "mmap");
	return found;
}

static char *filled(size_t bytes, int flags, int fd)
{
	char *found = memory(bytes, flags, fd);

	if (flags & MAP_ANONYMOUS)
		must(madvise(found, bytes, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	for (size_t at = 0; at < bytes; at += page)
		memset(found + at, 1 + at / page % 251, page);
	return found;
}

// Pages of the file are read, not written.
static void touch(const char *there, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += page)
		(void)*(volatile const char *)(there + at);
}

static pid_t child(const char *comm, void (*work)(void))
{
	int done[2];
	char byte;

	must(pipe(done), "pipe");
	pid_t pid = fork();
	must(pid < 0, "fork");
	if (!pid) {
		prctl(PR_SET_NAME, comm);
		work();
		must(write(done[1], "", 1) != 1, comm);
		for (;;)
			pause();
	}
	must(read(done[0], &byte, 1) != 1, comm);
	close(done[0]);
	close(done[1]);
	return pid;
}

static void end(pid_t pid)
{
	must(kill(pid, SIGKILL) || waitpid(pid, NULL, 0) != pid, "kill");
}

// 24 MiB of its own, 4 huge pages, a page under each of 300 tables, 8 MiB that a child of it keeps, and 4 MiB of a file.
static void victim(void)
{
	filled(24 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	char *huge = memory(5 * HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	huge = (char *)(((uintptr_t)huge + HUGE - 1) & -HUGE);
	must(madvise(huge, 4 * HUGE, MADV_HUGEPAGE), "MADV_HUGEPAGE");
	memset(huge, 1, 4 * HUGE);
	char *sparse = memory(300 * HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	must(madvise(sparse, 300 * HUGE, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
	for (int at = 0; at < 300; at++)
		sparse[at * HUGE] = 1;
	int fd = open("/disk/mapped", O_RDONLY);
	char *file = mmap(NULL, 4 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	must(fd < 0 || file == MAP_FAILED, "/disk/mapped");
	touch(file, 4 * MIB);
}

// A process that another has started.
static void note(const char *path, pid_t pid)
{
	FILE *file = fopen(path, "w");

	must(pid < 0 || !file || fprintf(file, "%d", pid) < 0 || fclose(file), path);
}

static pid_t noted(const char *path)
{
	FILE *file = fopen(path, "r");
	pid_t pid;

	must(!file || fscanf(file, "%d", &pid) != 1, path);
	fclose(file);
	return pid;
}

static char *inherited;

static void heir(void)
{
	touch(inherited, 8 * MIB);
}

// Its child keeps what it has before; the rest is its own.
static void parent(void)
{
	inherited = filled(8 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	note("/tmp/heir", child("heir", heir));
	filled(16 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void swapped(void)
{
	char *out = filled(12 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	must(madvise(out, 12 * MIB, MADV_PAGEOUT), "MADV_PAGEOUT");
	filled(6 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void reader(void)
{
	int fd = open("/disk/mapped", O_RDONLY);
	char *file = mmap(NULL, 4 * MIB, PROT_READ, MAP_SHARED, fd, 0);

	must(fd < 0 || file == MAP_FAILED, "/disk/mapped");
	touch(file, 4 * MIB);
}

// Two huge pages in use, two reserved.
static void hugetlb(void)
{
	char *huge = mmap(NULL, 4 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	must(huge == MAP_FAILED, "MAP_HUGETLB");
	memset(huge, 1, 2 * HUGE);
}

// Two processes with one memory, 10 MiB of it: the end of one frees nothing.
static int beside(void *unused)
{
	while (pause())
		;
	return unused != NULL;
}

static void sharer(void)
{
	static char stack[64 << 10];

	filled(10 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	note("/tmp/beside", clone(beside, stack + sizeof(stack), CLONE_VM, NULL));
}

static int file_of(const char *path, size_t bytes)
{
	static char block[MIB];
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	memset(block, 1, sizeof(block));
	for (size_t done = 0; done < bytes; done += sizeof(block))
		must(write(fd, block, sizeof(block)) != sizeof(block), path);
	return fd;
}

static void read_all(const char *path)
{
	static char block[64 << 10];
	int fd = open(path, O_RDONLY);

	must(fd < 0, path);
	while (read(fd, block, sizeof(block)) > 0)
		;
	close(fd);
}

// Every second page of 128 MiB: nothing of it is contiguous, and all can be moved.
static void holes(void)
{
	char *found = filled(128 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	for (size_t at = 0; at < 128 * MIB; at += 2 * page)
		must(madvise(found + at, page, MADV_DONTNEED), "MADV_DONTNEED");
}

// Three of ten pages of 400 MiB, here and there.
static void sparser(void)
{
	char *found = filled(400 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	unsigned seed = 1;

	for (size_t at = 0; at < 400 * MIB; at += page)
		if (rand_r(&seed) % 10 < 3)
			must(madvise(found + at, page, MADV_DONTNEED), "MADV_DONTNEED");
}

static int pipe_ends[2], sockets[2], ring, map_fd;
static aio_context_t aio;

// Data that nobody reads, a page each.
static void fill_pipe(void)
{
	static char data[4096];

	must(pipe2(pipe_ends, O_NONBLOCK), "pipe");
	must(fcntl(pipe_ends[1], F_SETPIPE_SZ, 4 * MIB) < 0, "F_SETPIPE_SZ");
	while (write(pipe_ends[1], data, sizeof(data)) > 0)
		;
}

static void fill_sockets(void)
{
	static char data[32 << 10];
	int size = 8 * MIB;

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), "socketpair");
	must(setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)), "SO_SNDBUFFORCE");
	while (write(sockets[0], data, sizeof(data)) > 0)
		;
}

// A buffer that io_uring alone has: the process has unmapped it.
static void fill_ring(void)
{
	struct io_uring_params wanted = { 0 };
	char *buffer = filled(4 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct { char *base; size_t size; } of = { buffer, 4 * MIB };

	ring = syscall(SYS_io_uring_setup, 8192, &wanted);
	must(ring < 0, "io_uring_setup");
	must(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &of, 1), "IORING_REGISTER_BUFFERS");
	must(munmap(buffer, 4 * MIB), "munmap");
}

static void make_map(void)
{
	union bpf_attr wanted = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 64, .max_entries = 1 << 17 };
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	map_fd = syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof(wanted));
	must(map_fd < 0, "BPF_MAP_CREATE");
}

static int memfd_of(size_t bytes)
{
	static char block[MIB];
	int fd = memfd_create("kept", 0);

	must(fd < 0, "memfd_create");
	for (size_t done = 0; done < bytes; done += sizeof(block))
		must(write(fd, block, sizeof(block)) != sizeof(block), "memfd");
	return fd;
}

// A process in a cgroup of its own, which reads a file and ends: the cgroup has its pages.
static void read_in_cgroup(void)
{
	mkdir("/cgroup", 0755);
	must(mount("cgroup2", "/cgroup", "cgroup2", 0, NULL), "cgroup2");
	write_to("/cgroup/cgroup.subtree_control", "+memory");
	must(mkdir("/cgroup/batch", 0755), "/cgroup/batch");
	pid_t pid = fork();
	must(pid < 0, "fork");
	if (!pid) {
		write_to("/cgroup/batch/cgroup.procs", "0");
		read_all("/disk/batch");
		_exit(0);
	}
	must(waitpid(pid, NULL, 0) != pid, "waitpid");
}

// What mkswap(8) writes: union swap_header, include/linux/swap.h.
static void make_swap(const char *path, size_t bytes)
{
	char header[4096] = "";
	uint32_t info[] = { 1, bytes / page - 1, 0 };  // version, last_page, nr_badpages
	int fd = open(path, O_WRONLY);

	memcpy(header + 1024, info, sizeof(info));
	memcpy(header + sizeof(header) - 10, "SWAPSPACE2", 10);
	must(fd < 0 || write(fd, header, sizeof(header)) != sizeof(header) || fsync(fd), path);
	close(fd);
	must(swapon(path, 0), "swapon");
}

static void prepare(void)
{
	static const char *mounts[][2] = { { "proc", "/proc" }, { "sysfs", "/sys" }, { "devtmpfs", "/dev" }, { "tmpfs", "/tmp" } };
	glob_t found;

	for (int at = 0; at < 4; at++) {
		mkdir(mounts[at][1], 0755);
		must(mount(mounts[at][0], mounts[at][1], mounts[at][0], 0, NULL), mounts[at][1]);
	}
	must(glob("/modules/*.ko", 0, NULL, &found), "modules");
	for (size_t at = 0; at < found.gl_pathc; at++) {
		int fd = open(found.gl_pathv[at], O_RDONLY);
		must(syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST, found.gl_pathv[at]);
		close(fd);
	}
	mkdir("/disk", 0755);
	must(mount("/dev/vda", "/disk", "ext4", 0, NULL), "/dev/vda");
	make_swap("/dev/vdb", 32 * MIB);
	// What is dirty stays so.
	write_to("/proc/sys/vm/dirty_writeback_centisecs", "0");
	write_to("/proc/sys/vm/page-cluster", "0");
	// khugepaged collapses mapped files, too, and has a huge page in hand meanwhile.
	write_to("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "3600000");
	must(ioperm(PVPANIC, 1, 1), "ioperm");
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	page = sysconf(_SC_PAGESIZE);
	prepare();

	pid_t one = child("victim", victim), two = child("parent", parent), three = child("swapped", swapped);
	pid_t four = child("swapped-too", swapped), five = child("sharer", sharer);
	child("reader", reader);
	close(file_of("/tmp/closed", 20 * MIB));
	write_to("/proc/sys/vm/nr_hugepages", "16");
	child("hugetlb", hugetlb);
	int kept = file_of("/tmp/open", 6 * MIB);  // no child has it
	int memory_file = memfd_of(7 * MIB);
	mkdir("/more", 0755);
	must(mount("tmpfs", "/more", "tmpfs", 0, NULL), "/more");
	close(file_of("/more/one", 5 * MIB));
	close(file_of("/more/two", 4 * MIB));
	fill_pipe();
	fill_sockets();
	fill_ring();
	make_map();
	must(syscall(SYS_io_setup, 30000, &aio), "io_setup");
	read_in_cgroup();
	read_all("/disk/read");
	close(file_of("/disk/dirty", 3 * MIB));

	freeze("the end of victim");
	end(one);
	freeze("the end of parent");
	end(two);
	freeze("the end of heir");
	end(noted("/tmp/heir"));
	freeze("the end of swapped");
	end(three);
	freeze("the end of sharer");
	must(kill(noted("/tmp/beside"), SIGKILL), "kill");
	end(five);
	freeze("memory.reclaim of /batch");
	int reclaim = open("/cgroup/batch/memory.reclaim", O_WRONLY);  // not in 5.10
	if (reclaim >= 0 && write(reclaim, "1G", 2) < 0 && errno != EAGAIN)
		fail("memory.reclaim");
	close(reclaim);
	freeze("rmdir of /batch");
	must(rmdir("/cgroup/batch"), "rmdir");
	freeze("close of the pipe");
	close(pipe_ends[0]);
	close(pipe_ends[1]);
	freeze("close of the sockets");
	close(sockets[0]);
	close(sockets[1]);
	freeze("buffers unregistered");
	must(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0), "IORING_UNREGISTER_BUFFERS");
	freeze("close of the ring");
	close(ring);
	freeze("close of the map");
	close(map_fd);
	freeze("io_destroy");
	must(syscall(SYS_io_destroy, aio), "io_destroy");
	freeze("close of the memfd");
	close(memory_file);
	freeze("umount of /more");
	must(umount("/more"), "umount");
	freeze("drop_caches 1");
	write_to("/proc/sys/vm/drop_caches", "1");
	freeze("drop_caches 2");
	write_to("/proc/sys/vm/drop_caches", "2");
	freeze("reading again");
	read_all("/disk/read");
	freeze("drop_caches 3");
	write_to("/proc/sys/vm/drop_caches", "3");
	freeze("the removal of /tmp/closed");
	must(unlink("/tmp/closed"), "unlink");
	freeze("the removal of /tmp/open");
	must(unlink("/tmp/open"), "unlink");
	freeze("its last close");
	close(kept);
	freeze("nr_hugepages 10");
	write_to("/proc/sys/vm/nr_hugepages", "10");
	freeze("nr_hugepages 0");
	write_to("/proc/sys/vm/nr_hugepages", "0");
	freeze("swapoff");
	must(swapoff("/dev/vdb"), "swapoff");
	freeze("the end of swapped-too");
	end(four);
	freeze("making holes");
	pid_t six = child("holes", holes);
	freeze("compact_memory");
	write_to("/proc/sys/vm/compact_memory", "1");
	freeze("other holes");
	end(six);
	close(file_of("/disk/dirty too", 8 * MIB));
	child("sparser", sparser);
	freeze("compact_memory again");
	write_to("/proc/sys/vm/compact_memory", "1");
	freeze("nothing");
	for (;;)
		pause();
}
