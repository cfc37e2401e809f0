# SPDX-License-Identifier: LGPL-2.1-or-later
"""mmscope.pyz, the file to carry onto a box: run by a Python that has nothing else installed."""

import ast
import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import children
import pytest
from conftest import Lab

pytestmark = pytest.mark.any_kernel

TOOLS = Path(__file__).resolve().parents[2] / "tools"
# Without site-packages, so that what is not in the file is not there.
PYTHON = (sys._base_executable, "-I", "-S")
HERE = "{}.{}".format(*sys.version_info[:2])


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for this Python."""
    path = tmp_path_factory.mktemp("dist") / "mmscope.pyz"
    children.run([sys.executable, TOOLS / "make_dist.py", "-o", path], check=True)
    return path


@pytest.fixture(scope="session")
def light(pyz: Path) -> Path:
    """The same without the wheels, unpacked at once: for what starts without them."""
    path = pyz.with_name("light.pyz")
    with zipfile.ZipFile(pyz) as archive, zipfile.ZipFile(path, "w") as ours:
        manifest = json.loads(archive.read("manifest.json"))
        manifest["parts"] = [part for part in manifest["parts"] if part["folder"] == "app"]
        ours.writestr("manifest.json", json.dumps(manifest))
        for name in ("__main__.py", *(part["file"] for part in manifest["parts"])):
            ours.writestr(name, archive.read(name))
    return path


LIGHT = ("page-owner", "--help")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it unpacks itself."""
    return tmp_path_factory.mktemp("cache")


def run(pyz: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it as on a box."""
    return children.run(
        [*PYTHON, str(pyz), *arguments],
        capture_output=True,
        text=True,
        umask=0o002,  # many users' default
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache), "LANG": "C.UTF-8"},
    )


@pytest.fixture(scope="session")
def launcher() -> ModuleType:
    """The file's ``__main__``, as a module."""
    spec = importlib.util.spec_from_file_location("pyz_main", TOOLS / "pyz_main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked(cache: Path) -> list[Path]:
    """What is in its folder of the cache, whole or not."""
    return sorted((cache / "mmscope" / "pyz").iterdir())


def test_help_and_doctor_run(pyz: Path, cache: Path) -> None:
    said = run(pyz, cache, "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("mmscope ") and "Start here:" in said.stdout
    assert "/proc/zoneinfo" in run(pyz, cache, "doctor").stdout


def test_it_unpacks_once_for_this_user_alone(pyz: Path, cache: Path) -> None:
    assert run(pyz, cache, "--version").stdout.startswith("mmscope ")
    (folder,) = unpacked(cache)
    before = folder.stat()
    assert before.st_mode & 0o777 == 0o700
    assert run(pyz, cache, "--version").returncode == 0
    assert unpacked(cache) == [folder] and folder.stat().st_ino == before.st_ino


def test_its_bundle_is_that_of_the_installed_command(
    lab: Lab, pyz: Path, cache: Path, tmp_path: Path
) -> None:
    arguments = ["collect", "--core", str(lab.capture.vmcore), "--symbols"]
    arguments += [str(lab.capture.vmlinux), "-o"]
    carried, installed = tmp_path / "carried", tmp_path / "installed"
    done = run(pyz, cache, *arguments, str(carried))
    assert done.returncode == 0, done.stderr
    assert "findings need duckdb" in done.stderr
    command = Path(sys.executable).with_name("mmscope")
    words = [command, *arguments, installed, "--no-findings"]
    children.run(words, check=True, capture_output=True)

    def contents(bundle: Path) -> dict[str, object]:
        read: dict[str, object] = {path.name: path.read_bytes() for path in bundle.iterdir()}
        sections = csv.DictReader((bundle / "sections.csv").open())
        read["sections.csv"] = [{**row, "seconds": None} for row in sections]
        package = json.loads((bundle / "datapackage.json").read_text())
        read["datapackage.json"] = {**package, "created": None}
        return read

    assert len(contents(carried)) > 20
    assert contents(carried) == contents(installed)


def test_what_needs_more_than_is_in_it_says_so(pyz: Path, cache: Path, tmp_path: Path) -> None:
    made = tmp_path / "bundle"
    assert run(pyz, cache, "collect", "--proc-root", "/", "-o", str(made)).returncode in (0, 1)
    for command in ("findings", "report"):
        said = run(pyz, cache, command, str(made))
        assert said.returncode == 2 and len(said.stderr.splitlines()) == 1
        assert "this needs " in said.stderr and "Traceback" not in said.stderr


def test_it_has_drgn_and_the_commands(lab: Lab, pyz: Path, cache: Path) -> None:
    said = run(
        pyz,
        cache,
        *("drgn", "-q", "-c", str(lab.capture.vmcore), "-s", str(lab.capture.vmlinux), "-e"),
        "from drgn.commands import run_command; run_command(prog, 'zones --format csv')",
    )
    assert said.stdout.startswith("node,zone,"), said.stderr
    assert len(said.stdout.splitlines()) == 1 + len(lab.free.zone_names)


def test_what_is_gone_from_it_is_unpacked_again(light: Path, tmp_path: Path) -> None:
    said = run(light, tmp_path, *LIGHT)
    assert said.returncode == 0, said.stderr
    (folder,) = unpacked(tmp_path)
    gone = folder / "app" / "mmscope" / "reports" / "commands" / "command.py"
    gone.unlink()
    assert run(light, tmp_path, *LIGHT).stdout == said.stdout
    assert gone.exists() and unpacked(tmp_path) == [folder]
    assert sorted(path.name for path in folder.iterdir()) == ["app", "sizes.json"]


def test_several_may_be_the_first(light: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}
    started = [
        subprocess.Popen([*PYTHON, str(light), *LIGHT], env=environment, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    said = {process.communicate()[0] for process in started}
    assert len(said) == 1 and said.pop().startswith(b"usage: mmscope page-owner")
    assert [process.returncode for process in started] == [0] * 6
    assert len(unpacked(tmp_path)) == 1


def test_a_damaged_file_runs_nothing(pyz: Path, tmp_path: Path) -> None:
    data = bytearray(pyz.read_bytes())
    with zipfile.ZipFile(pyz) as archive:
        inside = next(info for info in archive.infolist() if "numpy" in info.filename)
    data[inside.header_offset + inside.file_size // 2] ^= 0xFF
    damaged = tmp_path / "mmscope.pyz"
    damaged.write_bytes(data)
    said = run(damaged, tmp_path, "--version")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("mmscope.pyz: is damaged (") and said.stderr.count("\n") == 1
    assert unpacked(tmp_path) == []


def test_the_hash_of_a_part_is_checked(pyz: Path, launcher: ModuleType, tmp_path: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        for part in manifest["parts"]:
            assert hashlib.sha256(archive.read(part["file"])).hexdigest() == part["sha256"]
        manifest["parts"][-1]["sha256"] = "0" * 64
        with pytest.raises(zipfile.BadZipFile, match="wrong hash of wheels/"):
            launcher.unpack(archive, manifest, "cp" + HERE.replace(".", ""), str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_refused(light: Path, tmp_path: Path) -> None:
    (tmp_path / "mmscope").mkdir()
    (tmp_path / "mmscope").chmod(0o777)
    said = run(light, tmp_path, *LIGHT)
    assert (said.returncode, said.stdout) == (2, "")
    assert "another user may write there" in said.stderr and str(tmp_path) in said.stderr


@pytest.mark.parametrize(
    ("change", "abi", "words"),
    [
        ({"machine": "riscv64"}, None, "is for riscv64; this machine is "),
        ({}, "cp39", f"is for CPython {HERE}; "),
        ({}, "cp313t", f"is for CPython {HERE}; "),
        ({"glibc": [2, 999]}, None, "needs glibc 2.999 or newer; this machine has glibc 2."),
    ],
)
def test_what_does_not_fit_is_said(
    pyz: Path, launcher: ModuleType, change: dict[str, object], abi: str | None, words: str
) -> None:
    with zipfile.ZipFile(pyz) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    mine = "cp" + HERE.replace(".", "")
    assert launcher.misfit(manifest, mine) is None
    reason = launcher.misfit({**manifest, **change}, abi or mine)
    assert words in reason and "\n" not in reason


def test_old_pythons_can_read_why_they_do_not_fit() -> None:
    ast.parse((TOOLS / "pyz_main.py").read_text(), feature_version=(3, 6))
