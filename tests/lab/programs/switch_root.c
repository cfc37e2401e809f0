// SPDX-License-Identifier: LGPL-2.1-or-later
// A /init that loads the modules beside it, mounts the first disk, and leaves the machine to that disk's own init.
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void end(const char *what)
{
	printf("switch_root: %s: %s\n", what, strerror(errno));
	reboot(RB_AUTOBOOT);  // QEMU runs with -no-reboot: the machine ends
	for (;;)
		pause();
}

int main(void)
{
	glob_t found;

	setvbuf(stdout, NULL, _IONBF, 0);
	mkdir("/dev", 0755);
	mkdir("/root", 0755);
	if (mount("devtmpfs", "/dev", "devtmpfs", 0, NULL) && errno != EBUSY)
		end("/dev");
	if (!glob("/modules/*.ko", 0, NULL, &found))
		for (size_t i = 0; i < found.gl_pathc; i++) {
			int fd = open(found.gl_pathv[i], O_RDONLY);

			if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
				printf("switch_root: %s: %s\n", found.gl_pathv[i], strerror(errno));
			close(fd);
		}
	for (int tries = 0; mount("/dev/vda", "/root", "ext4", 0, NULL); tries++) {
		if (tries == 30)
			end("/dev/vda");
		sleep(1);
	}
	if (mount("/dev", "/root/dev", NULL, MS_MOVE, NULL) || chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) ||
	    chroot("."))
		end("/root");
	execl("/sbin/init", "init", NULL);
	end("/sbin/init");
}
