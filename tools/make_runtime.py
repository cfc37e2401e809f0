# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook for a crash kernel with a Python of its own, for a system that has none, or one that is too
old: a root to change to, with this Python, drgn, numpy, rich, what `why` needs, a shell, and the
libraries of all, the C library among them.

    python tools/make_runtime.py dist/mmscope-runtime.tar.xz

Unpacked at /usr/lib/mmscope-runtime it is what the hook falls back on. Tried where it is made, by
`chroot`, which needs root. Costs: 300 MB on disk. Cannot: run on another architecture, or on a
kernel older than the C library takes.
"""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ON_BOX = ("drgn", "_drgn", "_drgn_util", "numpy", "rich", "pygments", "markdown_it", "mdurl")
# What `why` needs beside what collects.
FOR_WHY = ("duckdb", "_duckdb", "jinja2", "markupsafe")
# What the hook calls.
SHELL = ("sh", "timeout", "date", "mkdir", "sync", "cat", "head", "rm", "sleep")
LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "ensurepip", "site-packages", "config-*"
)
COMMAND = """#!/bin/sh
PYTHONPATH=/site:{dynload} exec /python -P -m mmscope "$@"
"""


def make(tree: Path) -> Path:
    """The root, in an empty folder; its Python's folder of compiled modules."""
    shell = [Path(shutil.which(name) or name).resolve() for name in SHELL]
    add_site(tree)
    for name, path in zip(SHELL, shell, strict=True):
        shutil.copy(path, tree / "bin" / name)
    dynload = add_python(tree, shell, ON_BOX + FOR_WHY)
    # DuckDB asks for its own version.
    described = importlib.metadata.distribution("duckdb").locate_file("")
    for info in Path(str(described)).glob("duckdb-*.dist-info"):
        shutil.copytree(info, tree / "site" / info.name)
    hook = tree / "usr/libexec/mmscope/crash-kernel"
    hook.parent.mkdir(parents=True)
    shutil.copy(ROOT / "deploy/crash-kernel/crash-kernel", hook)
    (tree / "bin/mmscope").write_text(COMMAND.format(dynload=dynload))
    (tree / "bin/mmscope").chmod(0o755)
    return dynload


def add_site(tree: Path) -> None:
    """What a root holds whatever its architecture."""
    for name in ("proc", "sys", "dev", "tmp", "site", "bin"):
        (tree / name).mkdir(exist_ok=True)
    shutil.copytree(ROOT / "mmscope", tree / "site" / "mmscope")


def add_python(tree: Path, binaries: Sequence[Path], packages: Sequence[str] = ON_BOX) -> Path:
    """
    Add this machine's Python, these of its packages, and the libraries that it and *binaries* need;
    returns the folder of its compiled modules, which like /site is to be in its path.

    :raises LookupError: a package is not installed here.
    """
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise LookupError(f"{name} is not installed here: make setup")
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, tree / "site" / name, ignore=LEFT_OUT)
        else:
            shutil.copy(origin, tree / "site" / origin.name)
        # Where a wheel keeps the libraries that it was linked with.
        for bundled in origin.parents[origin.name == "__init__.py"].glob(f"{name}.libs"):
            shutil.copytree(bundled, tree / "site" / bundled.name)
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, tree / stdlib.relative_to("/"), ignore=LEFT_OUT)
    python = Path(sys.executable).resolve()
    _copy(python, tree)
    (tree / "python").symlink_to(python)
    for library in libraries([python, *binaries, *tree.rglob("*.so*")]):
        if not library.is_relative_to(tree):  # a wheel's own, found beside it
            _copy(library, tree)
    # A crash kernel, or an emulated one, takes half a minute to compile what a command imports.
    folders = map(str, (tree, tree / "site", tree / stdlib.relative_to("/")))
    subprocess.run([str(python), "-m", "compileall", "-q", "-s", *folders], check=True)
    return stdlib / "lib-dynload"


def libraries(binaries: Iterable[Path]) -> set[Path]:
    """The shared libraries that binaries need, the loader included."""
    found = set()
    for binary in binaries:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True).stdout
        found |= {
            Path(path) for path in re.findall(r"(?:^\s|=> )(/\S+) \(0x", listed, re.MULTILINE)
        }
    return found


def _copy(path: Path, tree: Path) -> None:
    """A file at the same place in the tree, with the file itself where a link stands."""
    target = tree / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def main() -> int:
    """``FILE``."""
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mmscope-runtime-") as folder:
        tree = Path(folder)
        tree.chmod(0o755)
        make(tree)
        tried = subprocess.run(
            ["chroot", tree, "/bin/mmscope", "--version"],
            env={"PATH": "/bin:/usr/bin:/usr/sbin"}, capture_output=True, text=True,
        )  # fmt: skip
        print(tried.stdout + tried.stderr, end="")
        if tried.returncode:
            return 1
        size = sum(path.lstat().st_size for path in tree.rglob("*"))
        with tarfile.open(output, "w:xz", preset=1) as packed:
            packed.add(tree, ".")
    print(f"{output}: {output.stat().st_size:,} bytes; {size:,} unpacked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
