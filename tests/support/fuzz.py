# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make fuzz``: the readers of other people's files, fed by coverage (atheris, which is libFuzzer).

Each target of ``fuzz_targets.py`` runs in a process of its own, for so many seconds, or until it
fails: with an exception, with an input that takes more than 10 s, or with more than 1 GiB. It
starts from ``corpus/TARGET`` and from what earlier runs found, which is kept in the cache. An input
that fails is kept there, too, and belongs in the corpus once the defect is gone.

    python tests/support/fuzz.py --seconds 60
    python tests/support/fuzz.py --seconds 600 perf bundle
    python tests/support/fuzz.py perf --input FILE      # one input, without atheris
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/corpus"
FOLDERS = [str(ROOT / name) for name in ("tests/support", ".")]
# Seconds for one input, MiB for all, bytes of an input.
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=16384")
# Not ours, or too much of it: what is instrumented is slow.
PLAIN = ("duckdb", "numpy", "drgn", "rich", "jinja2")


# libFuzzer's options are its own affair, and not argparse's.
CHILD = "import sys, fuzz; fuzz.fuzz(sys.argv[1], sys.argv[2:])"


def fuzz(target: str, options: list[str]) -> None:
    """Run a target in this process, for good."""
    import atheris

    sys.path[:0] = FOLDERS
    # Imported before, these stay as they are.
    for name in PLAIN:
        __import__(name)
    with atheris.instrument_imports():
        import fuzz_targets
    atheris.Setup([sys.argv[0], *options], fuzz_targets.TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each; default: 60")
    parser.add_argument("--input", type=Path, help="an input for the one target")
    args = parser.parse_args()
    names = args.targets or sorted(path.name for path in CORPUS.iterdir())
    if args.input:
        sys.path[:0] = FOLDERS
        from fuzz_targets import TARGETS

        TARGETS[names[0]](args.input.read_bytes())
        return 0
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmscope/fuzz"
    failed = []
    for name in names:
        found = cache / name
        found.mkdir(parents=True, exist_ok=True)
        options = [
            *LIMITS, f"-max_total_time={args.seconds}", f"-artifact_prefix={cache}/{name}-",
            "-print_final_stats=1", str(found), str(CORPUS / name),
        ]  # fmt: skip
        with (cache / f"{name}.log").open("w") as log:
            code = subprocess.run(
                [sys.executable, "-c", CHILD, name, *options],
                stdout=log,
                stderr=log,
                cwd=ROOT / "tests/support",
            ).returncode
        words = (cache / f"{name}.log").read_text(errors="replace")
        runs = re.search(r"number_of_executed_units: (\d+)", words)
        peak = re.search(r"peak_rss_mb: +(\d+)", words)
        covered = re.findall(r"cov: (\d+)", words)
        print(
            f"{name:14} {int(runs[1]) if runs else 0:>12,} inputs, "
            f"{covered[-1] if covered else '?':>6} edges, {peak[1] if peak else '?':>5} MiB, "
            f"{'FAILED: ' + str(cache / f'{name}.log') if code else 'ok'}",
            flush=True,
        )
        failed += [name] * bool(code)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
