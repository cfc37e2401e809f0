# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab's kernels: stock Debian images with their debug info, fetched once and kept unpacked.

``kernels.toml`` says which. Costs, the first time: 310 to 410 MB fetched and 350 to 600 MB kept per
kernel in ``$XDG_CACHE_HOME/mmscope/lab/kernels/<release>``, about 20 s on a fast line; nothing
afterwards, and then without a network. Needs apt and dpkg, an archive keyring, and no root: apt
runs on lists and a cache of its own, installs nothing, and asks the mirror that the machine's own
configuration names.

Cannot: fetch a release that has left the archive; ``sid`` and backports keep a series for some
months only. What is in the cache stays usable.

    python tests/lab/kernels.py stable 5.10? owner     # gets them, for who wants them soon
"""

from __future__ import annotations

import contextlib
import fcntl
import lzma
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import own_kernel
import stock_module
from architectures import AMD64, ARCHITECTURES, Architecture
from archive import LabError, cache_folder, left, newest_first, run, updated
from boot_image import write_btf

HERE = Path(__file__).resolve().parent
TABLE = HERE / "kernels.toml"

# Sections that need what Debian's kernels are not built for (PAGE_OWNER, MEM_ALLOC_PROFILING)
# or were not told at boot (slab_debug=U).
NOT_IN_STOCK = frozenset({"page_owner", "alloc_tags", "slab_owner"})

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Kernel:
    """One kernel, unpacked and ready to boot."""

    name: str
    release: str
    vmlinuz: Path
    vmlinux: Path
    modules: tuple[Path, ...]
    options: str = ""  # what it needs on its command line
    architecture: Architecture = AMD64
    page_bytes: int = PAGE_BYTES


class Absent(LabError):
    """The archive was read, and does not have what was looked for."""


@dataclass(frozen=True)
class _Package:
    name: str
    version: str
    size: int


def names() -> list[str]:
    """The rows of ``kernels.toml``."""
    return list(table()["kernels"])


def architecture(name: str) -> Architecture:
    """That of a row's kernel."""
    return ARCHITECTURES[_row(name).get("architecture", AMD64.name)]


def page_bytes(name: str) -> int:
    """The size of a page of a row's kernel."""
    return int(_row(name).get("page_bytes", PAGE_BYTES))


def has_thp(name: str) -> bool:
    """Whether a row's kernel has transparent huge pages."""
    return bool(_row(name).get("thp", True))


def workloads(name: str) -> list[str]:
    """Those that a row's guest can run, if not all: tests of others are not for it."""
    return list(_row(name).get("workloads", ()))


def about(name: str) -> str:
    """What a row's kernel is built with that others are not."""
    return str(_row(name).get("about", ""))


def stock() -> list[str]:
    """The rows that Debian builds."""
    return [name for name, row in table()["kernels"].items() if "source" not in row]


def get(
    name: str,
    say: Callable[[str], None] = lambda line: None,
    more_modules: Iterable[str] = (),
    *,
    symbols: bool = True,
) -> Kernel:
    """
    The newest kernel of the row *name*, or of that series: from the cache if it has any, else
    fetched.

    :param more_modules: to load after those of the row; a stock kernel's only.
    :param symbols: whether its debug info is needed, which is nine tenths of what is fetched;
        without, there may be no file at ``vmlinux``.
    :raises LabError: there is no such row, or no suite has such a kernel with its debug info.
    """
    row = _row(name)
    with one_at_a_time(name):
        return _get(name, row, say, more_modules, symbols)


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Whoever else wants this kernel waits until it is there, and takes that."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _get(
    name: str,
    row: dict[str, Any],
    say: Callable[[str], None],
    more_modules: Iterable[str],
    symbols: bool,
) -> Kernel:
    if "source" in row:
        return _own(name, row, say)
    before = row.get("before", {})
    modules = _modules(row)
    for module in more_modules:
        modules += [*before.get(module, []), module]
    of = architecture(name)

    def in_cache(release: str) -> Kernel | None:
        kernel = _cached(name, release, modules, symbols)
        return kernel and replace(kernel, architecture=of, page_bytes=page_bytes(name))

    cached = [kernel for kernel in map(in_cache, releases(row["release"])) if kernel]
    if cached:
        return cached[0]
    release, packages, apt = look(name, say)
    _fetch(
        release, [p for p in packages if symbols or not p.name.endswith("-dbg")], apt, modules, say
    )
    if row.get("debug") == "":
        folder = cache_folder() / "kernels" / release
        write_btf(folder / "vmlinuz", folder / "vmlinux")
    kernel = in_cache(release)
    assert kernel is not None
    say(f"kept in {kernel.vmlinuz.parent}")
    return kernel


def look(name: str, say: Callable[[str], None]) -> tuple[str, list[_Package], list[str]]:
    """
    The newest release of a row in the first suite that has one with its debug info: its packages,
    and the options with which apt finds them.

    :raises LabError: no suite has one; says of each why. Absent: and each of them was read.
    """
    row, missing = _row(name), []
    error_type: type[LabError] = Absent
    for suite in row["suites"]:
        say(f"looking for a {name} kernel in {suite}")
        try:
            found, apt = in_suite(suite, row["release"], architecture(name), row)
        except LabError as error:  # the suite may be gone
            missing.append(f"{suite}: {error}")
            error_type = LabError
            continue
        if found:
            return *found, apt
        missing.append(f"{suite} has none")
    raise error_type(
        f"no {name} kernel with debug info ({'; '.join(missing)}): "
        "add a suite that has one to its row in kernels.toml"
    )


def in_suite(
    suite: str, release: str, of: Architecture = AMD64, row: Mapping[str, Any] | None = None
) -> tuple[tuple[str, list[_Package]] | None, list[str]]:
    """
    The newest release of that form in a suite, with its packages, and apt's options for it.

    :param row: may have packages of its own.
    :raises LabError: the suite cannot be read.
    """
    apt = updated(suite, of.name)
    every = {**table(), **(row or {})}
    return _choose(_packages(apt), release, every["debug"], every["images"]), apt


def whole(name: str, symbols: bool = True) -> bool:
    """Whether the cache has a kernel of a row; a workload may need more modules of it."""
    row = _row(name)
    found = (_cached(name, release, _modules(row), symbols) for release in releases(row["release"]))
    return any(found)


def _own(name: str, row: dict[str, Any], say: Callable[[str], None]) -> Kernel:
    """A kernel that the lab builds itself."""
    configs = [HERE / config for config in row["configs"]]
    folder = own_kernel.build_kernel(
        name,
        row["source"],
        row["suites"],
        configs,
        say,
        words=row.get("make", ()),
        needs=row.get("needs"),
        architecture=architecture(name).name,
    )
    module = row.get("module")
    return Kernel(
        name=name,
        release=(folder / "release").read_text().strip(),
        vmlinuz=folder / "vmlinuz",
        vmlinux=folder / "vmlinux",
        modules=own_kernel.build_modules(folder, HERE / module, say) if module else (),
        options=row.get("options", ""),
        architecture=architecture(name),
        page_bytes=page_bytes(name),
    )


def table() -> dict[str, Any]:
    """``kernels.toml``."""
    return tomllib.loads(TABLE.read_text())


def _row(name: str) -> dict[str, Any]:
    """
    What ``kernels.toml`` says of a row, or of any series that has none.

    :raises LabError: it is neither.
    """
    every = table()
    if name in every["kernels"]:
        row: dict[str, Any] = every["kernels"][name]
        return row
    if re.fullmatch(r"\d+\.\d+", name):
        series = re.escape(name)
        return {**every["unseen"], "release": every["unseen"]["release"].format(series=series)}
    raise LabError(f"no kernel is called {name}: kernels.toml has {', '.join(every['kernels'])}")


def with_built(kernel: Kernel, source: Path, say: Callable[[str], None]) -> Kernel:
    """
    A stock kernel with modules that are built for it, behind its others.

    :raises LabError: its headers cannot be had, or they do not build.
    """
    suites, folder = _row(kernel.name)["suites"], kernel.vmlinuz.parent
    built = stock_module.build(kernel.release, kernel.architecture, suites, folder, source, say)
    return replace(kernel, modules=(*kernel.modules, *built))


def _modules(row: Mapping[str, Any]) -> list[str]:
    return [*row.get("modules", table()["modules"])]


def releases(pattern: str) -> list[str]:
    """Releases in the cache, newest first."""
    folder = cache_folder() / "kernels"
    return newest_first(
        path.name
        for path in folder.glob("*")
        if re.fullmatch(pattern, path.name) and not left(path.name)
    )


def _cached(name: str, release: str, modules: Iterable[str], symbols: bool = True) -> Kernel | None:
    folder = cache_folder() / "kernels" / release
    kernel = Kernel(
        name=name,
        release=release,
        vmlinuz=folder / "vmlinuz",
        vmlinux=folder / "vmlinux",
        modules=tuple(folder / f"{module}.ko" for module in modules),
    )
    files = [kernel.vmlinuz, *([kernel.vmlinux] if symbols else []), *kernel.modules]
    return kernel if all(path.exists() for path in files) else None


def _packages(apt: list[str]) -> dict[str, _Package]:
    """The suite's kernel packages by name."""
    wanted = re.compile(r"linux-(image|binary|modules)-\d.*")
    found = [
        name
        for name in run("apt-cache", *apt, "pkgnames", "linux-").split()
        if wanted.fullmatch(name) and not left(name)
    ]
    packages: dict[str, _Package] = {}
    if not found:
        return packages
    for paragraph in run("apt-cache", *apt, "show", "--no-all-versions", *found).split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Size): (.*)$", paragraph, re.MULTILINE))
        if len(fields) == 3:
            packages[fields["Package"]] = _Package(
                fields["Package"], fields["Version"], int(fields["Size"])
            )
    return packages


def _choose(
    packages: Mapping[str, _Package], release_pattern: str, debug: str, images: Sequence[list[str]]
) -> tuple[str, list[_Package]] | None:
    """
    The newest release that has debug info, if any is wanted, and an image of the same version.

    The name alone does not tell builds apart: an ABI may see several uploads.
    """
    before, after = (debug or images[0][0]).split("{release}")
    shape = re.compile(re.escape(before) + f"({release_pattern})" + re.escape(after))
    matches = {match[1]: packages[match[0]] for match in map(shape.fullmatch, packages) if match}
    for release in newest_first(matches):
        for image in images:
            needed = [packages.get(name.format(release=release)) for name in image]
            complete = [
                package
                for package in needed
                if package and package.version == matches[release].version
            ]
            if len(complete) == len(image):
                return release, [*complete, *([matches[release]] if debug else [])]
    return None


def _fetch(
    release: str,
    packages: Sequence[_Package],
    apt: list[str],
    modules: Iterable[str],
    say: Callable[[str], None],
) -> None:
    folder = cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    # What an earlier fetch got stays, and may be in use: it is only that more modules are wanted.
    target = folder / release
    # By file name in the package. The -dbg package has files named like the modules too: their
    # debug info, without code.
    # On powerpc what boots is not packed, and called vmlinux.
    images = ("vmlinuz", f"vmlinuz-{release}", f"vmlinux-{release}")
    code = dict.fromkeys(images, "vmlinuz") | {f"{module}.ko": f"{module}.ko" for module in modules}
    debug = {"vmlinux": "vmlinux", f"vmlinux-{release}": "vmlinux"}
    # Beside its destination, so that the rename at the end is atomic: a kernel is whole or absent.
    temporary = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        for package in packages:
            wanted = debug if package.name.endswith("-dbg") else code
            if all((target / kept).exists() for kept in wanted.values()):
                continue
            say(f"fetching {package.name} {package.version}, {package.size / 1e6:.0f} MB")
            run(
                "apt-get",
                *apt,
                "download",
                "--quiet=2",
                f"{package.name}={package.version}",
                cwd=temporary,
            )
            (deb,) = temporary.glob("*.deb")
            for kept in _unpack(deb, wanted, temporary):
                say(f"unpacked {kept.name}, {kept.stat().st_size / 1e6:.0f} MB")
            deb.unlink()
        there = {path.name for place in (temporary, target) for path in place.glob("*")}
        debug = debug if any(package.name.endswith("-dbg") for package in packages) else {}
        lacking = {*code.values(), *debug.values()} - there
        if lacking:
            raise LabError(
                f"the packages of {release} have no {', '.join(sorted(lacking))}: "
                "they changed shape, and _fetch() has to learn it"
            )
        if target.exists():
            for path in temporary.iterdir():
                if not (target / path.name).exists():
                    path.rename(target / path.name)
        else:
            temporary.chmod(0o755)
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(deb: Path, wanted: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the members of *deb* whose file name is *wanted*, decompressed."""
    kept = []
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as tar,
        tarfile.open(fileobj=tar.stdout, mode="r|", bufsize=1 << 20) as members,
    ):
        for member in members:
            name = member.name.rpartition("/")[2]
            target = wanted.get(name.removesuffix(".xz"))
            content = members.extractfile(member) if target and member.isfile() else None
            if target is None or content is None:
                continue
            with (
                lzma.open(content) if name.endswith(".xz") else content as plain,
                (folder / target).open("wb") as file,
            ):
                shutil.copyfileobj(plain, file, 1 << 20)
            kept.append(folder / target)
    if tar.returncode:
        raise LabError(f"{deb.name} cannot be unpacked: is the disk full?")
    return kept


def main() -> int:
    """Get kernels, in this order, with every module that a workload needs."""
    from machine import WORKLOAD_MODULES
    from roles import resolve

    # What was begun, a compiler say, ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    every = [module for modules in WORKLOAD_MODULES.values() for module in modules]
    words = [name for word in sys.argv[1:] for name in word.split(",") if name]
    for word in words:
        name = word.removesuffix("?")

        def say(line: str) -> None:
            print(line, flush=True)

        try:
            row = resolve(name, say)
            # They are of workloads that only x86's machine can run.
            get(row, say, every if architecture(row) is AMD64 else ())
        except LabError as error:
            print(f"kernels.py: {error}", file=sys.stderr)
            if name == word:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
