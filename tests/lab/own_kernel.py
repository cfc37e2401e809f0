# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab's own kernels: what stock kernels lack (PAGE_OWNER, MEM_ALLOC_PROFILING) or always have
(SWAP, NUMA), built from Debian's kernel source on top of ``tinyconfig``; and the lab's own module.

Costs, the first time: 165 MB fetched, 4 GB of disk, and 8 minutes on two CPUs, 20 by clang; 240 MB
are kept in ``$XDG_CACHE_HOME/mmscope/lab/kernels/<name>-<version>-<hash>``. Nothing afterwards, and
then without a network. The hash is that of the configuration. The module has one of its own, and a
change to it costs some seconds, as what modules are built with is kept.

Needs make, gcc, bc, flex, bison, libelf-dev, libssl-dev, xz-utils; see ``NEEDED``. A row may need
more, and ask for another compiler.

Cannot: notice that the archive has a newer source while the cache has any: what is there is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from archive import LabError, apt_options, cache_folder, left, newest_first, run, updated
from kept_modules import kept_modules

SECONDS_BETWEEN_LINES = 30

# What shows that a Debian package is there: a command, or a header.
NEEDED = {
    "make": "make",
    "gcc": "gcc",
    "bc": "bc",
    "flex": "flex",
    "bison": "bison",
    "xz": "xz-utils",
    "/usr/include/libelf.h": "libelf-dev",
    "/usr/include/openssl/bio.h": "libssl-dev",
}

# What an external module is built with, of the whole tree.
FOR_MODULES = (
    "Makefile",
    ".config",
    "Module.symvers",
    "scripts",
    "include",
    "arch/x86/include",
    "arch/x86/Makefile",
    "tools/objtool/objtool",
)

# What boots, by Debian's name of the architecture.
IMAGES = {"amd64": "arch/x86/boot/bzImage", "arm64": "arch/arm64/boot/Image"}

# Neither the clock nor the machine shall show in a kernel.
MAKE = ("make", "KBUILD_BUILD_USER=mmscope", "KBUILD_BUILD_HOST=lab")


def build_kernel(
    name: str,
    sources: Iterable[str],
    suites: Sequence[str],
    configs: Sequence[Path],
    say: Callable[[str], None],
    *,
    words: Sequence[str] = (),
    needs: Mapping[str, str] | None = None,
    architecture: str = "amd64",
) -> Path:
    """
    The folder with ``vmlinuz``, ``vmlinux``, ``release``; with PAGE_OWNER ``page_owner_sort``, with
    MODULES ``tree``, what they are built with. From the cache, else built.

    :param sources: regular expressions for the name of the package with the kernel's source, of
        which the first is taken that any of the suites has.
    :param configs: fragments of a kernel configuration; the last word on a symbol counts.
    :param words: for make, whenever it is called: which compiler.
    :param needs: as ``NEEDED``, beside that.
    :param architecture: one of ``IMAGES``.
    :raises LabError: a tool or the source is missing, the configuration does not hold, or the build
        fails; has the build's last lines.
    """
    folder = cache_folder() / "kernels"
    config = merged([config.read_text() for config in configs])
    key = hashlib.sha256("\n".join([config, *words]).encode()).hexdigest()[:12]
    there = [path.name for path in folder.glob(f"{name}-*-{key}")]
    cached = newest_first(one for one in there if not left(one))
    if cached:
        return folder / cached[0]
    lacking = [
        package
        for needed, package in {**NEEDED, **(needs or {})}.items()
        if not (Path(needed).exists() if needed.startswith("/") else shutil.which(needed))
    ]
    if lacking:
        raise LabError(f"a kernel cannot be built here: apt-get install {' '.join(lacking)}")
    folder.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the rename at the end is atomic: a kernel is whole or absent.
    temporary = Path(tempfile.mkdtemp(prefix=f".build-{name}-", dir=folder))
    try:
        version, package = fetch_source(name, sources, suites, temporary, say)
        tree = _unpack(package, temporary, say)
        make = (*MAKE, *words)
        _configure(make, tree, config, say)
        made = _compile(make, tree, enabled(config), IMAGES[architecture], say)
        _keep(tree, temporary, made)
        target = folder / f"{name}-{version}-{key}"
        temporary.chmod(0o755)
        if not target.exists():  # somebody else may have been faster
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say(f"kept in {target}")
    return target


def build_modules(kernel: Path, source: Path, say: Callable[[str], None]) -> tuple[Path, ...]:
    """The modules made from the folder *source*, for a kernel of :func:`build_kernel`."""

    def build(files: Sequence[Path], folder: Path) -> Path:
        for file in files:
            shutil.copy(file, folder)
        say("building the lab's modules")
        command = [*MAKE, f"M={folder}", "modules"]
        _make(command, kernel / "tree", folder / "log", "the module", say)
        (folder / "log").unlink()
        return folder

    return kept_modules(kernel, source, build)


def fetch_source(
    name: str,
    sources: Iterable[str],
    suites: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
) -> tuple[str, Path]:
    """The newest package of the first source that a suite has: its version, and the file."""
    missing: dict[str, str] = {}
    there: dict[str, list[str]] = {}
    for source in sources:
        for suite in suites:
            if suite in missing:
                continue
            if suite not in there:
                say(f"looking for the source of the kernel {name} in {suite}")
                try:
                    apt = updated(suite)
                except LabError as error:  # the suite may be gone
                    missing[suite] = str(error).splitlines()[0]
                    continue
                there[suite] = run("apt-cache", *apt, "pkgnames", "linux-source-").split()
            packages = newest_first(
                one for one in there[suite] if re.fullmatch(source, one) and not left(one)
            )
            if packages:
                return _download(packages[0], apt_options(suite), folder, say)
        say(f"no {source} in {', '.join(suites)}")
    raise LabError(
        f"no package {' or '.join(sources)} in {', '.join(suites)}: add a suite that has one to "
        f"kernels.toml {missing or ''}"
    )


def _download(
    package: str, apt: list[str], folder: Path, say: Callable[[str], None]
) -> tuple[str, Path]:
    shown = run("apt-cache", *apt, "show", "--no-all-versions", package)
    fields = dict(re.findall(r"^(Version|Size): (.*)$", shown, re.MULTILINE))
    say(f"fetching {package} {fields['Version']}, {int(fields['Size']) / 1e6:.0f} MB")
    chosen = f"{package}={fields['Version']}"
    run("apt-get", *apt, "download", "--quiet=2", chosen, cwd=folder)
    (deb,) = folder.glob("*.deb")
    return fields["Version"], deb


def _unpack(deb: Path, folder: Path, say: Callable[[str], None]) -> Path:
    say("unpacking the source")
    tree = folder / "source"
    tree.mkdir()
    # The package has one file of note: the source, packed once more.
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as outer,
        subprocess.Popen(
            ["tar", "-xO", "--wildcards", "*/linux-source-*.tar.xz"],
            stdin=outer.stdout,
            stdout=subprocess.PIPE,
        ) as inner,
        subprocess.Popen(
            ["tar", "-xJ", "--strip-components=1", "-C", tree], stdin=inner.stdout
        ) as last,
    ):
        pass
    if outer.returncode or inner.returncode or last.returncode:
        raise LabError(f"{deb.name} cannot be unpacked: is the disk full?")
    deb.unlink()
    return tree


# By its Kconfig file: the name that an option has there now. 7.3 has no PROC_SYSCTL beside SYSCTL.
RENAMED = {"fs/proc/Kconfig": ("PROC_SYSCTL", "SYSCTL")}


def named_as_there(tree: Path, config: str) -> str:
    """A fragment with the names that options have in this source."""
    for file, (before, now) in RENAMED.items():
        if not re.search(rf"(?m)^config {before}$", (tree / file).read_text()):
            config = re.sub(rf"\bCONFIG_{before}\b", f"CONFIG_{now}", config)
    return config


def _configure(make: Sequence[str], tree: Path, config: str, say: Callable[[str], None]) -> None:
    config = named_as_there(tree, config)
    run(*make, "tinyconfig", cwd=tree)
    # The last word on a symbol counts.
    with (tree / ".config").open("a") as file:
        file.write(config)
    run(*make, "olddefconfig", cwd=tree)
    (tree / ".config").chmod(0o644)
    lost = not_kept(config, (tree / ".config").read_text())
    if lost:
        raise LabError(
            f"the kernel's configuration does not keep {', '.join(lost)}: "
            "something that its fragments have to say, too, depends on it or selects it"
        )
    count = len(enabled((tree / ".config").read_text()))
    say(f"configured: {count} options, all that are asked for among them")


def merged(fragments: Sequence[str]) -> str:
    """One fragment of several: of a symbol that more than one names, the last word alone."""
    text = fragments[0]
    for later in fragments[1:]:
        named = {symbol for line in later.splitlines() if (symbol := _symbol(line))}
        kept = [line for line in text.splitlines() if _symbol(line) not in named]
        text = "\n".join([*kept, later])
    return text


def _symbol(line: str) -> str | None:
    match = re.match(r"(?:# )?(CONFIG_\w+)(?:=| is not set)", line)
    return match and match[1]


def not_kept(wanted: str, config: str) -> list[str]:
    """The lines of the fragment *wanted* that the whole configuration *config* contradicts."""
    lines = set(config.splitlines())
    lost = []
    for line in wanted.splitlines():
        off = re.fullmatch(r"# (CONFIG_\w+) is not set", line)
        if off:  # also if nobody asks any more
            if any(other.startswith(f"{off[1]}=") for other in lines):
                lost.append(line)
        elif line.startswith("CONFIG_") and line not in lines:
            lost.append(line)
    return lost


def enabled(config: str) -> set[str]:
    """The options that a fragment switches on."""
    return set(re.findall(r"^CONFIG_(\w+)=y$", config, re.MULTILINE))


def _compile(
    make: Sequence[str], tree: Path, options: set[str], image: str, say: Callable[[str], None]
) -> dict[str, str]:
    """What is made that is to be kept, and under which names."""
    started = time.monotonic()
    jobs = f"-j{os.cpu_count() or 1}"
    log = tree.parent / "build.log"
    say(f"building, with {jobs}")
    made = {image: "vmlinuz", "vmlinux": "vmlinux"}
    targets = ["vmlinux", Path(image).name]
    if "MODULES" in options:
        targets.append("modules")
        made |= {path: f"tree/{path}" for path in FOR_MODULES}
    _make([*make, jobs, *targets], tree, log, "the kernel", say)
    if "PAGE_OWNER" in options:
        # Linux kernel commit 799fb82aa132 ("tools/vm: rename tools/vm to tools/mm") (in v6.3).
        tools = next(name for name in ("tools/mm", "tools/vm") if (tree / name).exists())
        _make([*make, "-C", tools, "page_owner_sort"], tree, log, "page_owner_sort", say)
        made[f"{tools}/page_owner_sort"] = "page_owner_sort"
    log.unlink()
    say(f"built in {time.monotonic() - started:.0f} s")
    return made


def _make(
    command: Sequence[str], folder: Path, log: Path, what: str, say: Callable[[str], None]
) -> None:
    """Run *command*, saying every now and then how far it is."""
    started = said = time.monotonic()
    with log.open("w") as file:
        make = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            while make.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - said > SECONDS_BETWEEN_LINES:
                    said = time.monotonic()
                    objects = len(re.findall(r"^  (?:CC|AS) ", log.read_text(), re.MULTILINE))
                    say(f"    {objects} objects after {said - started:.0f} s")
        finally:
            make.terminate()  # make then ends what it started
            make.wait()
    if make.returncode:
        lines = log.read_text(errors="replace").splitlines()
        # With several jobs the error may be well above the end.
        errors = [line for line in lines if "error:" in line or "Error " in line]
        tail = "\n".join(f"    {line}" for line in [*errors[:5], "…", *lines[-15:]])
        raise LabError(f"{what} does not build:\n{tail}")


def _keep(tree: Path, folder: Path, made: Mapping[str, str]) -> None:
    """Move what is kept from the *tree* to *folder*, and remove the tree."""
    (folder / "release").write_text((tree / "include/config/kernel.release").read_text())
    for path, name in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).rename(folder / name)
    shutil.rmtree(tree)
