// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": two processes that register memory with an RDMA device of rdma_rxe, which is
// made on the loopback device. Each process is called after what it has.
#include "parts.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define REGISTERED (3UL << 20)
#define RINGS (1UL << 20)
#define FEW (5 * PAGE)
#define LOCAL_WRITE 1  // IB_ACCESS_LOCAL_WRITE

static size_t add(char *message, size_t at, unsigned type, const char *text)
{
	struct nlattr attribute = { NLA_HDRLEN + strlen(text) + 1, type };

	memcpy(message + at, &attribute, sizeof(attribute));
	strcpy(message + at + NLA_HDRLEN, text);
	return at + NLA_ALIGN(attribute.nla_len);
}

// As "rdma link add rxe0 type rxe netdev lo" does.
static void make_device(void)
{
	char message[256] = {}, answer[256];
	struct nlmsghdr header = {
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK), .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
	};
	struct nlmsgerr result;
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);

	size_t size = add(message, NLMSG_HDRLEN, RDMA_NLDEV_ATTR_DEV_NAME, "rxe0");
	size = add(message, size, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	size = add(message, size, RDMA_NLDEV_ATTR_NDEV_NAME, "lo");
	header.nlmsg_len = size;
	memcpy(message, &header, sizeof(header));
	must(fd >= 0 && send(fd, message, size, 0) == (ssize_t)size, "no netlink of RDMA");
	must(recv(fd, answer, sizeof(answer), 0) >= (ssize_t)(NLMSG_HDRLEN + sizeof(result)), "no answer of RDMA");
	memcpy(&result, answer + NLMSG_HDRLEN, sizeof(result));
	errno = -result.error;
	must(!result.error, "no RDMA device");
	close(fd);
}

// A command as libibverbs writes it: the first word of what it is given is where its answer goes.
static void verb(int fd, unsigned number, void *given, size_t size, void *answer, size_t answer_size)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		char given[64];
	} request = { { number, (sizeof(request.header) + size) / 4, answer_size / 4 }, "" };
	unsigned long where = (unsigned long)answer;

	memcpy(request.given, given, size);
	memcpy(request.given, &where, sizeof(where));
	size += sizeof(request.header);
	must(write(fd, &request, size) == (ssize_t)size, "a verb fails");
}

static int domain, device;

static void open_device(void)
{
	struct ib_uverbs_get_context context = {};
	struct ib_uverbs_get_context_resp of_context;
	struct ib_uverbs_alloc_pd wanted = {};
	struct ib_uverbs_alloc_pd_resp made;

	device = open("/dev/infiniband/uverbs0", O_RDWR);
	must(device >= 0, "no uverbs0");
	verb(device, IB_USER_VERBS_CMD_GET_CONTEXT, &context, sizeof(context), &of_context, sizeof(of_context));
	verb(device, IB_USER_VERBS_CMD_ALLOC_PD, &wanted, sizeof(wanted), &made, sizeof(made));
	domain = made.pd_handle;
}

static void give(char *memory, size_t bytes)
{
	struct ib_uverbs_reg_mr wanted = {
		.start = (unsigned long)memory, .length = bytes, .hca_va = (unsigned long)memory, .pd_handle = domain,
		.access_flags = LOCAL_WRITE,
	};
	struct ib_uverbs_reg_mr_resp made;

	verb(device, IB_USER_VERBS_CMD_REG_MR, &wanted, sizeof(wanted), &made, sizeof(made));
}

// Small pages, a huge one, and shared memory, of which half is registered twice.
static void several(void)
{
	char *small = map_memory(REGISTERED, MADV_NOHUGEPAGE), *huge = map_memory(2 * HUGE, MADV_HUGEPAGE), *shared;
	int memory = memfd_create("rings", 0);

	must(memory >= 0 && !ftruncate(memory, RINGS), "no memfd");
	shared = mmap(NULL, RINGS, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	huge = (char *)(((unsigned long)huge + HUGE - 1) & -HUGE);
	touch(huge, HUGE, PAGE);
	open_device();
	give(small, REGISTERED);
	give(huge, HUGE);
	give(shared, RINGS);
	give(shared, RINGS / 2);
}

// A few pages that begin and end within one, and that are let go of by the process: they stay pinned.
static void few(void)
{
	char *memory = map_memory(FEW, MADV_NOHUGEPAGE);

	open_device();
	give(memory + PAGE / 2, FEW - PAGE);
	must(!munmap(memory, FEW), "munmap");
}

void __wrap_workload_sizes(void)
{
	make_device();
	keep_child("r-several", several);
	keep_child("r-few", few);
}
