// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": memory behind open files, in amounts that are known. Data that nobody
// reads in a unix, a UDP and a TCP socket, the rings of perf, io_uring, a packet socket and BPF, and buffers that are
// registered with io_uring, which pins them. Each process is called after what it has.
#include "parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define PERF_PAGES 64
#define PACKET_BLOCKS 16
#define PACKET_BLOCK (64UL << 10)
#define ENTRIES 4096
#define BPF_RING (1 * MIB)
#define PINNED (2 * MIB)

static char data[32 << 10];

static void loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	must(fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &request), "loopback does not come up");
	close(fd);
}

// As much as the socket takes, and no more than `most`.
static void fill(int fd, size_t most)
{
	int room = 8 * MIB;
	size_t sent = 0;
	ssize_t now = 1;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	for (; sent < most && now > 0; sent += now > 0 ? now : 0)
		now = send(fd, data, sizeof(data), MSG_DONTWAIT);
	say("sent %zu bytes", sent);
	must(sent >= 256 << 10, "a socket takes no data");
}

static void unix_socket(void)
{
	int ends[2];

	must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "no unix sockets");
	fill(ends[0], 4 * MIB);
	close(ends[0]);  // what was sent waits at the other end
}

static struct sockaddr_in bound(int fd)
{
	struct sockaddr_in self = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(self);
	int room = 8 * MIB;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	must(!bind(fd, (struct sockaddr *)&self, length), "cannot bind");
	getsockname(fd, (struct sockaddr *)&self, &length);
	return self;
}

static void udp(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in self = bound(fd);

	must(!connect(fd, (struct sockaddr *)&self, sizeof(self)), "cannot connect");
	fill(fd, 2 * MIB);
}

static void tcp(void)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in self = bound(listener);

	must(!listen(listener, 1), "cannot listen");
	must(!connect(fd, (struct sockaddr *)&self, sizeof(self)), "cannot connect");
	must(accept(listener, NULL, NULL) >= 0, "nobody connects");
	fill(fd, 4 * MIB);
}

static void perf(void)
{
	struct perf_event_attr wanted = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(wanted), .config = PERF_COUNT_SW_CPU_CLOCK, .disabled = 1,
	};
	int fd = syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0);

	must(fd >= 0, "no perf event");
	must(mmap(NULL, (1 + PERF_PAGES) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED, "no perf ring");
}

static void packet(void)
{
	struct tpacket_req wanted = {
		.tp_block_size = PACKET_BLOCK, .tp_block_nr = PACKET_BLOCKS, .tp_frame_size = 2048,
		.tp_frame_nr = PACKET_BLOCKS * PACKET_BLOCK / 2048,
	};
	int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));

	must(fd >= 0 && !setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &wanted, sizeof(wanted)), "no packet ring");
}

static void bpf_ring(void)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	union bpf_attr wanted = { .map_type = BPF_MAP_TYPE_RINGBUF, .max_entries = BPF_RING, .map_name = "lab_ring" };

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	must(syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof(wanted)) >= 0, "no BPF ring");
}

static int new_ring(unsigned entries)
{
	struct io_uring_params wanted = { 0 };
	int fd = syscall(SYS_io_uring_setup, entries, &wanted);

	must(fd >= 0, "no io_uring");
	return fd;
}

static void uring(void)
{
	new_ring(ENTRIES);
}

// Base pages and a huge page, pinned for good (FOLL_LONGTERM).
static void pins(void)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	char *small = map_memory(PINNED, MADV_NOHUGEPAGE), *large = map_memory(2 * HUGE, MADV_HUGEPAGE);
	int fd = new_ring(8);

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	large = (char *)(((unsigned long)large + HUGE - 1) & ~(HUGE - 1));
	touch(small, PINNED, PAGE);
	touch(large, HUGE, PAGE);
	struct iovec buffers[] = { { small, PINNED }, { large, HUGE } };
	must(!syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, buffers, 2), "cannot register buffers");
}

void __wrap_workload_sizes(void)
{
	loopback_up();
	truth_add("/proc/net/sockstat");
	keep_child("h-unix", unix_socket);
	keep_child("h-udp", udp);
	keep_child("h-tcp", tcp);
	keep_child("h-perf", perf);
	keep_child("h-packet", packet);
	keep_child("h-bpf", bpf_ring);
	keep_child("h-uring", uring);
	keep_child("h-pins", pins);
}
