# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab's own module for a stock kernel, built with Debian's linux-headers of the same release.

Costs, the first time: the package lists of a suite, 13 MB fetched (16 MB where the tools of
linux-kbuild need a newer libc than this machine has: they run with that of their suite) and ten
seconds; nothing afterwards, and then without a network. A module of some 100 KB is kept beside the
kernel, under a hash of its source. For arm64 the headers are of arm64 and the tools of amd64, which
builds across.

Cannot: build for a release that has left the archive; or keep to the compiler of the kernel: this
machine's gcc is taken, without the one option that an older one does not have. Needs make and gcc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from architectures import AMD64, Architecture
from archive import LabError, run, updated
from kept_modules import kept_modules

# -fmin-function-alignment is of gcc 14; BTF needs pahole.
WITHOUT = ("CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=", "CONFIG_DEBUG_INFO_BTF_MODULES=")
# What kbuild runs, and the ending of the file that does it where the first only chooses by
# architecture (not in 6.1).
TOOLS = {
    "scripts/basic/fixdep": "",
    "scripts/mod/modpost": ".real-lsb-64",
    "tools/objtool/objtool": ".real-x86",
}


def build(
    release: str,
    architecture: Architecture,
    suites: Sequence[str],
    kernel: Path,
    source: Path,
    say: Callable[[str], None],
) -> tuple[Path, ...]:
    """
    The modules made from the folder *source*, from the cache if there.

    :param kernel: the folder of the kernel, in which they are kept.
    :raises LabError: no suite has the headers of this release, or they do not build.
    """

    def make(files: Sequence[Path], folder: Path) -> Path:
        built = folder / "built"
        built.mkdir()
        _build(release, architecture, suites, files, folder, built, say)
        return built

    return kept_modules(kernel, source, make, Path(__file__).read_bytes())


def _build(
    release: str,
    architecture: Architecture,
    suites: Sequence[str],
    files: Sequence[Path],
    folder: Path,
    built: Path,
    say: Callable[[str], None],
) -> None:
    suite, headers, tools = _headers(release, architecture, suites)
    say(f"building the lab's module for {release} with {', '.join(headers + tools)} of {suite}")
    root = _unpacked(headers, updated(suite, architecture.name), folder)
    _unpack(tools, updated(suite), root)
    (flavour,) = root.glob(f"usr/src/linux-headers-{release}")
    (common,) = root.glob("usr/src/linux-headers-*-common")
    (kbuild,) = root.glob("usr/lib/linux-kbuild-*")
    if _too_old(kbuild):
        _with_their_libc(kbuild, suite, folder)
    sources = folder / "source"
    sources.mkdir()
    for file in files:
        shutil.copy(file, sources)
    where = (f"O={flavour}", f"M={sources}")
    across = () if architecture is AMD64 else _across(architecture)
    compiler = f"CC={architecture.compiler}"
    run("make", "-C", str(common), *where, *across, compiler, *WITHOUT, "modules")
    for module in sources.glob("*.ko"):
        module.rename(built / module.name)


def _across(architecture: Architecture) -> tuple[str, str]:
    """What tells kbuild that it builds for another architecture."""
    prefix = architecture.compiler.removesuffix("gcc")
    return f"ARCH={architecture.name}", f"CROSS_COMPILE={prefix}"


def _headers(
    release: str, architecture: Architecture, suites: Sequence[str]
) -> tuple[str, list[str], list[str]]:
    """The first suite that has the headers, their packages, and those of the tools."""
    package = f"linux-headers-{release}"
    missing = []
    for suite in suites:
        try:
            apt = updated(suite, architecture.name)
            shown = run("apt-cache", *apt, "show", "--no-all-versions", package)
        except LabError as error:  # the suite, or the package, may be gone
            missing.append(f"{suite}: {str(error).splitlines()[0]}")
            continue
        (common,) = set(re.findall(r"\blinux-headers-[^ ,\n]*-common\b", shown))
        (kbuild,) = set(re.findall(r"\blinux-kbuild-[^ ,\n:]+", shown))
        return suite, [package, common], [kbuild]
    raise LabError(f"no {package}, with which a module is built: {'; '.join(missing)}")


def _unpacked(packages: Sequence[str], apt: Sequence[str], folder: Path) -> Path:
    """Fetch packages and unpack them all in one root, which is returned."""
    place = Path(tempfile.mkdtemp(prefix="root-", dir=folder))
    _unpack(packages, apt, place)
    return place


def _unpack(packages: Sequence[str], apt: Sequence[str], place: Path) -> None:
    """Fetch packages and unpack them in a root that is there."""
    run("apt-get", *apt, "download", "--quiet=2", *packages, cwd=place)
    for deb in sorted(place.glob("*.deb")):
        run("dpkg-deb", "-x", str(deb), str(place))
        deb.unlink()


def _tools(kbuild: Path) -> list[tuple[Path, Path]]:
    """What is run, and the file that does it."""
    tools = [(kbuild / name, kbuild / f"{name}{ending}") for name, ending in TOOLS.items()]
    return [(tool, real if real.exists() else tool) for tool, real in tools]


def _too_old(kbuild: Path) -> bool:
    """Whether this machine's libc is too old for one of the tools."""
    said = (subprocess.run([real], capture_output=True) for _, real in _tools(kbuild))
    return any(b"GLIBC" in each.stderr for each in said)


def _with_their_libc(kbuild: Path, suite: str, folder: Path) -> None:
    """Put scripts in place of the tools, which run them with the libc of their suite."""
    base = {"experimental": "sid"}.get(suite, suite.removesuffix("-backports"))
    libc = _unpacked(["libc6"], updated(base), folder)
    loader = next(libc.glob("usr/lib/x86_64-linux-gnu/ld-linux-*"))
    for tool, there in _tools(kbuild):
        real = there
        if there == tool:
            real = tool.rename(tool.with_name(f"{tool.name}.real"))
        tool.unlink(missing_ok=True)
        tool.write_text(f'#!/bin/sh\nexec {loader} --library-path {loader.parent} {real} "$@"\n')
        tool.chmod(0o755)
