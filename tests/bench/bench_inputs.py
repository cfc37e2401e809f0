# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about large inputs: a log of a million OOM records, one of 10 GiB, an
archive that unpacks to more than is read, JSON of a log store, mails, a perf text, each given to
``mmscope collect`` as a user gives it.

Prints CPU time, which others at work change little, and the most memory that it held. It fails
where one takes more than is stated. Some minutes; RECORDS=… makes them smaller.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

from given_inputs import LOG, PERF  # noqa: E402

RECORDS = int(os.environ.get("RECORDS", "1000000"))
LOGS = RECORDS // LOG.count("\n")
MOST_SECONDS, MOST_BYTES = 150, 1 << 30  # of CPU time, of memory


def records(path: Path) -> None:
    path.write_text(LOG * LOGS)


def ten_gib(path: Path) -> None:
    """Sparse: its zeros are read, and are no log."""
    path.write_text(LOG)
    os.truncate(path, RECORDS * 10_737)
    with path.open("a") as file:
        file.write(f"\n{LOG}")


def bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(LOG.encode())
        for _ in range(RECORDS * 6144 >> 20):
            file.write(bytes(1 << 20))


def loki(path: Path) -> None:
    values = [["1715259158000000007", line] for line in LOG.splitlines() * (LOGS // 10 + 1)]
    path.write_text(json.dumps({"data": {"result": [{"stream": {"job": "x"}, "values": values}]}}))


def mails(path: Path) -> None:
    """A mailbox of as many as are read."""
    head = "From a@example.org Thu Jan  1 00:00:00 2026\nMessage-ID: <7@example.org>\n\n"
    path.write_text((head + LOG * (LOGS // 5000 + 1)) * 200)


def perf(path: Path) -> None:
    path.write_text(PERF * (RECORDS // 5))


INPUTS: dict[str, Callable[[Path], None]] = {
    f"a log of {RECORDS:,} OOM records": records,
    f"a log of {RECORDS * 10_737 >> 20:,} MiB, sparse": ten_gib,
    f"{RECORDS * 6144 >> 20:,} MiB of zeros behind a log, in gzip": bomb,
    f"{RECORDS // 10:,} lines in JSON of a log store": loki,
    "200 mails": mails,
    f"a perf text of {RECORDS // 5:,} samples": perf,
}


def measured(path: Path) -> tuple[float, int, str]:
    """CPU seconds, the most memory, and the last thing that was said of a collect."""
    command = [sys.executable, "-m", "mmscope", "collect", path.name, "-o", "case", "--no-findings"]
    program = subprocess.Popen(
        command, cwd=path.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stderr is not None
    said = program.stderr.read().strip().splitlines()
    _, _, used = os.wait4(program.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss << 10, said[-1] if said else ""


def main() -> None:
    too_much = []
    for name, make in INPUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "given"
            make(path)
            seconds, peak, said = measured(path)
        print(f"{name}: {seconds:.1f} s of CPU, {peak >> 20} MiB at most; {said}", flush=True)
        if seconds > MOST_SECONDS or peak > MOST_BYTES:
            too_much.append(name)
    sys.exit(f"more than {MOST_SECONDS} s or 1 GiB: {'; '.join(too_much)}" if too_much else 0)


if __name__ == "__main__":
    main()
