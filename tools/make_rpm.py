# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Builds the rpm of the commit that is checked out, looks at it with rpmlint, and unpacks it into a
root to try the command.

    python tools/make_rpm.py dist/rpm

rpmbuild is Debian's. rpmlint's errors are errors. Cannot know: how a distribution of rpms names
what mmscope needs; drgn, numpy and rich are those of this Python where it is tried.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from make_deb import archive

from mmscope import __version__

ROOT = Path(__file__).resolve().parent.parent
SPEC = "deploy/rpm/mmscope.spec"
RPMLINT = ["rpmlint", "--rpmlintrc", str(ROOT / "deploy/rpm/mmscope.rpmlintrc")]


def build(output: Path) -> Path:
    """The package, looked at, into a folder."""
    with tempfile.TemporaryDirectory(prefix="mmscope-rpm-") as made:
        top = Path(made)
        (top / "SOURCES").mkdir()
        stem = f"mmscope-{__version__}"
        archive(top / "SOURCES", prefix=stem, output=f"{stem}.tar.gz")
        spec = top / "mmscope.spec"
        spec.write_text((ROOT / SPEC).read_text().replace("@VERSION@", __version__))
        words = [
            "rpmbuild",
            "-bb",
            "--quiet",
            "--define=_libexecdir /usr/libexec",
            "--nodeps",
            f"--define=_topdir {top}",
        ]
        words += [f"--define=mmscope_python {sys.executable}", str(spec)]
        words[1:1] = ["--define=__brp_compress /bin/true"]  # a script of bash's, by Debian's sh
        subprocess.run(words, check=True)
        (built,) = (top / "RPMS").rglob("*.rpm")
        subprocess.run([*RPMLINT, str(spec), str(built)], check=True)
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        return Path(shutil.copy(built, output))


def try_out(package: Path) -> None:
    """Unpack it into a root of its own, by rpm itself, and have its command say what it is."""
    with tempfile.TemporaryDirectory(prefix="mmscope-root-") as root:
        words = ["rpm", f"--root={root}", "--nodeps", "--noscripts", "--install", str(package)]
        subprocess.run(words, check=True)
        installed = Path(root, "usr/share/mmscope")
        code = (
            f"import sys; sys.path[:0] = [{str(installed)!r}, {sysconfig.get_path('purelib')!r}]; "
            "from mmscope.reports.commands.command import main; import mmscope; "
            "print(mmscope.FOLDER); sys.exit(main())"
        )
        words = [sys.executable, "-I", "-S", "-c", code, "--version"]
        said = subprocess.run(words, check=True, capture_output=True, text=True, cwd="/").stdout
        assert str(installed / "mmscope") in said, said
        assert f"mmscope {__version__}" in said, said


def main() -> int:
    """``FOLDER``."""
    try:
        package = build(Path(sys.argv[1]))
        try_out(package)
    except (AssertionError, subprocess.CalledProcessError) as error:
        print(f"make_rpm.py: {error}", file=sys.stderr)
        return 1
    print(f"{package}: {package.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
