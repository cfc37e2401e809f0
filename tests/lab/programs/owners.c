// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": dma-bufs of the system heap and of a memfd, BPF maps and programs,
// rings of AIO, virtual machines, memory that is given to a device by VFIO, and buffers of a graphics card that is full, as far
// as the kernel has devices for them.
// Each process is called after what it has; what the kernel says of maps, programs and rings is on the console.
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#ifdef __x86_64__
#include <linux/kvm.h>
#include <linux/vfio.h>
#endif
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

	write_file("/proc/sys/net/core/optmem_max", "131072");  // of 6.1 less than the program
	must(of >= 0 && !setsockopt(of, SOL_SOCKET, SO_ATTACH_BPF, &fd, sizeof(fd)), "a socket takes no program");
	close(fd);
}

// Rings of AIO; as many bytes as this process then has mapped of them are on the console.
static void aio(void)
{
	unsigned long from, to, bytes = 0;
	aio_context_t one = 0, two = 0;
	char line[256];
	FILE *maps;

	must(!syscall(SYS_io_setup, 4000, &one) && !syscall(SYS_io_setup, 100, &two), "no AIO");
	maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/[aio]") && sscanf(line, "%lx-%lx", &from, &to) == 2)
			bytes += to - from;
	say("rings of AIO: %lu", bytes);
	fclose(maps);
}

#ifdef __x86_64__
#define STEP (2 * MIB)
#define CODE 0x800

// A virtual machine that writes a word in each 2 MiB of its memory: each has a table of the last level.
// mov %eax,(%edi); add $STEP,%edi; cmp %ecx,%edi; jb back; hlt
static const unsigned char code[] = { 0x89, 0x07, 0x81, 0xc7, 0x00, 0x00, 0x20, 0x00, 0x39, 0xcf, 0x72, 0xf4, 0xf4 };

static int machine(unsigned long bytes)
{
	int kvm = open("/dev/kvm", O_RDWR), vm = ioctl(kvm, KVM_CREATE_VM, 0), cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	char *memory = map_memory(bytes, MADV_NOHUGEPAGE);
	struct kvm_userspace_memory_region region = { .memory_size = bytes, .userspace_addr = (unsigned long)memory };
	long size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_segment flat = { .limit = ~0U, .present = 1, .s = 1, .db = 1, .g = 1, .type = 3, .selector = 16 };
	struct kvm_regs registers = { .rip = CODE, .rflags = 2, .rcx = bytes };
	struct kvm_sregs special;

	must(kvm >= 0 && vm >= 0 && cpu >= 0, "no virtual machine");
	struct kvm_run *run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
	must(run != MAP_FAILED && !ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "no memory of a virtual machine");
	memcpy(memory + CODE, code, sizeof(code));
	must(!ioctl(cpu, KVM_GET_SREGS, &special), "no registers");
	special.cs = special.ds = special.es = special.ss = flat;
	special.cs.type = 11;
	special.cs.selector = 8;
	special.cr0 |= 1;  // protected mode
	must(!ioctl(cpu, KVM_SET_SREGS, &special) && !ioctl(cpu, KVM_SET_REGS, &registers), "no registers");
	do
		must(!ioctl(cpu, KVM_RUN, 0) || errno == EINTR, "a virtual machine does not run");
	while (run->exit_reason == KVM_EXIT_INTR);
	if (run->exit_reason != KVM_EXIT_HLT)
		fail("a virtual machine stops for %u", run->exit_reason);
	return vm;
}

// linux/kvm.h of v6.8 and later, which is not among the kernel's headers of every distribution.
struct guest_memfd { unsigned long size, flags, reserved[6]; };
#define GUEST_MEMFD _IOWR(KVMIO, 0xd4, struct guest_memfd)
#define INIT_SHARED 3  // and GUEST_MEMFD_FLAG_MMAP
#define PRIVATE (3 * MIB)

// A file of memory for a machine, of kernels that have them for any machine; half of it is taken.
static void guest_file(int vm)
{
	struct guest_memfd wanted = { .size = 2 * PRIVATE, .flags = INIT_SHARED };
	int fd = ioctl(vm, GUEST_MEMFD, &wanted);

	if (fd >= 0 && !fallocate(fd, FALLOC_FL_KEEP_SIZE, MIB, PRIVATE))
		say("guest_memfd: %lu", PRIVATE);
	else
		say("no guest_memfd: %s", strerror(errno));
}

static void small(void)
{
	guest_file(machine(64 * MIB));
}

static void large(void)
{
	machine(512 * MIB);
}

#define CARD "/dev/dri/card0"
#define BUFFER (512UL << 10)
// include/uapi/drm/qxl_drm.h, which is not among the kernel's headers of every distribution.
struct qxl_alloc { unsigned size, handle; };
struct qxl_map { unsigned long offset; unsigned handle, pad; };
#define QXL_ALLOC _IOWR('d', 0x40, struct qxl_alloc)
#define QXL_MAP _IOWR('d', 0x41, struct qxl_map)

// More than the card has memory for: the oldest are moved out to the machine's.
static void graphics(void)
{
	int card = open(CARD, O_RDWR);

	must(card >= 0, "no graphics card");
	for (int count = 0; count < 48; count++) {
		struct qxl_alloc wanted = { .size = BUFFER };
		struct qxl_map map = {};
		char *memory;

		must(!ioctl(card, QXL_ALLOC, &wanted), "no buffer of the card");
		map.handle = wanted.handle;
		must(!ioctl(card, QXL_MAP, &map), "no place of a buffer");
		memory = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, card, map.offset);
		must(memory != MAP_FAILED, "a buffer cannot be mapped");
		touch(memory, BUFFER, PAGE);
		munmap(memory, BUFFER);
	}
}

#define NUMBER "0000:00:10.0"
#define DEVICE "/sys/bus/pci/devices/" NUMBER
#define GIVEN (3UL << 20)
#define RINGS (1UL << 20)

static void give(int container, char *memory, unsigned long bytes, unsigned long at)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map), .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (unsigned long)memory, .iova = at, .size = bytes,
	};

	must(!ioctl(container, VFIO_IOMMU_MAP_DMA, &map), "no memory for the device");
}

// Small pages, a huge one, and shared memory, of which a part is given twice.
static void device(void)
{
	char link[256] = "", path[64];
	int container = open("/dev/vfio/vfio", O_RDWR), group;
	char *small = map_memory(GIVEN, MADV_NOHUGEPAGE), *huge = map_memory(2 * HUGE, MADV_HUGEPAGE), *shared;
	int memory = memfd_create("rings", 0);

	must(readlink(DEVICE "/iommu_group", link, sizeof(link) - 1) > 0, "the device has no IOMMU");
	snprintf(path, sizeof(path), "/dev/vfio/%s", strrchr(link, '/') + 1);
	group = open(path, O_RDWR);
	must(container >= 0 && group >= 0, "no VFIO");
	must(!ioctl(group, VFIO_GROUP_SET_CONTAINER, &container), "no container");
	must(!ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU), "no IOMMU");
	must(memory >= 0 && !ftruncate(memory, RINGS), "no memfd");
	shared = mmap(NULL, RINGS, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	huge = (char *)(((unsigned long)huge + HUGE - 1) & -HUGE);
	touch(small, GIVEN, PAGE);
	touch(huge, HUGE, PAGE);
	touch(shared, RINGS, PAGE);
	give(container, small, GIVEN, 0);
	give(container, huge, HUGE, 1UL << 30);
	give(container, shared, RINGS, 2UL << 30);
	give(container, shared, RINGS / 2, 3UL << 30);
}
#endif

void __wrap_workload_sizes(void)
{
	if (!access("/dev/dma_heap/system", F_OK))
		keep_child("o-heap", heap);
	if (!access("/dev/udmabuf", F_OK))
		keep_child("o-memfd", of_memfd);
	keep_child("o-maps", maps);
	keep_child("o-opened", opened);
	keep_child("o-attached", attached);
	keep_child("o-aio", aio);
#ifdef __x86_64__
	if (!access("/dev/kvm", F_OK)) {
		keep_child("o-small", small);
		keep_child("o-large", large);
	}
	if (!access(DEVICE "/iommu_group", F_OK)) {
		write_file("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y");
		write_file(DEVICE "/driver_override", "vfio-pci");
		write_file("/sys/bus/pci/drivers_probe", NUMBER);
		keep_child("o-device", device);
	}
	if (!access(CARD, F_OK))
		keep_child("o-graphics", graphics);
#endif
}
