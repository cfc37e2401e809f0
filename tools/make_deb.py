# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Builds the Debian packages of the commit that is checked out, in a clean root of Debian 13.

The root is made by mmdebstrap, with what debian/control asks for and nothing else; lintian's errors
are errors. The source package takes drgn and DuckDB by the hashes of ``requirements.lock``: see
``debian/README.source``.

    python tools/make_deb.py build dist/deb     mmscope_*.deb, mmscope-report_*.deb, the source
    python tools/make_deb.py try dist/deb       install them in a clean root and run debian/tests
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from make_dist import locked
from make_manuals import completion

from mmscope import __version__

ROOT = Path(__file__).resolve().parent.parent
SUITE = "trixie"
MACHINES = ("x86_64", "aarch64")
WHEEL = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.13"]
# A root that is thrown away need not be on disk, package by package.
UNSAFE = "--dpkgopt=force-unsafe-io"
MMDEBSTRAP = ["mmdebstrap", "--quiet", "--aptopt=Acquire::Retries 2", UNSAFE]
# A suite's lists that are out of date, where a mirror is behind: sid's are good for a week.
ALSO_OLD_LISTS = '--aptopt=Acquire::Check-Valid-Until "false"'

BUILD = """
set -e
cd /build
dpkg-source --extract mmscope_*.dsc source
cd source
apt-get -qq -y --no-install-recommends build-dep ./
dpkg-buildpackage -us -uc -b
cp ../*.deb ../*.buildinfo ../*.changes /made
lintian --allow-root --fail-on error ../mmscope_*.dsc ../*.changes
"""
TRY = """
set -e
export AUTOPKGTEST_TMP=$(mktemp -d)
cd /source
exec sh -e debian/tests/smoke
"""


def download(name: str, folder: Path, *options: str) -> None:
    """A distribution, by the lock's hashes, into a folder."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write(locked({name}))
        lock.flush()
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        words += [*options, "--dest", str(folder), "--requirement", lock.name]
        subprocess.run([sys.executable, *words], check=True)


def archive(folder: Path, *what: str, prefix: str, output: str) -> None:
    """Files of the commit, as a tarball."""
    words = ["git", "archive", f"--prefix={prefix}/", f"--output={folder / output}", "HEAD", *what]
    subprocess.run(words, cwd=ROOT, check=True)


def source(output: Path) -> None:
    """The source package, into a folder."""
    with tempfile.TemporaryDirectory(prefix="mmscope-deb-") as made:
        folder = Path(made)
        tree, stem = folder / "mmscope", f"mmscope_{__version__}.orig"
        archive(folder, "--", ".", ":(exclude)debian", prefix=tree.name, output=f"{stem}.tar.gz")
        download("drgn", folder, "--no-build-isolation", "--no-binary", ":all:")
        (drgn,) = folder.glob("drgn-*.tar.gz")
        drgn.rename(folder / f"{stem}-bundled-drgn.tar.gz")
        wheels = folder / "bundled-duckdb"
        for machine in MACHINES:
            download("duckdb", wheels, *WHEEL, "--platform", f"manylinux_2_28_{machine}")
        with tarfile.open(
            folder / f"{stem}-{wheels.name}.tar.gz", "w:gz", compresslevel=1
        ) as packed:
            packed.add(wheels, wheels.name)
        archive(folder, prefix=tree.name, output="tree.tar")
        unpack(folder / "tree.tar", folder)
        unpack(folder / f"{stem}-bundled-drgn.tar.gz", folder / "unpacked")
        (inside,) = (folder / "unpacked").iterdir()
        inside.rename(tree / "bundled-drgn")
        wheels.rename(tree / wheels.name)
        # Debian 13's shtab knows no fish.
        (tree / "debian/mmscope.fish").write_text(completion("fish"), encoding="utf-8")
        subprocess.run(["dpkg-source", "--build", tree.name], cwd=folder, check=True)
        for path in folder.glob("mmscope_*"):
            shutil.copy(path, output)


def unpack(tarball: Path, folder: Path) -> None:
    with tarfile.open(tarball) as files:
        files.extractall(folder, filter="data")


def in_a_root(
    packages: Sequence[str], *hooks: str, suite: str = SUITE, foreign: str | None = None
) -> None:
    """
    Make a root of Debian, with these packages in it, and do that to it before it is dropped.

    :param foreign: another architecture, for which the packages are unpacked, and not set up.
    """
    words = [*MMDEBSTRAP, f"--include={','.join(packages)}"]
    words += ["--variant=extract", f"--architectures={foreign}"] if foreign else ["--variant=apt"]
    # Behind the unpacking, mmdebstrap has no other hook.
    words += [f"--{'extract' if foreign else 'customize'}-hook={hook}" for hook in hooks]
    if suite != SUITE:  # nothing is kept of what is tried there
        words.append(ALSO_OLD_LISTS)
    subprocess.run([*words, suite, "/dev/null"], check=True)


def build(output: Path) -> None:
    """The packages and their source, into a folder; of which commit they are is written last."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    source(output)
    (output / "build.sh").write_text(BUILD)
    try:
        in_a_root(
            ("build-essential", "lintian"),
            'mkdir "$1/build" "$1/made"',
            f"sync-in {output} /build",
            'chroot "$1" sh /build/build.sh',
            f"sync-out /made {output}",
        )
    finally:
        (output / "build.sh").unlink()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT)
    (output / ".commit").write_bytes(commit)


def try_out(output: Path) -> None:
    """Install the packages where nothing of mmscope was, and run what debian/tests has."""
    debs = [
        str(path.resolve()) for path in sorted(output.glob("*.deb")) if "dbgsym" not in path.name
    ]
    with tempfile.TemporaryDirectory(prefix="mmscope-deb-") as made:
        folder = Path(made)
        archive(folder, "debian/tests", "tests/data/7.2", prefix="source", output="source.tar")
        (folder / "try.sh").write_text(TRY)
        in_a_root(
            ("bash-completion", "fish", "groff-base", "man-db", "zsh"),
            'mkdir "$1/debs"',
            *(f"copy-in {deb} /debs" for deb in debs),
            f"upload {folder / 'source.tar'} /source.tar",
            f"upload {folder / 'try.sh'} /try.sh",
            'chroot "$1" tar -xf /source.tar',
            'chroot "$1" sh -c "apt-get -qq -y --no-install-recommends install /debs/*.deb"',
            'chroot "$1" sh /try.sh',
        )


if __name__ == "__main__":
    {"build": build, "try": try_out}[sys.argv[1]](Path(sys.argv[2]).resolve())
