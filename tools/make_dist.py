# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One file to carry onto a box: mmscope with drgn, numpy, rich, for machines without pip or network.

The file is a zip that Python runs (``pyz_main.py`` is its ``__main__``). In it are the wheels as
the index has them, by the hashes of ``requirements.lock``, a set for each Python version asked for,
and this project. Costs 30 MB a Python version, and the download of its wheels.

Made here, not by shiv: that looks neither whether the wheels fit the interpreter and the C library
before it loads them, nor at whose the folder is that it runs from, as root.

    python tools/make_dist.py --python 3.11 --python 3.13 -o dist/mmscope.pyz
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ON_THE_BOX = ("drgn", "numpy", "rich")
MACHINE = "x86_64"
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same input is the same file


def needed(names: tuple[str, ...]) -> set[str]:
    """These distributions and all that they need, by their normalized names."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name not in found:
            found.add(name)
            todo += [
                re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
                for requirement in importlib.metadata.requires(name) or ()
                if "extra ==" not in requirement
            ]
    return found


def locked(names: set[str]) -> str:
    """Their part of the lock, with hashes."""
    blocks = re.split(r"^(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text(), flags=re.M)
    picked = [block for block in blocks if block.split("==")[0] in names]
    if len(picked) != len(names):
        raise SystemExit(f"requirements.lock has not all of {', '.join(sorted(names))}: make lock")
    return "".join(picked)


def download(python: str, lock: str, folder: Path) -> list[Path]:
    """The wheels for a Python version."""
    folder.mkdir()
    (folder / "lock").write_text(lock)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        command += ["--platform", f"{platform}_{MACHINE}"]
    subprocess.run([*command, "-d", folder, "-r", folder / "lock"], check=True)
    return sorted(folder.glob("*.whl"))


def glibc(wheel: str) -> tuple[int, int]:
    """The oldest C library that a wheel says it runs on; (0, 0) if it is Python alone."""
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel)
    if "manylinux2014_" in wheel:
        tags.append(("2", "17"))
    return min(((int(major), int(minor)) for major, minor in tags), default=(0, 0))


def add(archive: zipfile.ZipFile, name: str, data: bytes, *, packed: bool = True) -> None:
    """Add a file without what differs from build to build."""
    info = zipfile.ZipInfo(name, EPOCH)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    archive.writestr(info, data)


def project() -> bytes:
    """The project as a zip, with the metadata by which drgn finds its commands."""
    packed = io.BytesIO()
    files = {
        f"mmscope/{folder}{path.relative_to(ROOT / 'mmscope' / folder).as_posix()}": path
        for folder in ("", "drgn/", "perf/", "reports/")
        for path in sorted((ROOT / "mmscope" / folder).glob("**/*" if folder else "*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    installed = importlib.metadata.distribution("mmscope")
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in {"LICENSE": ROOT / "LICENSE", **files}.items():
            add(archive, name, path.read_bytes())
        for name in ("METADATA", "entry_points.txt"):
            text = installed.read_text(name) or ""
            add(archive, f"mmscope-{installed.version}.dist-info/{name}", text.encode())
    return packed.getvalue()


def build(pythons: list[str], output: Path) -> None:
    """Write the file."""
    lock = locked(needed(ON_THE_BOX))
    contents: dict[str, tuple[bytes, str, str | None]] = {"app.zip": (project(), "app", None)}
    oldest = (0, 0)
    with tempfile.TemporaryDirectory() as folder:
        for python in pythons:
            abi = "cp" + python.replace(".", "")
            for wheel in download(python, lock, Path(folder) / python):
                only = None if wheel.name.endswith("-none-any.whl") else abi
                contents[f"wheels/{wheel.name}"] = (wheel.read_bytes(), "site", only)
                oldest = max(oldest, glibc(wheel.name))
    manifest = {
        "version": importlib.metadata.version("mmscope"),
        "machine": MACHINE,
        "glibc": oldest,
        "pythons": {"cp" + python.replace(".", ""): python for python in pythons},
        "parts": [
            {
                "file": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "folder": folder,
                "python": only,
            }
            for name, (data, folder, only) in contents.items()
        ],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w") as archive:
                add(archive, "__main__.py", (ROOT / "tools" / "pyz_main.py").read_bytes())
                add(archive, "manifest.json", json.dumps(manifest, indent=1).encode())
                for name, (data, _, _) in contents.items():
                    add(archive, name, data, packed=False)  # they are zips already
        temporary.chmod(0o755)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def main() -> None:
    """Build the file for the versions asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0].strip())
    here = "{}.{}".format(*sys.version_info[:2])
    parser.add_argument("--python", action="append", metavar="3.N", help=f"default: {here}")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist" / "mmscope.pyz")
    args = parser.parse_args()
    pythons = args.python or [here]
    for python in pythons:
        if not re.fullmatch(r"3\.\d\d", python) or int(python[2:]) < 11:
            parser.error(f"--python {python}: mmscope needs 3.11 or newer")
    build(pythons, args.output)
    size = args.output.stat().st_size
    versions = ", ".join(pythons)
    print(f"{args.output}: {size:,} bytes, for CPython {versions} on {MACHINE}")


if __name__ == "__main__":
    main()
