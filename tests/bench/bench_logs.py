# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about kernel logs: what a log of 100 MB takes, dense with OOM records or
among lines of other programs. It fails where that is more than is stated.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

from log_forms import with_prefix  # noqa: E402
from log_truth import KINDS, TEXTS  # noqa: E402

BYTES = 100_000_000
MOST_SECONDS, MOST_BYTES = 120, 1 << 30  # of CPU time, of memory


def large(kind: str) -> None:
    """Read a log of 100 MB, in a process of its own."""
    from mmscope.drgn.log.oom_kills import read_oom_records
    from mmscope.drgn.text.kernel_log import parse_dmesg

    text = "".join(f"{line}\n" for line in with_prefix("syslog", KINDS[next(iter(TEXTS))]))
    if kind == "foreign":
        text += "".join(
            f"May  9 14:52:{at % 60:02} node-7 nginx[{at}]: GET /{at} 200 and some more words\n"
            for at in range(20_000)
        )
    text *= BYTES // len(text) + 1
    begin = time.process_time()
    log = parse_dmesg(text)
    kills = read_oom_records(log.records).kills
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{kind}: {len(text) / 1e6:.0f} MB, {seconds:.1f} s of CPU, {peak >> 20} MiB at most, "
          f"{len(log.records):,} records, {len(kills):,} kills")  # fmt: skip
    if seconds > MOST_SECONDS or peak > MOST_BYTES:
        sys.exit(f"{kind}: more than {MOST_SECONDS} s or {MOST_BYTES >> 20} MiB")


def main() -> None:
    codes = [subprocess.run([sys.executable, __file__, kind]).returncode
             for kind in ("dense", "foreign")]  # fmt: skip
    sys.exit(any(codes))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        large(sys.argv[1])
    else:
        main()
