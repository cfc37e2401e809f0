# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Opening what is to be read: the live kernel, a vmcore, or a QEMU guest.

Everything that can be wrong with a target is found here and said in one line that also says what
to do: no such file, not a vmcore, cut short, no permission, symbols of another build, none at all.
"""

import contextlib
import datetime
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import drgn
import numpy as np
from drgn import Architecture, FaultError, MissingDebugInfoError, Object, Program, ProgramFlags
from drgn.helpers.linux.timekeeping import ktime_get_real_seconds, uptime
from numpy.typing import NDArray

from mmscope.drgn.dumps import bulk_reads, cut_short, first_opening
from mmscope.drgn.dumps.core_file import (
    ET_CORE,
    KDUMP,
    build_id,
    damaged_header,
    elf_type,
    ends_before_pages,
    missing_bytes,
    missing_frames,
    split_part,
)
from mmscope.drgn.dumps.wrapped import FLATTENED, head_of, unpacked_by
from mmscope.drgn.opening import TargetError as TargetError
from mmscope.drgn.opening import UndeclaredError
from mmscope.drgn.opening.kernel_globals import declare_from
from mmscope.drgn.opening.machines import unreadable_machine
from mmscope.drgn.opening.no_debug_info import BTF_MAGICS, OWN, NoDebugInfoError, attach, vmcoreinfo
from mmscope.drgn.opening.vmcoreinfo_file import read_vmcoreinfo
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.text.plain_file import open_plain

# A class of its own since drgn 0.3.0; before, drgn raised Exception itself.
BadDataError: type[Exception] = getattr(drgn, "BadDataError", Exception)

# An architecture's name, the sizes of its pages, and what VMCOREINFO says of where they are.
ARCHITECTURES = {
    Architecture.X86_64: (
        "x86-64",
        (4096,),
        "KERNELOFFSET, phys_base, swapper_pg_dir, pgtable_l5_enabled",
    ),
    Architecture.AARCH64: (
        "arm64",
        (4096, 16384, 65536),
        "KERNELOFFSET, kimage_voffset, swapper_pg_dir, VA_BITS",
    ),
}

# Kernels that have the upper half of all addresses, and processes the lower.
UPPER_HALF = tuple(ARCHITECTURES)
LOCKDOWN = Path("/sys/kernel/security/lockdown")
# drgn says there which symbols are missing; those that open a target have words of their own.
logging.getLogger("drgn").addHandler(logging.NullHandler())

CUT = "mmscope cut short"  # in Program.cache
COPY = "copy the dump again from where it was taken"


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that was read, as the bundle's ``target`` says it."""

    kind: str  # live, vmcore, qemu, files
    release: str | None
    architecture: str | None
    page_size: int | None
    hostname: str | None
    captured_at: str | None  # UTC; of a vmcore: the guest's own clock when it was taken
    uptime_seconds: float | None
    total_pages: int | None  # present pages; of text without /proc/zoneinfo those of MemTotal
    online_cpus: int | None
    source: str  # the file's name without its folder, or the QMP address
    types: str | None = None  # where its types and symbols come from


T = TypeVar("T")


def open_target(
    core: Path | None = None,
    symbols: Sequence[Path] = (),
    qemu: str | None = None,
    vmcoreinfo_file: Path | None = None,
) -> Program:
    """
    Open a vmcore, a QEMU guest by its QMP address, or, with neither, the live kernel.

    :param symbols: vmlinux and modules, or a file with the kernel's BTF; without, the kernel's own
        BTF and symbol table are used where it has them, and else what the distribution has
        installed.
    :param vmcoreinfo_file: the VMCOREINFO of a vmcore that has none.
    :raises TargetError: it cannot be read.
    """
    for path in symbols:
        _check_readable(path, "symbols")
    if vmcoreinfo_file is not None and core is None:
        raise TargetError("--vmcoreinfo is of a vmcore: give --core as well")
    info = None if vmcoreinfo_file is None else read_vmcoreinfo(vmcoreinfo_file)
    prog = Program(vmcoreinfo=info)
    if core is not None:
        _check_core(core)
        _open(prog, core, info)
    elif qemu is not None:
        try:
            prog.set_qemu_qmp(qemu)
        except (OSError, ValueError, RuntimeError, BadDataError) as error:
            raise TargetError(
                f"{qemu}: cannot attach to QEMU: {_reason(error)}; it needs a QMP socket of its "
                "own (-qmp unix:PATH,server,nowait), '-device vmcoreinfo', and this user's right "
                "to ptrace the QEMU process"
            ) from error
    else:
        _open_live(prog)
    try:
        _attach_or_load(prog, symbols)
    except TargetError as error:
        if core is not None and (missing := missing_bytes(core)):
            raise TargetError(
                f"{core}: {missing:,} bytes of the machine's memory lie behind the end of the "
                f"file: it was cut short or is damaged; {COPY}; {error}"
            ) from error
        raise
    if core is not None:
        _check_kernel(prog, core)
    return prog


def _check_kernel(prog: Program, core: Path) -> None:
    """
    Refuse a dump whose VMCOREINFO leads nowhere: if not one of the things that every kernel says of
    itself is where it should be, nothing is.
    """
    page = 1 << prog["PAGE_SHIFT"].value_()
    arch = prog.platform.arch if prog.platform else None
    name, sizes, places = ARCHITECTURES.get(arch, ("", (page,), "KERNELOFFSET, swapper_pg_dir"))
    if page not in sizes:
        raise TargetError(
            f"{core}: its VMCOREINFO is damaged: PAGESIZE is {page:,}, but a page of {name} "
            f"has {' or '.join(f'{size:,}' for size in sizes)} bytes; {COPY}"
        )
    if prog.cache[CUT]:
        return  # which says more
    why = ""
    said: tuple[tuple[bytes, Callable[[], bytes]], ...] = (
        (b"Linux", lambda: prog["init_uts_ns"].name.sysname.string_()),
        (b"Linux version", lambda: prog["linux_banner"].string_()),
        (b"swapper", lambda: prog["init_task"].comm.string_()),
    )
    for words, read in said:
        try:
            if (found := read()).startswith(words):
                return
            why = f"{found[:40]!r} is where {words.decode()} should be"
        except FaultError as error:
            why = str(error)
            # libkdumpfile 0.5 takes x.y.z for a kernel's version, and nothing of a 7.3-rc7.
            if "kernel version" in why:
                raise TargetError(
                    f"{core}: libkdumpfile, by which drgn reads this format, does not understand "
                    f"the kernel's version {vmcoreinfo(prog).get('OSRELEASE', '')!r}; write the "
                    "dump as ELF (makedumpfile -E)"
                ) from error
        except (LookupError, UndeclaredError):
            continue  # sections report damaged symbols
        except BadDataError as error:  # arm64: VA_BITS, asked for when memory is first read
            raise _damaged_note(core, error) from error
    if why:
        raise TargetError(
            f"{core}: the kernel is not where its VMCOREINFO says ({places}): {why}; {COPY}"
        )


def other_release(prog: Program) -> str | None:
    """In words, that VMCOREINFO names another release than the kernel itself does."""
    said = vmcoreinfo(prog).get("OSRELEASE")
    try:
        own = prog["init_uts_ns"].name.release.string_().decode("utf-8", "backslashreplace")
    except (FaultError, LookupError):
        return None
    if said in (None, own):
        return None
    return f"VMCOREINFO is damaged: it says that the release is {said!r}, the kernel says {own!r}"


def _open(prog: Program, core: Path, info: bytes | None) -> None:
    missing = missing_frames(core)
    if why := first_opening.why_not(lambda: _read_first(core, missing, info)):
        raise TargetError(f"{core}: cannot be opened: {why}: it is damaged; {COPY}")
    try:
        prog.set_core_dump(core)
    except (OSError, ValueError, NotImplementedError, FaultError) as error:
        said = f"{core}: drgn cannot open it: {_reason(error)}"
        if "QEMU memory dump" in said:
            said += "; --vmcoreinfo FILE gives it the VMCOREINFO of that boot"
        raise TargetError(said) from error
    except Exception as error:  # drgn's own, where a library gives no reason that it knows
        raise _damaged_note(core, error) from error
    if not prog.flags & ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(
            f"{core}: a core dump, but not a Linux kernel's: it has no VMCOREINFO note"
            " (QEMU: give the guest '-device vmcoreinfo'); --vmcoreinfo gives that of this boot"
        )
    packed = head_of(core).startswith(KDUMP)
    prog.cache[CUT] = read_what_is_there(prog, core, missing) if packed else missing_bytes(core) > 0
    if not packed:
        _refuse_low_addresses(prog)
    if packed and not prog.cache[CUT]:
        with contextlib.suppress(ValueError):  # a damaged note
            sample = int(vmcoreinfo(prog).get("SYMBOL(init_uts_ns)", ""), 16)
            bulk_reads.attach(prog, core, sample)


def _refuse_low_addresses(prog: Program) -> None:
    """
    Have what is in no kernel's part of the addresses be unreadable, as it is in a running one.

    QEMU writes the physical address of its segments in the place of the virtual one too
    (dump/dump.c): what a NULL in the kernel leads to would be the first page of memory.
    """

    def refuse(address: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("no address of the kernel", address)

    if prog.platform is not None and prog.platform.arch in UPPER_HALF:
        prog.add_memory_segment(0, 1 << 63, refuse, False)


def _read_first(core: Path, missing: NDArray[np.uint8] | None, info: bytes | None) -> None:
    """Open a dump and read a page, for which libkdumpfile sets up its translation."""
    os.environ["DRGN_DISABLE_PLUGINS"] = "*"  # the child has no use for them
    prog = Program(vmcoreinfo=info)
    prog.set_core_dump(core)
    read_what_is_there(prog, core, missing)
    prog.read(int(vmcoreinfo(prog).get("SYMBOL(init_uts_ns)", "0"), 16), 8)


def read_what_is_there(prog: Program, core: Path, missing: NDArray[np.uint8] | None) -> bool:
    """
    Have the memory of a kdump-compressed file that was cut short, or whose descriptors are damaged,
    read as far as it goes. By the library alone what is missing may be zeros, or the end of the
    process.

    :returns: whether it was cut short.
    :raises TargetError: it cannot be read so.
    """
    try:
        return cut_short.attach(prog, core, missing)
    except OSError as error:
        raise TargetError(
            f"{core}: was cut short, and this drgn's libkdumpfile cannot tell what is missing from "
            f"zeros ({_reason(error)}); {COPY}, or read it by the drgn of PyPI"
        ) from error


def read_as_opened_here(prog: Program) -> None:
    """
    Have a core that drgn opened by itself, in a session or for a script, read as far as it goes.

    :raises TargetError: it cannot be read so.
    """
    if prog.flags & ProgramFlags.IS_LIVE or prog.core_dump_path is None or CUT in prog.cache:
        return
    core = Path(prog.core_dump_path)
    prog.cache[CUT] = read_what_is_there(prog, core, missing_frames(core))


def _damaged_note(core: Path, error: Exception) -> TargetError:
    return TargetError(
        f"{core}: its VMCOREINFO note, by which a dump is read, is damaged: {_reason(error)}; "
        f"{COPY}"
    )


def _open_live(prog: Program) -> None:
    try:
        prog.set_kernel()
    except PermissionError as error:
        raise TargetError(_why_forbidden()) from error
    except FileNotFoundError as error:
        raise TargetError(
            "this kernel has no /proc/kcore (CONFIG_PROC_KCORE): give --core VMCORE, or read its "
            "text files with --proc-root /"
        ) from error
    except (OSError, ValueError, BadDataError) as error:
        raise TargetError(f"/proc/kcore: drgn cannot open it: {_reason(error)}") from error


def _why_forbidden() -> str:
    """Why /proc/kcore may not be opened (open_kcore(), fs/proc/kcore.c, 5.10 to 7.3)."""
    if os.geteuid():
        return "reading the live kernel needs root: run it with sudo (or give --core VMCORE)"
    with contextlib.suppress(OSError):
        if "[confidentiality]" in LOCKDOWN.read_text():
            return (
                "/proc/kcore: this kernel is locked down (lockdown=confidentiality): "
                "its memory cannot be read until the next boot: boot without it, or give "
                "--core VMCORE"
            )
    return (
        "/proc/kcore: not even root may open it here: a container without CAP_SYS_RAWIO, or a "
        f"kernel that is locked down ({LOCKDOWN} says confidentiality): run it on the host, or "
        "give --core VMCORE"
    )


def _check_readable(path: Path, what: str) -> None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TargetError(f"{path}: is a folder; {what} must be a file")
        if not stat.S_ISREG(mode):
            raise TargetError(f"{path}: is a pipe or a device; {what} must be a file")
        os.close(open_plain(path))
    except FileNotFoundError:
        raise TargetError(f"{path}: no such file (given as {what})") from None
    except PermissionError:
        raise TargetError(f"{path}: no permission to read it; run as root or copy it") from None
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {error.strerror}") from error


def _check_core(path: Path) -> None:
    """Refuse what is certainly no core, with the reason that drgn does not give."""
    _check_readable(path, "--core")
    head = head_of(path)
    if command := unpacked_by(head):
        raise TargetError(f"{path}: is compressed; unpack it first: {command} {path}")
    if head.startswith(FLATTENED):
        raise TargetError(
            f"{path}: is in makedumpfile's flattened format; rebuild it first: "
            f"makedumpfile -R {path}.rebuilt < {path}"
        )
    if why := unreadable_machine(path):
        raise TargetError(f"{path}: {why}; its text can be read: --proc-root COPY_OF_PROC")
    if head.startswith(KDUMP):
        if part := split_part(path):
            raise TargetError(f"{path}: is {part}")
        if ends_before_pages(path):
            raise TargetError(
                f"{path}: was cut short before it says which pages it has: nothing of it can be "
                f"read; {COPY}"
            )
        if damage := damaged_header(path):
            raise TargetError(f"{path}: its headers are damaged: {damage}; {COPY}")
        return
    if not head:
        raise TargetError(f"{path}: is empty, not a vmcore")
    if not head.startswith(b"\x7fELF"):
        raise TargetError(f"{path}: not a vmcore: neither ELF nor kdump-compressed")
    if (kind := elf_type(path)) is not None and kind != ET_CORE:
        raise TargetError(f"{path}: an ELF file, but no core; was it meant as --symbols?")


def _attach_or_load(prog: Program, symbols: Sequence[Path]) -> None:
    """Types and symbols: those that were given, else the kernel's own, else debug info."""
    for path in (path for path in symbols if path.suffix == ".toml"):
        try:
            declare_from(path)
        except NoDebugInfoError as error:
            raise TargetError(str(error)) from error
    symbols = [path for path in symbols if path.suffix != ".toml"]
    btf = [path for path in symbols if _is_btf(path)]
    if symbols and not btf:
        _load_symbols(prog, symbols)
        return
    try:
        attach(prog, *btf[:1], modules=False)  # they are known with the first stack
    except NoDebugInfoError as reason:
        if btf:
            raise TargetError(f"{btf[0]}: cannot be used for this kernel: {reason}") from reason
        try:
            _load_symbols(prog, ())
        except TargetError as error:
            raise TargetError(f"{error}; without debug symbols: {reason}") from error


def _is_btf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) in BTF_MAGICS


def _load_symbols(prog: Program, symbols: Sequence[Path]) -> None:
    info = vmcoreinfo(prog)
    release = info.get("OSRELEASE", "of unknown release")
    # drgn looks for files by that name, and logs it as UTF-8, which other bytes are not.
    if not release.isprintable() or "\\" in release:
        raise TargetError(f"VMCOREINFO is damaged: {cut(release, 80)!r} is no kernel release")
    wanted = info.get("BUILD-ID")
    if symbols:
        # drgn ignores files that do not fit, so that the reason would be lost.
        found = {path: build_id(path) for path in symbols if path.suffix not in (".ko", ".debug")}
        if wanted and found and wanted not in found.values():
            path, other = next(iter(found.items()))
            raise TargetError(
                f"{path}: does not fit: its build ID is {other or 'missing'}, the kernel "
                f"({release}) has {wanted}; {where_symbols_are(release)}"
            )
    try:
        prog.load_debug_info(symbols, default=not symbols, main=bool(symbols))
    except MissingDebugInfoError as error:
        with contextlib.suppress(LookupError):
            prog.type("struct page")
            return  # the kernel's are there; those of modules may be missing
        raise TargetError(
            f"no debug symbols for kernel {release} (build ID {wanted or 'unknown'}): "
            f"{where_symbols_are(release)}"
        ) from error
    except (OSError, ValueError) as error:
        raise TargetError(f"cannot load debug symbols: {_reason(error)}") from error
    try:
        prog.type("struct page")
    except LookupError:
        raise TargetError(
            f"the symbols for kernel {release} have no type information; "
            f"{where_symbols_are(release)}"
        ) from None


def where_symbols_are(release: str) -> str:
    """Advice on how to get the debug symbols of a kernel release."""
    if "-amd64" in release or "-arm64" in release or "+deb" in release:
        advice = f"apt install linux-image-{release}-dbg"
    elif re.search(r"\.(fc|el|amzn)\d+", release):
        advice = f"dnf debuginfo-install kernel-{release}"
    elif re.search(r"-(generic|aws|azure|gcp|kvm|lowlatency)$", release):
        advice = f"install linux-image-{release}-dbgsym (ddebs)"
    elif "-default" in release:
        advice = "zypper install kernel-default-debuginfo"
    else:
        advice = "keep the vmlinux of the build"
    return f"{advice}, or give --symbols VMLINUX"


def describe(prog: Program, source: str) -> Target:
    """
    Describe a target by what it says of itself; what cannot be read is None, never a guess.

    :param source: where it came from: a file's name, a QMP address, empty for the live kernel.
    """

    def read(value: Callable[[], T]) -> T | None:
        try:
            return value()
        except (FaultError, LookupError, ValueError, OverflowError, OSError):
            return None

    def name(member: str) -> str | None:
        text = prog["init_uts_ns"].name.member_(member).string_()
        return str(text.decode("utf-8", "backslashreplace"))

    def captured_at() -> str:
        seconds = ktime_get_real_seconds(prog).value_()
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()

    def total_pages() -> int:
        pages: int = sum(zone.present_pages.value_() for zone in _zones(prog))
        if pages > memory_pages(prog):
            raise OverflowError(pages)  # a damaged zone
        return pages

    info = vmcoreinfo(prog)
    live = prog.flags & ProgramFlags.IS_LIVE
    return Target(
        kind="vmcore" if not live else "qemu" if source else "live",
        release=read(lambda: name("release")) or info.get("OSRELEASE"),
        architecture=read(lambda: name("machine")),
        page_size=1 << prog["PAGE_SHIFT"].value_(),
        hostname=read(lambda: name("nodename")),
        captured_at=read(captured_at),
        uptime_seconds=read(lambda: round(uptime(prog), 3)),
        total_pages=read(total_pages),
        online_cpus=read(lambda: len(online_cpus(prog))),
        source=source or "/proc/kcore",
        types="BTF and kallsyms" if OWN in prog.enabled_type_finders() else "debug info",
    )


def _zones(prog: Program) -> Iterator[Object]:
    for pgdat in online_nodes(prog):
        yield from pgdat.node_zones


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
