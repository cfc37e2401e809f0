# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope as a package: the built wheel in an empty environment, used from outside the checkout.

What it needs comes from the package index, as it would for a user.
"""

import csv
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import FUNCTIONS_ONLY, Lab

pytestmark = pytest.mark.any_kernel

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = sorted(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
)
# What a user's brings: the module that needs it, and tests that ask it; those of s3 need a server.
OF_EXTRAS = {
    "mcp": ("reports.serving.mcp_server", "tests/protocol"),
    "s3": ("reports.lake.bucket", ""),
    "spark": (
        "reports.fleet.spark",
        "tests/spark/test_spark.py::test_findings_are_those_of_duckdb",
    ),
}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"


def run(words: list[str | Path], folder: Path) -> "subprocess.CompletedProcess[str]":
    """A command outside the checkout, with nothing of this environment."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def build(kind: str, source: Path, folder: Path) -> Path:
    """A wheel or an sdist, by the build backend that pyproject.toml names."""
    folder.mkdir()
    done = run([sys.executable, "-c", BUILD.format(kind), folder], source)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout; building leaves files, so of a copy."""
    folder = tmp_path_factory.mktemp("built")
    unwanted = shutil.ignore_patterns(".*", "build", "demo", "dist", "tests", "*.egg-info")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=unwanted)
    return (
        build("wheel", folder / "source", folder / "wheel"),
        build("sdist", folder / "source", folder / "sdist"),
    )


@pytest.fixture(scope="module")
def box(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of an environment that had nothing and was given the wheel."""
    folder = tmp_path_factory.mktemp("box")
    venv.create(folder)
    install(folder / "bin", str(built[0]))
    return folder / "bin"


def install(commands: Path, *what: str) -> None:
    """By this environment's pip; what is used is compiled when it is, the rest never."""
    pip = [sys.executable, "-m", "pip", "--python", commands / "python", "install", *what]
    pip += ["--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run(pip, capture_output=True, text=True, env={**os.environ}, timeout=3600)
    assert done.returncode == 0, done.stderr


def contents(wheel: Path) -> dict[str, bytes]:
    """What is in a wheel, but for its list of what is in it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}


def test_it_takes_one_name(built: tuple[Path, Path]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in contents(built[0])} == {"mmscope"}


def test_it_has_every_file_of_the_checkout(built: tuple[Path, Path]) -> None:
    files = {
        f"mmscope/{path.relative_to(ROOT).as_posix()}"
        for folder in ("drgn", "perf", "reports", "templates")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 200
    assert files <= contents(built[0]).keys()


def test_the_sdist_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert contents(build("wheel", source, tmp_path / "again")) == contents(wheel)


def test_it_reads_a_vmcore_and_drgn_has_its_commands(lab: Lab, box: Path, tmp_path: Path) -> None:
    core, kernel = lab.capture.vmcore, lab.capture.kernel
    symbols = ["--symbols", lab.capture.vmlinux] if kernel in FUNCTIONS_ONLY else []
    words = [box / "mmscope", "collect", "--core", core, *symbols, "-o", "bundle"]
    assert run(words, tmp_path).returncode < 2
    with (tmp_path / "bundle" / "zones.csv").open(newline="") as file:
        collected = list(csv.reader(file))
    command = "from drgn.commands import run_command; run_command(prog, 'zones --format csv')"
    words = ["-q", "-c", core, "-s", lab.capture.vmlinux, "-e", command]
    said = run([box / "drgn", *words], tmp_path)
    assert list(csv.reader(said.stdout.splitlines())) == collected, said.stderr
    said = run([box / "mmscope", "record", "--list"], tmp_path)
    assert "page-fault" in said.stdout, said.stderr


# It takes a dozen environments more, and much of the network.
if os.environ.get("MMSCOPE_ALL"):

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_each_extra_can_be_installed(
        extra: str, built: tuple[Path, Path], tmp_path: Path
    ) -> None:
        venv.create(tmp_path / "box")
        commands = tmp_path / "box/bin"
        install(commands, f"mmscope[report,{extra}] @ {built[0].as_uri()}")
        module, asked = OF_EXTRAS.get(extra, ("", ""))
        if module:
            said = run([commands / "python", "-c", f"import mmscope.{module}"], tmp_path)
            assert said.returncode == 0, said.stderr
        if asked:
            # The tests alone: what they test is the wheel's.
            shutil.copytree(ROOT / "tests", tmp_path / "alone/tests")
            shutil.copy(ROOT / "pyproject.toml", tmp_path / "alone")
            install(commands, "pytest", "hypothesis")
            words = [commands / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", asked]
            said = run(words, tmp_path / "alone")
            assert said.returncode == 0 and "skipped" not in said.stdout, said.stdout + said.stderr

    def test_an_index_takes_both(built: tuple[Path, Path], tmp_path: Path) -> None:
        venv.create(tmp_path / "tool")
        install(tmp_path / "tool/bin", "twine==7.0.0")
        words = [tmp_path / "tool/bin/twine", "--no-color", "check", "--strict", *built]
        said = run(words, tmp_path)
        assert said.returncode == 0, said.stdout + said.stderr
        assert said.stdout.count("PASSED") == len(built)

    def test_pipx_installs_the_command(built: tuple[Path, Path], tmp_path: Path) -> None:
        venv.create(tmp_path / "tool")
        install(tmp_path / "tool/bin", "pipx==1.18.4")
        # Where packages come from, a machine may say in its environment.
        home = {
            name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR")
        }
        words = [tmp_path / "tool/bin/pipx", "install", built[0]]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, **home},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        (command,) = (tmp_path / "PIPX_BIN_DIR").iterdir()
        words = ["show", "vm_counters", "--format", "csv", "--proc-root", ROOT / "tests/data/7.2"]
        said = run([command, *words], tmp_path)
        assert said.returncode == 0 and "nr_free_pages" in said.stdout, said.stderr


def test_what_is_missing_is_named_and_can_be_had(
    box: Path, built: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ["--proc-root", ROOT / "tests" / "data" / "7.2", "-o", "bundle"]
    assert run([box / "mmscope", "collect", *words], tmp_path).returncode < 2
    said = run([box / "mmscope", "findings", "bundle"], tmp_path)
    assert said.returncode == 2 and len(said.stderr.splitlines()) == 1
    assert "this needs duckdb" in said.stderr and "pip install 'mmscope[report]'" in said.stderr
    install(box, f"mmscope[report] @ {built[0].as_uri()}")
    said = run([box / "mmscope", "findings", "bundle"], tmp_path)
    assert said.returncode == 0 and "checks" in said.stdout, said.stderr
    said = run([box / "mmscope", "report", "bundle", "-o", "report.html"], tmp_path)
    assert said.returncode == 0, said.stderr
    assert "</html>" in (tmp_path / "report.html").read_text()
