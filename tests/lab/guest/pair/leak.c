// SPDX-License-Identifier: LGPL-2.1-or-later
// A guest that is frozen twice, with a leak of a known number of pages in between and nothing else: the other ending of
// the lab's init. For the kernel with page_owner=on and the lab's module. The numbers are in ../../pairs.py, too.
#define main lab_main
#include "../init.c"
#undef main

#define LEAKED_BEFORE 300
#define LEAKED_BETWEEN 4321

// QEMU stops every CPU there and then, takes the vmcore, and lets the guest go on behind the write.
static void freeze_and_go_on(const char *when)
{
	settle();
	say("freeze %s", when);
	sleep(1);  // the console comes to rest
	freeze_once();
}

int main(void)
{
	mount_all();
	sethostname("lab-guest", 9);
	say("up");
	load_modules();
	prepare_to_freeze();
	// What leaks has done so before; others hold more, and do not leak.
	ask_module("order3", 1000);
	ask_module("leak", LEAKED_BEFORE);
	freeze_and_go_on("before");
	ask_module("leak", LEAKED_BETWEEN);
	ask_module("churn", 2 * LEAKED_BETWEEN);
	freeze_and_go_on("after");
	for (;;)
		pause();
}
