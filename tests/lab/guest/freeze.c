// SPDX-License-Identifier: LGPL-2.1-or-later
// QEMU's pvpanic device, docs/specs/pvpanic: bit 0 says "panicked", and -action panic=pause then stops all CPUs there and
// then. On x86 it is an I/O port; elsewhere a PCI device, whose only register is the first byte of its memory.
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)

#include <sys/io.h>

#define PORT 0x505

void prepare_to_freeze(void)
{
	if (ioperm(PORT, 1, 1))
		fail("ioperm: %s", strerror(errno));
}

void freeze_once(void)
{
	outb(1, PORT);
}

#else

#include <glob.h>
#include <sys/mman.h>

static volatile unsigned char *panicked;

// docs/specs/pci-ids of QEMU.
static int is_pvpanic(const char *folder)
{
	char path[128], vendor[16], device[16];

	snprintf(path, sizeof(path), "%s/vendor", folder);
	read_file(path, vendor, sizeof(vendor));
	snprintf(path, sizeof(path), "%s/device", folder);
	read_file(path, device, sizeof(device));
	return !strncmp(vendor, "0x1b36", 6) && !strncmp(device, "0x0011", 6);
}

void prepare_to_freeze(void)
{
	char path[128], text[128];
	glob_t found;
	size_t at = 0;

	if (glob("/sys/bus/pci/devices/*", 0, NULL, &found))
		fail("there is no PCI bus");
	while (at < found.gl_pathc && !is_pvpanic(found.gl_pathv[at]))
		at++;
	if (at == found.gl_pathc)
		fail("there is no device pvpanic-pci");
	snprintf(path, sizeof(path), "%s/enable", found.gl_pathv[at]);
	write_file(path, "1");
	// "start end flags" of the device's first memory: it may begin within a page.
	snprintf(path, sizeof(path), "%s/resource", found.gl_pathv[at]);
	read_file(path, text, sizeof(text));
	size_t page = sysconf(_SC_PAGESIZE), within = strtoul(text, NULL, 16) & (page - 1);
	snprintf(path, sizeof(path), "%s/resource0", found.gl_pathv[at]);
	int fd = open(path, O_RDWR | O_SYNC | O_CLOEXEC);
	char *memory = fd < 0 ? MAP_FAILED : mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("cannot map %s: %s", path, strerror(errno));
	panicked = (unsigned char *)memory + within;
	close(fd);
	globfree(&found);
}

void freeze_once(void)
{
	*panicked = 1;
}

#endif

int (*freeze_when)(void);

void freeze(void)
{
	while (freeze_when && !freeze_when())
		;
	for (;;)
		freeze_once();
}
