// SPDX-License-Identifier: LGPL-2.1-or-later
// A workload of guest/init.c, in place of "sizes": a network device whose buffers for what it receives lie in swiotlb, as
// the kernel was told to use that always (swiotlb=force). How many slots are then in use is on the console.
#include "parts.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

void __wrap_workload_sizes(void)
{
	struct ifreq request = { .ifr_name = "eth0", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	write_file("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");  // nothing is sent
	must(fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &request), "eth0 does not come up");
	close(fd);
	sleep(1);
	say("slots in use: %ld", number_of("/sys/kernel/debug/swiotlb/io_tlb_used"));
}
