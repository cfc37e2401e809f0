// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": dma-bufs of the system heap and of a memfd, BPF maps and programs. Each
// process is called after what it has; what the kernel says of maps and programs is on the console.
#include "../guest/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define HEAP (8 * MIB + 3 * PAGE)
#define SHARED (2 * MIB)
#define INSTRUCTIONS 4000

static void must(int good, const char *what)
{
	if (!good)
		fail("%s: %s", what, strerror(errno));
}

static void heap(void)
{
	struct dma_heap_allocation_data wanted = { .len = HEAP, .fd_flags = O_RDWR | O_CLOEXEC };
	int fd = open("/dev/dma_heap/system", O_RDWR);

	must(fd >= 0 && !ioctl(fd, DMA_HEAP_IOCTL_ALLOC, &wanted), "no memory of the system heap");
	must(!ioctl(wanted.fd, DMA_BUF_SET_NAME_A, "camera"), "a dma-buf takes no name");
	close(fd);
}

static void of_memfd(void)
{
	int memory = memfd_create("frames", MFD_ALLOW_SEALING), fd = open("/dev/udmabuf", O_RDWR);
	struct udmabuf_create wanted = { .memfd = memory, .flags = UDMABUF_FLAGS_CLOEXEC, .size = SHARED };

	must(memory >= 0 && !ftruncate(memory, SHARED), "no memfd");
	must(!fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), "no seal");
	must(fd >= 0 && ioctl(fd, UDMABUF_CREATE, &wanted) >= 0, "no udmabuf");
	close(memory);
	close(fd);
}

static int bpf(int command, union bpf_attr *wanted)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	int fd = syscall(SYS_bpf, command, wanted, sizeof(*wanted));
	must(fd >= 0, "no BPF");
	return fd;
}

// The line memlock of a map or a program.
static void say_memlock(const char *name, int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	say("memlock of %s: %ld", name, number_in(path, "memlock"));
}

static void map(const char *name, unsigned type, unsigned value, unsigned entries, unsigned flags)
{
	union bpf_attr wanted = { .map_type = type, .key_size = 4, .value_size = value, .max_entries = entries, .map_flags = flags };

	strcpy(wanted.map_name, name);
	say_memlock(name, bpf(BPF_MAP_CREATE, &wanted));
}

static void maps(void)
{
	map("an_array", BPF_MAP_TYPE_ARRAY, 64, 16384, 0);
	map("mapped_array", BPF_MAP_TYPE_ARRAY, 64, 16384, BPF_F_MMAPABLE);
	map("a_hash", BPF_MAP_TYPE_HASH, 248, 4096, 0);
	map("a_small_array", BPF_MAP_TYPE_ARRAY, 8, 16, 0);
}

static int program(const char *name)
{
	static struct bpf_insn code[INSTRUCTIONS];
	union bpf_attr wanted = {
		.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insns = (unsigned long)code, .insn_cnt = INSTRUCTIONS,
		.license = (unsigned long)"GPL",
	};

	for (int at = 0; at < INSTRUCTIONS; at++)  // r0 = 0; then return it
		code[at] = (struct bpf_insn){ .code = BPF_ALU64 | BPF_MOV | BPF_K };
	code[INSTRUCTIONS - 1].code = BPF_JMP | BPF_EXIT;
	strcpy(wanted.prog_name, name);
	int fd = bpf(BPF_PROG_LOAD, &wanted);
	say_memlock(name, fd);
	return fd;
}

static void opened(void)
{
	program("opened");
}

// That no process has open any more: a socket has it.
static void attached(void)
{
	int fd = program("attached"), of = socket(AF_UNIX, SOCK_DGRAM, 0);

	must(of >= 0 && !setsockopt(of, SOL_SOCKET, SO_ATTACH_BPF, &fd, sizeof(fd)), "a socket takes no program");
	close(fd);
}

void __wrap_workload_sizes(void)
{
	keep_child("o-heap", heap);
	keep_child("o-memfd", of_memfd);
	keep_child("o-maps", maps);
	keep_child("o-opened", opened);
	keep_child("o-attached", attached);
}
