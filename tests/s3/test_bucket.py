# SPDX-License-Identifier: LGPL-2.1-or-later
"""A lake in object storage, of a real server that speaks as S3 does: Versity's gateway."""

import concurrent.futures
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="mmscope[s3] is not installed: make test-s3")

import obstore
from command_line import run
from made_lake import small
from obstore.store import from_url

from mmscope.reports.lake import bucket
from mmscope.reports.lake.adding import add
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.lake.layout import File, LakeError, files_of

SERVER = os.environ.get("MMSCOPE_S3_SERVER", "versitygw")
KEYS = {"AWS_ACCESS_KEY_ID": "mmscope", "AWS_SECRET_ACCESS_KEY": "only-for-this-test"}
SECONDS = 120


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with a bucket ``lakes``; what the environment of its users has."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "data" / "lakes").mkdir(parents=True)
    port = free_port()
    root = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}  # fmt: skip
    (folder / "side").mkdir()
    command = [SERVER, "--port", f"127.0.0.1:{port}", "posix"]
    command += ["--sidecar", str(folder / "side"), str(folder / "data")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=root, stdout=log, stderr=log, cwd=folder)
    try:
        for _ in range(SECONDS * 4):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.25)
        yield KEYS | {
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.terminate()
        process.wait(SECONDS)


@pytest.fixture
def lake(server: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A lake that is not there yet, and no copies of it."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://lakes/{tmp_path.name}"


def hosts(lake: str) -> list[str]:
    return [taken.host for taken in read_catalog(lake).bundles]


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """On another machine, which has no copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def test_its_findings_are_those_of_a_folder(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = [small(tmp_path / str(n), f"host-{n}", kills=n) for n in range(5)]
    for where in (lake, tmp_path / "lake"):
        done = run("lake", "add", *bundles, where)
        assert (done.returncode, done.stdout) == (0, f"{where}: 5 added\n")
    elsewhere(monkeypatch, tmp_path / "elsewhere")
    for asked in (
        ["findings", "--by", "host"],
        ["show"],
        ["show", "tables"],
        ["show", "vm_counters"],
    ):
        there, here = (
            run("lake", asked[0], where, *asked[1:], "--format", "csv")
            for where in (lake, tmp_path / "lake")
        )
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
        assert "host-4" in there.stdout or "tables" in asked
    # Only their owner reads copies.
    (copies,) = (tmp_path / "elsewhere/mmscope/lakes").iterdir()
    assert copies.stat().st_mode & 0o777 == 0o700
    again = run("lake", "add", bundles[0], lake)
    assert again.stdout == f"{lake}: 0 added, 1 were there already\n"


def test_files_stay_few_however_many_come_singly(lake: str, tmp_path: Path) -> None:
    for n in range(6):
        run("lake", "add", small(tmp_path / str(n), f"host-{n}"), lake)
    files = files_of(bucket.Bucket(lake))
    assert len([file for file in files if file.table == "vm_counters"]) <= 3
    kept = {item["path"] for some in obstore.list(from_url(lake)) for item in some}
    assert kept == {str(file.path(Path())) for file in files} | {"lake.json"}


def test_several_machines_may_add_at_once(lake: str, tmp_path: Path) -> None:
    def one(n: int) -> str:
        env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / f"machine-{n}")}
        done = run("lake", "add", small(tmp_path / str(n), f"host-{n}"), lake, env=env)
        assert done.returncode == 0, done.stderr
        return str(done.stderr)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert sorted(hosts(lake)) == ["host-0", "host-1", "host-2", "host-3"]


def test_who_comes_second_adds_to_what_is_there_then(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first, second = (small(tmp_path / name, name) for name in ("first", "second"))
    add(lake, [small(tmp_path / "old", "old")], said.append)
    plain = bucket.Bucket.describe

    def after_another(self: bucket.Bucket, data: bytes, files: Sequence[File]) -> None:
        monkeypatch.setattr(bucket.Bucket, "describe", plain)
        machine = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "another")}
        assert run("lake", "add", first, lake, env=machine).returncode == 0
        plain(self, data, files)

    monkeypatch.setattr(bucket.Bucket, "describe", after_another)
    add(lake, [second], said.append)
    assert sorted(hosts(lake)) == ["first", "old", "second"]
    assert said == [f"{lake}: another process added to it meanwhile: again"]


def test_a_store_that_ignores_conditions_is_not_used(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = obstore.put
    monkeypatch.setattr(
        bucket.obstore,
        "put",
        lambda store, key, data, mode: plain(store, key, data, mode="overwrite"),
    )
    with pytest.raises(LakeError, match="conditional writes"):
        add(lake, [small(tmp_path / "one", "one")], print)


def test_a_torn_file_costs_those_in_it_one_table(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("lake", "add", small(tmp_path / "one", "one", kills=3), lake)
    elsewhere(monkeypatch, tmp_path / "elsewhere")
    (torn,) = [f for f in files_of(bucket.Bucket(lake)) if f.table == "vm_counters"]
    obstore.put(from_url(lake), str(torn.path(Path())), b"PAR1")
    done = run("lake", "findings", lake)
    assert done.returncode == 1
    assert f"{lake}/{torn.path(Path())}: torn: it has 4 bytes" in done.stderr
    assert hosts(lake) == ["one"]


def test_a_store_that_is_not_there_is_a_line(
    lake: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    for words in (["findings", lake], ["add", small(tmp_path / "one", "one"), lake]):
        done = run("lake", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"mmscope: {lake}") and done.stderr.count("\n") == 1


def test_wrong_keys_are_a_line(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    done = run("lake", "findings", lake)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
