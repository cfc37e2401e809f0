// SPDX-License-Identifier: LGPL-2.1-or-later
// Page faults, and the page tables that are left to whoever ends the process:
//
//     faults dense COUNT [thp]      reads every 4 KiB: a table of entries for each 512 faults
//     faults sparse COUNT [thp]     reads every 2 MiB: a table for each fault
//     faults kept COUNT             the same, and keeps them for three seconds, for who looks now and then
//     faults breadth COUNT [PUDS]   reads so that upper tables are new, too: up to three tables a fault; see below
//     faults oom CGROUP [COMM [thp]]  as sparse, without end, in a memory cgroup that has a limit; see below
//     faults compact                has the kernel compact memory, of which every other page is in use
//     faults ping [COUNT]           large pings to itself, for which the network stack allocates atomically
//     faults reserve [BURSTS]       the same below the low watermark: then the kernel reserves pageblocks
//     faults walk COUNT [alone]     moves COUNT pages of an anon_vma with many VMAs, while VMAs come and go; see below
//     faults ksm VMAS               leaves a process with KSM pages of one, three and 256 mappings on an anon_vma of VMAS
//                                   VMAs, and prints its pid; see below
//     faults move PID COUNT         has it move each of these pages COUNT times
//
// All reads find the shared zero page, so that memory goes into tables alone; with `thp` the huge one.
#include <errno.h>
#include <fcntl.h>
#include <linux/icmp.h>
#include <linux/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define PGD_ENTRY (512UL << 30)  // what an entry of the PGD maps
#define PGDS 252UL               // of the 128 TiB that a process may map, what has neither the program nor its stack nor,
                                 // at random up to 1 TiB and 16 GiB below that, what else was mapped at its start

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static volatile const char *map_at(unsigned long address, size_t bytes, int thp)
{
	int where = address ? MAP_FIXED_NOREPLACE : 0;
	char *memory = mmap((void *)address, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | where, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	if (madvise(memory, bytes, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		fail("madvise");
	return memory;
}

static void read_every(size_t step, size_t count, int thp)
{
	volatile const char *memory = map_at(0, step * count, thp);

	for (size_t i = 0; i < count; i++)
		(void)memory[i * step];
}

// Each entry of the PGD first (three new tables), then PUDS of each PUD table (two), then of each PMD table (one). With all
// 512 the third part begins after 130,000 faults.
static void read_breadth_first(size_t count, size_t puds)
{
	volatile const char *memory = map_at(PGD_ENTRY, PGDS * PGD_ENTRY, 0);

	for (size_t pmd = 0; pmd < 512; pmd++)
		for (size_t pud = 0; pud < puds; pud++)
			for (size_t pgd = 0; pgd < PGDS; pgd++) {
				if (!count--)
					return;
				(void)memory[((pgd << 18) + (pud << 9) + pmd) << 21];
			}
}

static void write_file(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

static long kills(const char *cgroup)
{
	char path[256], text[512] = "";
	snprintf(path, sizeof(path), "%s/memory.events", cgroup);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		fail(path);
	close(fd);
	const char *at = strstr(text, "\noom_kill ");
	return at ? atol(at + 10) : 0;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

// Whether the kernel has said that the reaper is done. It returns at once.
static int reaped(int kmsg)
{
	char line[1024];
	ssize_t length;

	while ((length = read(kmsg, line, sizeof(line) - 1)) > 0) {
		line[length] = 0;
		if (strstr(line, "oom_reaper: reaped process"))
			return 1;
	}
	return 0;
}

// Takes a CPU for itself from when the victim is killed until the kernel says that the reaper is done. It is nobody's child:
// what it uses is not the command's.
static void keep_busy(const char *cgroup, long before, int kmsg)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid) {
		waitpid(pid, NULL, 0);
		return;
	}
	if (fork())
		_exit(0);
	for (double end = now() + 600; now() < end && kills(cgroup) == before;)
		usleep(1000);
	for (double end = now() + 120; now() < end && !reaped(kmsg);)
		;
	_exit(0);
}

// The victim may only run when nobody else wants its CPU; as soon as it is killed, somebody does, until the reaper is done.
// So it is still there when the reaper comes, two seconds after the kill, as on a machine that is overloaded.
static void be_killed(const char *cgroup, const char *comm, int thp)
{
	struct sched_param none = { 0 };
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
	int kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	if (kmsg < 0 || lseek(kmsg, 0, SEEK_END) < 0)
		fail("/dev/kmsg");
	long before = kills(cgroup);
	pid_t victim = fork();
	if (victim < 0)
		fail("fork");
	if (victim == 0) {
		if (sched_setscheduler(0, SCHED_IDLE, &none))
			fail("SCHED_IDLE");
		prctl(PR_SET_NAME, comm);
		write_file(cgroup, "cgroup.procs", "0");
		read_every(HUGE, 1 << 20, thp);
		exit(1);  // nobody killed it
	}
	keep_busy(cgroup, before, kmsg);
	int status;
	if (waitpid(victim, &status, 0) != victim || !WIFSIGNALED(status))
		exit(1);
}

static void compact(void)
{
	size_t bytes = 256UL << 20;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || madvise(memory, bytes, MADV_NOHUGEPAGE))
		fail("mmap");
	memset(memory, 1, bytes);
	for (size_t at = 0; at < bytes; at += 2 * PAGE)
		madvise(memory + at, PAGE, MADV_DONTNEED);
	write_file("/proc/sys/vm", "compact_memory", "1");
}

static int loopback(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo))
		fail("socket");
	return fd;
}

static void ping(int fd, int count)
{
	static char packet[60000];
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	((struct icmphdr *)packet)->type = ICMP_ECHO;
	((struct icmphdr *)packet)->checksum = htons(0xffff - (ICMP_ECHO << 8));
	for (int i = 0; i < count; i++)
		sendto(fd, packet, sizeof(packet), 0, (struct sockaddr *)&here, sizeof(here));
}

static long number_in(const char *path, const char *name)
{
	char text[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = read(fd, text, sizeof(text) - 1);

	close(fd);
	text[length < 0 ? 0 : length] = 0;
	const char *at = *name ? strstr(text, name) : text;
	return at ? atol(at + strlen(name)) : 0;
}

// Nobody reads the answers, which the kernel gives out of its receive path (GFP_ATOMIC) on the other CPU. Free memory is
// made to lie between the min and the low watermark: then each allocation takes the slow path, and none has to reclaim.
static void reserve(int bursts)
{
	struct icmp_filter only = { ~(1U << ICMP_ECHOREPLY) };
	int room = 256 << 20, fd = loopback();
	long total = number_in("/proc/meminfo", "MemTotal:"), ordinary = number_in("/proc/sys/vm/min_free_kbytes", "");
	char text[32];
	cpu_set_t cpus;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) ||
	    setsockopt(fd, SOL_RAW, ICMP_FILTER, &only, sizeof(only)))
		fail("setsockopt");
	write_file("/sys/class/net/lo/queues/rx-0", "rps_cpus", "2");
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	write_file("/proc/sys/vm", "watermark_scale_factor", "3000");
	snprintf(text, sizeof(text), "%ld", total * 75 / 100);
	write_file("/proc/sys/vm", "min_free_kbytes", text);
	for (int i = 0; i < bursts; i++) {
		ping(fd, 32);
		usleep(20000);
	}
	snprintf(text, sizeof(text), "%ld", ordinary);
	write_file("/proc/sys/vm", "min_free_kbytes", text);
	write_file("/proc/sys/vm", "watermark_scale_factor", "10");
}

// One anon_vma with many VMAs: protections that alternate keep them apart. Its pages go from node to node and back; each
// move walks the reverse map twice, to unmap the page and to map it again. Unless `alone`, a second process splits and
// joins VMAs meanwhile, for which it takes the lock to write.
static void walk(long count, int alone)
{
	size_t bytes = count * PAGE;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void **pages = calloc(count, sizeof(*pages));
	int *nodes = calloc(count, sizeof(*nodes)), *status = calloc(count, sizeof(*status));
	pid_t child = 0;
	double begun = 0;

	if (memory == MAP_FAILED || madvise(memory, bytes, MADV_NOHUGEPAGE) || !pages || !nodes || !status)
		fail("mmap");
	memset(memory, 1, bytes);
	for (long i = 0; i < count; i++)
		pages[i] = memory + i * PAGE;
	for (long i = 0; i < count && i < 1000; i += 2)
		mprotect(pages[i], PAGE, PROT_READ);
	if (!alone)
		child = fork();
	if (!alone && !child)
		for (;;)
			for (int flags = 0; flags < 2; flags++)
				mprotect(pages[count - 8], PAGE, flags ? PROT_READ : PROT_READ | PROT_WRITE);
	for (int turn = 0; turn < 4; turn++) {
		for (long i = 0; i < count; i++)
			nodes[i] = !(turn & 1);
		if (syscall(SYS_move_pages, 0, count, pages, nodes, status, 4) < 0)  // MPOL_MF_MOVE_ALL
			fail("move_pages");
		if (turn == 1)
			begun = now();  // the first turns find their way
	}
	printf("%ld pages moved in %.0f ns each\n", 2 * count, (now() - begun) / (2 * count) * 1e9);
	if (child > 0) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
}

static sigset_t usr1;  // blocked, to be waited for

static void settle(long sharing)
{
	while (number_in("/sys/kernel/mm/ksm/pages_sharing", "") != sharing)
		usleep(10000);
}

static void move(char *page)
{
	void *pages[] = { page };
	int node, status;

	if (syscall(SYS_move_pages, 0, 1L, pages, NULL, &status, 0) || status < 0)
		fail("where is the page");
	node = !status;
	if (syscall(SYS_move_pages, 0, 1L, pages, &node, &status, 4) || status != node)  // MPOL_MF_MOVE_ALL
		fail("move_pages");
}

// Each page is a VMA, on one anon_vma without a fork. Of the first ones, which alone are touched, KSM merges 256 that are
// alike, three and two, one of which is then written to. Moves them whenever it is asked to, and answers.
static void ksm_pages(long vmas)
{
	enum { MANY = 256, FEW = 3, PAIR = 2, ALIKE = MANY + FEW + PAIR };
	char *memory = mmap(NULL, vmas * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	siginfo_t asked = { .si_pid = getppid() };

	prctl(PR_SET_NAME, "split");
	if (memory == MAP_FAILED || madvise(memory, vmas * PAGE, MADV_NOHUGEPAGE) ||
	    madvise(memory, vmas * PAGE, MADV_MERGEABLE))
		fail("mmap");
	for (long i = 0; i < ALIKE; i++)
		memset(memory + i * PAGE, i < MANY ? 1 : i < MANY + FEW ? 2 : 3, PAGE);
	for (long i = 1; i < vmas; i += 2)
		if (mprotect(memory + i * PAGE, PAGE, PROT_READ))
			fail("mprotect");
	write_file("/sys/kernel/mm/ksm", "sleep_millisecs", "1");
	write_file("/sys/kernel/mm/ksm", "pages_to_scan", "10000");
	write_file("/sys/kernel/mm/ksm", "run", "1");
	settle(ALIKE - 3);
	memory[(ALIKE - 1) * PAGE] = 4;
	settle(ALIKE - 4);
	write_file("/sys/kernel/mm/ksm", "run", "0");
	for (int fd = 0; fd < 3; fd++)
		close(fd);  // who started it may wait for their end
	for (;;) {
		for (int turn = 0; turn < asked.si_value.sival_int; turn++) {
			move(memory);
			move(memory + MANY * PAGE);
			move(memory + (MANY + FEW) * PAGE);
		}
		kill(asked.si_pid, SIGUSR1);
		sigwaitinfo(&usr1, &asked);
	}
}

static void answered(pid_t pid)
{
	struct timespec longest = { .tv_sec = 300 };
	siginfo_t said;

	if (sigtimedwait(&usr1, &said, &longest) < 0 || said.si_pid != pid)
		fail("no answer");
}

static void ksm(long vmas)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid == 0)
		ksm_pages(vmas);
	answered(pid);
	printf("%d\n", pid);
}

static void ask_to_move(pid_t pid, int count)
{
	if (sigqueue(pid, SIGUSR1, (union sigval){ .sival_int = count }))
		fail("sigqueue");
	answered(pid);
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "", *more = count > 2 ? words[2] : "";
	int thp = count > 3 && !strcmp(words[3], "thp");

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	if (!strcmp(what, "dense"))
		read_every(PAGE, atol(more), thp);
	else if (!strcmp(what, "sparse"))
		read_every(HUGE, atol(more), thp);
	else if (!strcmp(what, "kept")) {
		read_every(HUGE, atol(more), 0);
		sleep(3);
	} else if (!strcmp(what, "breadth"))
		read_breadth_first(atol(more), count > 3 ? atol(words[3]) : 512);
	else if (!strcmp(what, "oom"))
		be_killed(more, count > 3 ? words[3] : "<img src=x>;\"",  // as hostile as fits
			  count > 4 && !strcmp(words[4], "thp"));
	else if (!strcmp(what, "compact"))
		compact();
	else if (!strcmp(what, "ping"))
		ping(loopback(), *more ? atol(more) : 50);
	else if (!strcmp(what, "reserve"))
		reserve(*more ? atol(more) : 30);
	else if (!strcmp(what, "walk"))
		walk(atol(more), count > 3 && !strcmp(words[3], "alone"));
	else if (!strcmp(what, "ksm"))
		ksm(atol(more));
	else if (!strcmp(what, "move"))
		ask_to_move(atoi(more), count > 3 ? atoi(words[3]) : 1);
	else
		return 2;
	return 0;
}
