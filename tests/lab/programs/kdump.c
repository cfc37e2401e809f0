// SPDX-License-Identifier: LGPL-2.1-or-later
// A /init that crashes its kernel and saves the dump, as a machine with kdump does. Booted first, it copies what the
// kernel says of itself to the first disk, loads /vmlinuz with /crash.initramfs as the crash kernel (kexec_file_load(2))
// and crashes by sysrq. Booted as the crash kernel, which has /proc/vmcore, it copies that to the second disk.
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/kexec.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK (1UL << 20)

static char chunk[CHUNK], zeros[CHUNK];

static void end(const char *what)
{
	printf("kdump: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
	sync();
	reboot(RB_AUTOBOOT);  // QEMU runs with -no-reboot: the machine ends
	for (;;)
		pause();
}

static int open_or_end(const char *path, int flags)
{
	int fd = open(path, flags);

	if (fd < 0)
		end(path);
	return fd;
}

static void write_all(int fd, const char *data, size_t length)
{
	for (ssize_t done; length; data += done, length -= done)
		if ((done = write(fd, data, length)) <= 0)
			end("cannot write");
}

// A file as a header of 256 bytes, "FILE <set> <path> <length>", and its text: what machine.unpack_truth() reads.
static void record(int disk, char set, const char *path)
{
	static char text[512 << 10];
	char header[256];
	size_t length = 0;
	ssize_t got;
	int fd = open_or_end(path, O_RDONLY);

	while ((got = read(fd, text + length, sizeof(text) - length)) > 0)
		length += got;
	close(fd);
	memset(header, ' ', sizeof(header));
	header[snprintf(header, sizeof(header) - 1, "FILE %c %s %zu", set, path, length)] = ' ';
	header[sizeof(header) - 1] = '\n';
	write_all(disk, header, sizeof(header));
	write_all(disk, text, length);
}

static void load_modules(void)
{
	glob_t found;

	if (glob("/modules/*.ko", 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open_or_end(found.gl_pathv[i], O_RDONLY);
		// Of a crash kernel there is no fw_cfg to be had.
		if (syscall(SYS_finit_module, fd, "", 0))
			printf("kdump: %s: %s\n", found.gl_pathv[i], strerror(errno));
		close(fd);
	}
	globfree(&found);
	errno = 0;
}

static void save(void)
{
	int core = open_or_end("/proc/vmcore", O_RDONLY), disk = open_or_end("/dev/vdb", O_WRONLY);
	unsigned long long size = 0;
	ssize_t got;

	printf("kdump: saving\n");
	for (; (got = read(core, chunk, CHUNK)) > 0; size += got) {
		if (!memcmp(chunk, zeros, got))
			lseek(disk, got, SEEK_CUR);  // the disk is a new file
		else
			write_all(disk, chunk, got);
	}
	if (got < 0)
		end("/proc/vmcore");
	fsync(disk);
	printf("kdump: saved %llu bytes\n", size);
	end("done");
}

// What loading modules and the crash kernel took is freed by workers, after RCU's grace periods.
static void settle(void)
{
	unsigned long before = 0, now;
	char text[256];

	for (int calm = 0, tries = 0; calm < 3 && tries < 60; tries++, before = now) {
		int fd = open_or_end("/proc/vmstat", O_RDONLY);
		ssize_t got = read(fd, text, sizeof(text) - 1);

		close(fd);
		text[got < 0 ? 0 : got] = 0;
		if (sscanf(text, "nr_free_pages %lu", &now) != 1)
			end("/proc/vmstat");
		calm = labs((long)(now - before)) <= 16 ? calm + 1 : 0;
		sleep(1);
	}
}

static void crash(void)
{
	static const char *const files[] = { "/proc/zoneinfo", "/proc/pagetypeinfo", "/proc/vmstat", "/proc/buddyinfo" };
	static const char line[] = "console=ttyS0 panic=-1 nr_cpus=1 reset_devices irqpoll";
	int kernel = open_or_end("/vmlinuz", O_RDONLY), initramfs = open_or_end("/crash.initramfs", O_RDONLY);
	int disk = open_or_end("/dev/vda", O_WRONLY), trigger;

	if (syscall(SYS_kexec_file_load, kernel, initramfs, sizeof(line), line, KEXEC_FILE_ON_CRASH))
		end("kexec_file_load");
	close(kernel);
	close(initramfs);
	trigger = open_or_end("/proc/sysrq-trigger", O_WRONLY);
	settle();
	for (char set = 'A'; set <= 'B'; set++)
		for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
			record(disk, set, files[i]);
	write_all(disk, "END\n", 4);
	fsync(disk);
	printf("kdump: crashing\n");
	if (write(trigger, "c", 1) != 1)
		end("sysrq");
}

int main(void)
{
	static const char *const mounts[][2] = { { "proc", "/proc" }, { "devtmpfs", "/dev" }, { "sysfs", "/sys" } };

	setvbuf(stdout, NULL, _IONBF, 0);
	for (size_t i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		mkdir(mounts[i][1], 0755);
		mount(mounts[i][0], mounts[i][1], mounts[i][0], 0, NULL);
	}
	errno = 0;
	load_modules();
	if (access("/proc/vmcore", F_OK) == 0)
		save();
	errno = 0;
	crash();
	end("still here");
}
