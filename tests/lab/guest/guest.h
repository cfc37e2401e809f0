// SPDX-License-Identifier: LGPL-2.1-or-later
// What the parts of the guest's /init share: words on the console, files in one line, children that stay, the truth.
#ifndef GUEST_H
#define GUEST_H

#include <stddef.h>
#include <sys/types.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
// For a kernel with larger pages the compiler is told another PAGE.
#ifndef PAGE
#define PAGE 4096UL
#endif
#define SLOTS (PAGE / 8)     // of a page table
#define HUGE (PAGE * SLOTS)  // what a PMD maps

// init.c
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);            // "lab: …" on the console
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...);  // says it and ends the machine
void write_file(const char *path, const char *text);
int try_to_write(const char *path, const char *text);  // whether it could
void append_file(const char *path, const char *text);
long read_file(const char *path, char *text, size_t size);  // -1 if it cannot be had; always ends in NUL
void run_on_cpu(int cpu);
pid_t keep_child(const char *comm, void (*work)(void));  // waits until `work` is done; the child then pauses for good
char *map_memory(size_t bytes, int advice);              // anonymous, private; not touched

// freeze.c
void prepare_to_freeze(void);
void freeze_once(void);  // the machine may be let go on behind it
extern int (*freeze_when)(void);  // a workload's: whether the moment has come, asked all the time until it has
__attribute__((noreturn)) void freeze(void);

// numbers.c
long number_in(const char *path, const char *key);  // of the line that starts with `key`; -1 if there is none
long number_of(const char *path);  // the file's one number
void set_number(const char *path, long value);
// A zone of a node; the machine has two with memory of the size that a workload needs.
struct zone {
	int node;
	const char *name;
};
extern const struct zone low_zone, high_zone;
// Number `column` of the first line of /proc/pagetypeinfo or buddyinfo about `zone` that has `part` in it.
long column_of(const char *path, struct zone zone, const char *part, int column);
long pageblocks(struct zone zone, int migratetype);  // of a type; 3 is HighAtomic
void touch(char *memory, size_t bytes, size_t step);

// truth.c
void truth_add(const char *path);  // one more file to record, beside those always recorded
void truth_note(const char *path, const char *name);  // what a file says now, under another name; before truth_prepare()
void truth_prepare(void);          // opens, warms up: everything that allocates
void truth_record(void);           // reads A, then B
extern char truth[];
extern size_t truth_size;          // as much as truth_prepare() found will be needed

// notes.c
void note_number(const char *what, unsigned long number);
void note_pages(const char *what, int fd, size_t bytes);  // of a file, that are in the page cache
void notes_as(const char *name);                          // of a file of the truth; before truth_prepare()

// dax.c
void note_stage(const char *stage);  // what the counters say now, under the name of what comes next
void wait_for_file(const char *path);  // at most half a minute
// A region's namespace, as `ndctl create-namespace` makes it: "pfn" (fsdax) or "dax" (devdax), its struct pages in "ram" or
// on the device, "pmem", for pages of `align` bytes. What the counters say before and after is noted.
void make_dax(int region, const char *kind, const char *mode, const char *align);
void record_readable(const char *const patterns[], size_t count);  // those files that can be read

// workload_*.c
void workload_fragment(void);
void workload_demo(void);
void workload_live(void);
void workload_slab(void);
void workload_owner(void);
void workload_owner_inputs(void);
void workload_tables(void);
void workload_sizes(void);
void workload_many_tables(void);
void workload_vmemmap(void);
void workload_vmemmap_boot(void);
void workload_dax(void);
void workload_kept(void);
void workload_ledger(void);
void workload_cgroups(void);
void workload_storage(void);
void workload_leak(void);
void workload_many_files(void);
void workload_oom(void);
void workload_rmap(void);
void workload_rmap_stall(void);

// workload_rmap.c
int has(const char *name, char *memory, size_t bytes);  // this process is called so, and has this memory

// workload_file_maps.c
void file_maps(void);

// workload_shares.c
void share_memory(void);

// workload_owner.c
void ask_module(const char *job, long number);  // see module/mmscope_lab.c
void own_memory(void);

#endif
