// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": tasks that wait for what no task of theirs holds. An NFS server (version
// 3, of this machine's own) stops when it is given pages to write; a device (dm-linear over the disk, with an ext4) is suspended
// while pages of a file on it are dirty; and with the module of guest/reference a VMA has a reference that nobody has. Each
// task is called after what it does.
#include "parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/dm-ioctl.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define NFS "/tmp/nfs"
#define SLOW "/tmp/slow"
#define PORT 2049
#define DIRTY_BYTES (16 * PAGE)
#define REFERENCE "/sys/module/mmscope_reference/parameters/at"

static char data[64 << 10];

// ONC RPC over TCP: words of 32 bits, in network order, a record behind a word with its length.
static uint32_t call[(1 << 20) / 4], answer[1024];
static size_t said;
static int peer;

static void put(uint32_t word)
{
	answer[said++] = htonl(word);
}

static void put_long(uint64_t number)
{
	put(number >> 32);
	put(number);
}

static int get_all(void *into, size_t bytes)
{
	return recv(peer, into, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

enum { ROOT = 1, FILE_OF_ROOT = 2 };

static void put_handle(uint32_t number)
{
	put(4);
	put(number);
}

static void put_attributes(uint32_t number)
{
	put(number == ROOT ? 2 : 1);
	put(number == ROOT ? 0755 : 0644);
	put(1);
	put(0);
	put(0);
	put_long(number == ROOT ? PAGE : 1 << 20);
	put_long(number == ROOT ? PAGE : 1 << 20);
	put_long(0);  // device numbers
	put_long(1);  // of the file system
	put_long(number);
	for (int i = 0; i < 3; i++)
		put_long(1ULL << 32);
}

static void put_known_attributes(uint32_t number)
{
	put(1);
	put_attributes(number);
}

// Where a call's arguments begin: behind what it is about, credentials and a verifier.
static const uint32_t *arguments(void)
{
	const uint32_t *at = call + 6;

	for (int i = 0; i < 2; i++)
		at += 2 + (ntohl(at[1]) + 3) / 4;
	return at;
}

static void answer_mount(uint32_t procedure)
{
	if (procedure != 1)
		return;
	put(0);
	put_handle(ROOT);
	put(1);
	put(1);  // AUTH_UNIX
}

static void answer_nfs(uint32_t procedure)
{
	const uint32_t *given = arguments();
	uint32_t about = procedure ? ntohl(given[1]) : 0;

	if (procedure == 0)  // NULL
		return;
	if (procedure == 7) {  // WRITE
		prctl(PR_SET_NAME, "nfs-stopped");
		raise(SIGSTOP);
	}
	if (procedure == 3 && (ntohl(given[2]) != 4 || memcmp(given + 3, "data", 4))) {  // LOOKUP
		put(2);
		put(0);
		return;
	}
	put(0);
	switch (procedure) {
	case 1:  // GETATTR
		put_attributes(about);
		return;
	case 3:  // LOOKUP
		put_handle(FILE_OF_ROOT);
		put_known_attributes(FILE_OF_ROOT);
		put(0);
		return;
	case 4:  // ACCESS
		put_known_attributes(about);
		put(0x3f);
		return;
	case 18:  // FSSTAT
		put_known_attributes(about);
		for (int i = 0; i < 6; i++)
			put_long(1 << 30);
		put(0);
		return;
	case 19:  // FSINFO
		put_known_attributes(about);
		for (int i = 0; i < 2; i++) {
			put(64 << 10);
			put(64 << 10);
			put(4096);
		}
		put(4096);
		put_long(1ULL << 40);
		put(0);
		put(1);
		put(0x1b);
		return;
	case 20:  // PATHCONF
		put_known_attributes(about);
		for (int i = 0; i < 6; i++)
			put(i < 2 ? 255 : 1);
		return;
	default:
		fail("the NFS server is asked for %u", procedure);
	}
}

static void serve_one(void)
{
	uint32_t length;

	while (get_all(&length, 4)) {
		length = ntohl(length) & 0x7fffffff;
		if (length > sizeof(call) || !get_all(call, length))
			return;
		uint32_t program = ntohl(call[3]), procedure = ntohl(call[5]);
		said = 1;
		put(ntohl(call[0]));
		put(1);  // an answer
		put(0);
		put_long(0);  // without a verifier
		put(program == 100003 || program == 100005 ? 0 : 1);
		if (program == 100003)
			answer_nfs(procedure);
		else if (program == 100005)
			answer_mount(procedure);
		answer[0] = htonl(0x80000000 | (said - 1) * 4);
		if (send(peer, answer, said * 4, 0) < 0)
			return;
	}
}

static int door;

static void serve(void)
{
	for (;;) {
		peer = accept(door, NULL, NULL);
		must(peer >= 0, "accept");
		if (fork() == 0) {
			serve_one();
			_exit(0);
		}
		close(peer);
	}
}

static void mount_nfs(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP };

	door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(door >= 0 && !ioctl(door, SIOCSIFFLAGS, &loopback), "no loopback");
	must(!bind(door, (struct sockaddr *)&address, sizeof(address)) && !listen(door, 8), "cannot listen");
	begin("nfs-server", serve);
	must(!mount("labserver:/data", NFS, "nfs", 0,
		    "vers=3,proto=tcp,mountproto=tcp,port=2049,mountport=2049,nolock,noacl,hard,addr=127.0.0.1,mountaddr=127.0.0.1"),
	     "cannot mount NFS");
}

// A device over the whole disk, which is what is suspended: its bios wait in it, the file system is not frozen.
static int control;

static struct dm_ioctl *order(unsigned long what, uint32_t flags, const char *table, uint64_t sectors)
{
	static char request[4096] __attribute__((aligned(8)));
	struct dm_ioctl *dm = (struct dm_ioctl *)request;
	struct dm_target_spec *target = (struct dm_target_spec *)(dm + 1);

	memset(request, 0, sizeof(request));
	*dm = (struct dm_ioctl){ .version = { 4, 0, 0 }, .data_size = sizeof(request), .data_start = sizeof(*dm), .flags = flags,
				 .name = "slow" };
	if (table) {
		dm->target_count = 1;
		target->length = sectors;
		strcpy(target->target_type, "linear");
		strcpy((char *)(target + 1), table);
	}
	must(!ioctl(control, what, dm), "device mapper");
	return dm;
}

static void mount_device(void)
{
	char text[64], table[32];
	unsigned major, minor;

	must(read_file("/sys/block/vda/dev", text, sizeof(text)) > 0 && sscanf(text, "%u:%u", &major, &minor) == 2, "no disk");
	snprintf(table, sizeof(table), "%u:%u 0", major, minor);
	must(read_file("/sys/class/misc/device-mapper/dev", text, sizeof(text)) > 0, "no device mapper");
	must(sscanf(text, "%u:%u", &major, &minor) == 2 && !mknod("/tmp/control", S_IFCHR | 0600, makedev(major, minor)), "mknod");
	control = open("/tmp/control", O_RDWR | O_CLOEXEC);
	must(control >= 0, "no control");
	dev_t device = order(DM_DEV_CREATE, 0, NULL, 0)->dev;
	order(DM_TABLE_LOAD, 0, table, number_of("/sys/block/vda/size"));
	order(DM_DEV_SUSPEND, 0, NULL, 0);  // resumes: the table is taken
	must(!mknod("/tmp/dm", S_IFBLK | 0600, device) && !mount("/tmp/dm", SLOW, "ext4", 0, NULL), "cannot mount the device");
	note_number("dm", minor(device));
}

static int file;

static void sync_file(void)
{
	must(pwrite(file, data, DIRTY_BYTES, 0) == (ssize_t)DIRTY_BYTES, "cannot write");
	fsync(file);
}

static void write_file_again(void)
{
	must(pwrite(file, data, PAGE, 0) == (ssize_t)PAGE, "cannot write");
}

static void truncate_file(void)
{
	must(!ftruncate(file, PAGE), "cannot truncate");
}

static void look(void)
{
	struct stat found;

	stat(NFS "/other", &found);
}

static void read_far(void)
{
	must(pread(file, data, PAGE, 512 << 10) >= 0, "cannot read");
}

// It unmaps what has a reference; a thread of it then waits to map.
static void *map_more(void *none)
{
	(void)none;
	prctl(PR_SET_NAME, "v-map");
	usleep(700000);
	mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return NULL;
}

static void keep_and_unmap(void)
{
	char *area = mmap(NULL, DIRTY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char text[32];
	pthread_t any;

	must(area != MAP_FAILED, "cannot map");
	touch(area, DIRTY_BYTES, PAGE);
	snprintf(text, sizeof(text), "%lu", (unsigned long)area);
	write_file(REFERENCE, text);
	must(!pthread_create(&any, NULL, map_more, NULL), "no thread");
	munmap(area, DIRTY_BYTES);
}

// So that the device has its part in what was written lately, for some half-lives of 3 s.
static void write_much(void)
{
	int fd = open(SLOW "/much", O_RDWR | O_CREAT, 0644);

	for (int i = 0; i < 256; i++)
		must(fd >= 0 && write(fd, data, sizeof(data)) == (ssize_t)sizeof(data), "cannot write much");
	must(!syncfs(fd), "cannot sync");  // or its inodes were the oldest
}

static void record_all(const char *folders, const char *const *files)
{
	char path[300];
	glob_t found;

	must(!glob(folders, 0, NULL, &found), folders);
	for (size_t i = 0; i < found.gl_pathc; i++)
		for (const char *const *file = files; *file; file++) {
			snprintf(path, sizeof(path), "%s/%s", found.gl_pathv[i], *file);
			truth_add(path);
		}
	globfree(&found);
}

void __wrap_workload_sizes(void)
{
	// However slow the machine is: no page is written for its age, whose file would leave the list of dirty ones.
	write_file("/proc/sys/vm/dirty_expire_centisecs", "360000");
	mkdir(NFS, 0755);
	mkdir(SLOW, 0755);
	mount_nfs();
	file = open(NFS "/data", O_RDWR);
	must(file >= 0, "no file of the server");
	begin("n-sync", sync_file);
	begin("n-truncate", truncate_file);
	begin("n-write", write_file_again);
	begin("n-look", look);
	begin("n-read", read_far);
	mount_device();
	file = open(SLOW "/data", O_RDWR | O_CREAT, 0644);
	must(file >= 0 && pwrite(file, data, sizeof(data), 0) == (ssize_t)sizeof(data) && !fsync(file), "cannot write to the device");
	write_much();
	order(DM_DEV_SUSPEND, DM_SUSPEND_FLAG | DM_SKIP_LOCKFS_FLAG | DM_NOFLUSH_FLAG, NULL, 0);
	begin("d-sync", sync_file);
	begin("d-truncate", truncate_file);
	begin("d-write", write_file_again);
	if (!access(REFERENCE, W_OK))
		begin("v-unmap", keep_and_unmap);
	sleep(8);
	record_all("/sys/kernel/debug/bdi/*", (const char *const[]){ "stats", NULL });
	// How often a task has run is read before where it is: if that is all in the end, it is there still.
	record_all("/proc/[0-9]*/task/[0-9]*", (const char *const[]){ "status", "stack", NULL });
	notes_as("/stages/servers");
}
