# SPDX-License-Identifier: LGPL-2.1-or-later
"""
drgn's tests for Linux in a guest, with the kernel's DWARF and without; what came of each test goes
to ``/out/<way>.json``. Runs after what ``live.py`` begins a program with.
"""

import ctypes
import json
import os
import signal
import sys
import tarfile
import unittest

import drgn

from mmscope.drgn.opening.no_debug_info import attach

SECONDS = 300  # for one test: an emulated CPU may have other work
SUITE = "/tmp/suite"
MODULE = "/bin/drgn_test.ko"
SYS_FINIT_MODULE = 313  # x86-64


class Outcomes(unittest.TestResult):
    """What came of each test: *passed*, *skipped*, or the last line of why it failed."""

    def __init__(self, way):
        super().__init__()
        self.way, self.of = way, {}

    def startTest(self, test):
        super().startTest(test)
        signal.alarm(SECONDS)

    def stopTest(self, test):
        signal.alarm(0)
        self.of.setdefault(test.id(), "passed")
        if len(self.of) % 100 == 0:
            told(f"{self.way}: {len(self.of)} tests")  # noqa: F821
        super().stopTest(test)

    def addSkip(self, test, reason):
        self.of[test.id()] = "skipped"

    def addError(self, test, err):
        self.of[test.id()] = f"{err[0].__name__}: {err[1]}"[:500]

    addFailure = addError

    def addExpectedFailure(self, test, err):
        self.of[test.id()] = "skipped"

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(test, err)


def out_of_time(number, frame):
    raise TimeoutError(f"{SECONDS} s")


def run(way, prog):
    from tests.linux_kernel import LinuxKernelTestCase

    LinuxKernelTestCase.prog = prog
    signal.signal(signal.SIGALRM, out_of_time)
    found = unittest.defaultTestLoader.discover(f"{SUITE}/tests/linux_kernel", top_level_dir=SUITE)
    outcomes = Outcomes(way)
    found.run(outcomes)
    with open(f"/out/{way}.json", "w") as file:
        json.dump(outcomes.of, file)
    told(f"{way}: {len(outcomes.of)} tests, done")  # noqa: F821


os.environ["DRGN_TEST_KMOD"] = MODULE
libc = ctypes.CDLL(None, use_errno=True)
with open(MODULE, "rb") as module:
    if libc.syscall(SYS_FINIT_MODULE, module.fileno(), b"", 0):
        raise OSError(ctypes.get_errno(), f"{MODULE} cannot be loaded")
with tarfile.open("/bin/suite.tar") as tar:
    tar.extractall(SUITE)
sys.path.insert(0, SUITE)
for way in ("dwarf", "none"):
    # test_vm_commit_limit leaves it 0: writing overcommit_kbytes does that.
    with open("/proc/sys/vm/overcommit_ratio", "w") as file:
        file.write("50")
    child = os.fork()
    if not child:
        prog = drgn.Program()
        prog.set_kernel()
        if way == "dwarf":
            prog.load_debug_info(["/vmlinux", MODULE])
        else:
            attach(prog)
            prog.load_debug_info([MODULE])
        run(way, prog)
        os._exit(0)
    os.waitpid(child, 0)
