// SPDX-License-Identifier: LGPL-2.1-or-later
// A guest whose kernel keeps scratch areas for the next one (kho=on): the other ending of the lab's init, which records
// where /sys/kernel/debug/kho has them, and /proc/allocinfo as the last of all files.
#define main lab_main
#include "../init.c"
#undef main

int main(void)
{
	mount_all();
	sethostname("lab-guest", 9);
	say("up");
	load_modules();
	prepare_to_freeze();

	run_on_cpu(0);
	settle();
	truth_prepare();
	truth_add("/sys/kernel/debug/kho/out/scratch_phys");
	truth_add("/sys/kernel/debug/kho/out/scratch_len");
	truth_add("/proc/allocinfo");
	say("recording truth at %#lx size %zu", (unsigned long)truth, truth_size);
	sleep(1);  // the console comes to rest
	truth_record();
	freeze();
}
