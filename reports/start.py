# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Where ``mmscope`` begins.

Commands that read text alone start without drgn, numpy and rich, whose loading takes several times
as long as many a file takes to read.
"""

import gc
import sys

LIGHT = ("page-owner", "watch")


def main() -> int:
    """Run the command; returns its exit code."""
    if sys.argv[1:2] and sys.argv[1] in LIGHT:
        # Millions of tuples and hardly a cycle: to look for those takes a twentieth of the time.
        gc.set_threshold(100_000)
        from reports.page_owner_command import main as light

        return light()
    if sys.argv[1:2] == ["record"]:
        from reports.record_command import main as record

        return record(sys.argv[2:])
    from reports.command import main as full

    return full()


if __name__ == "__main__":
    sys.exit(main())
