# SPDX-License-Identifier: LGPL-2.1-or-later
"""Spark on other machines: a master and two workers, all of them here, that share the work."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="mmscope[spark] is not installed: make test-spark")

import pyspark
from command_line import ROOT, run
from made_lake import lake_of, small

WORKERS = 2
CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
# A worker has a CPU, and memory for one executor of the size that Spark gives it.
WORKER = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g"]
MASTER = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
PAGES = ["--webui-port", "0"]
SECONDS = 180


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster, and the log of each worker."""

    url: str
    logs: list[Path]


def said(log: Path, pattern: str) -> str:
    """What it says, as soon as it says so."""
    for _ in range(SECONDS * 4):
        if found := re.search(pattern, log.read_text()):
            return found[0]
        time.sleep(0.25)
    raise AssertionError(f"{pattern} is not in {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    started = []

    def start(name: str, *words: object) -> Path:
        log = folder / f"{name}.log"
        with open(log, "wb") as file:
            command = [str(CLASS), *map(str, words)]
            started.append(
                subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
            )
        return log

    try:
        url = said(start("master", *MASTER, *PAGES), r"spark://127\.0\.0\.1:\d+")
        logs = [
            start(f"worker-{n}", *WORKER, "--work-dir", folder / f"work-{n}", *PAGES, url)
            for n in range(WORKERS)
        ]
        for log in logs:
            said(log, "Successfully registered with master")
        yield Cluster(url, logs)
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(SECONDS)


def test_two_workers_give_what_duckdb_gives(tmp_path: Path, cluster: Cluster) -> None:
    hosts = [small(tmp_path / str(n), f"host-{n}", kills=n) for n in range(20)]
    assert not lake_of(tmp_path, *hosts)
    # A worker has a folder of its own.
    lake = os.path.relpath(tmp_path / "lake", ROOT)
    asked = ["lake", "findings", lake, "--by", "host", "--format", "csv"]
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    by_spark = run(*asked, "--engine", "spark", "--master", cluster.url, env=env)
    by_duckdb = run(*asked)
    assert (by_spark.returncode, by_spark.stdout) == (by_duckdb.returncode, by_duckdb.stdout)
    assert by_spark.stdout.count("oom-kills-since-boot") >= 19
    for log in cluster.logs:
        assert "Asked to launch executor" in log.read_text()
        assert list(log.parent.glob(f"work-{log.stem[-1]}/app-*/*/stderr"))
