// SPDX-License-Identifier: LGPL-2.1-or-later
// A guest whose module leaks 200 MiB of alloc_pages() in several orders, and percpu memory: the other ending of the lab's
// init, which records /proc/allocinfo as the last of all files. For the kernel with MEM_ALLOC_PROFILING. The numbers are
// in ../../tagged.py, too.
#define main lab_main
#include "../init.c"
#undef main

#define ROUNDS 50
#define PERCPU 2000

int main(void)
{
	mount_all();
	sethostname("lab-guest", 9);
	say("up");
	load_modules();
	prepare_to_freeze();
	own_memory();
	ask_module("compound", ROUNDS);
	ask_module("plain", ROUNDS);
	ask_module("percpu", PERCPU);

	run_on_cpu(0);
	settle();
	truth_prepare();
	truth_add("/proc/allocinfo");
	say("recording truth at %#lx size %zu", (unsigned long)truth, truth_size);
	sleep(1);  // the console comes to rest
	truth_record();
	freeze();
}
