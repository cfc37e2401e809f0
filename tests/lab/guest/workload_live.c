// SPDX-License-Identifier: LGPL-2.1-or-later
// No trouble of its own: runs the program that a disk brings along, as root, while the machine is alive. The disk is an
// ext4 image whose /run is executed with the disk as its root; what it writes stays on the disk.
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void work(const char *program)
{
	char *const arguments[] = { (char *)program, "/main.py", NULL };
	char *const environment[] = { "PATH=/bin", "HOME=/", "COLUMNS=100", NULL };

	if (chroot("/disk") || chdir("/"))
		fail("chroot: %s", strerror(errno));
	execve(program, arguments, environment);
	fail("cannot run %s: %s", program, strerror(errno));
}

void workload_live(void)
{
	static const char *const binds[] = { "/proc", "/sys", "/dev" };
	char where[64];
	int status;

	mkdir("/disk", 0755);
	// The disk's driver may take a moment to find it.
	for (int tries = 0; mount("/dev/vda", "/disk", "ext4", 0, NULL); tries++) {
		if (tries == 50)
			fail("cannot mount the disk: %s", strerror(errno));
		usleep(100000);
	}
	for (size_t i = 0; i < ARRAY_SIZE(binds); i++) {
		strcpy(where, "/disk");
		strcat(where, binds[i]);
		if (mount(binds[i], where, NULL, MS_BIND | MS_REC, NULL))
			fail("cannot bind %s: %s", binds[i], strerror(errno));
	}
	pid_t pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0)
		work("/python");
	if (waitpid(pid, &status, 0) != pid)
		fail("waitpid: %s", strerror(errno));
	say("the disk's program ended with status %d", WEXITSTATUS(status));
	for (size_t i = 0; i < ARRAY_SIZE(binds); i++) {
		strcpy(where, "/disk");
		strcat(where, binds[i]);
		umount2(where, MNT_DETACH);
	}
	if (umount("/disk"))
		fail("cannot unmount the disk: %s", strerror(errno));
}
