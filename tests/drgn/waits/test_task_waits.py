# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text's row of a task that waits. Kernels: tests/lab."""

import pytest

from mmscope.drgn.waits.task_waits import sleeping

STATUS = "Name:\tcat\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t7\nPid:\t7\nPPid:\t1\n"


def test_the_text_has_tasks_in_d_state_alone() -> None:
    row = sleeping(STATUS)
    assert row and (row.pid, row.comm, row.state, row.stack) == (7, "cat", "D", None)
    assert sleeping(STATUS.replace("D (disk sleep)", "S (sleeping)")) is None
    with pytest.raises(ValueError, match="no Name"):
        sleeping("State:\tD (disk sleep)\n")
