# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about perf's text: one set of samples in 500 forms of ``perf script -F``
(fields, versions, what becomes of tabs and ends of lines), folded to the same stacks; and how fast.
"""

import argparse
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

from perf_forms import expected, random_form, render, samples, stacks  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1_000)
    args = parser.parse_args()
    wrong, size, taken = [], 0, 0.0
    for seed in range(args.seed, args.seed + args.forms):
        chance = random.Random(seed)
        made = samples(chance, 300)
        form = random_form(chance, len(made))
        text = render(made, form)
        begin = time.process_time()
        if stacks(text) != expected(made, form):
            wrong.append((seed, form))
        size, taken = size + len(text), taken + time.process_time() - begin
    for seed, form in wrong:
        print(f"seed {seed}: {form}")
    print(f"{args.forms:,} forms, {len(wrong)} wrong; {size / taken / 2**20:.1f} MiB/s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
