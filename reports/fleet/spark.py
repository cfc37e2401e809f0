# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A fleet asked by the workers of Spark: each takes portions of the bundles, and asks them in a DuckDB
of its own, as one machine does with all of them. So no query is written twice.

Cannot know: whether the workers of a cluster see the lake under the same path; they must.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.fleet.fleet import Portion, Reply, Run
from mmscope.reports.lake.layout import in_words

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
}
# The last line of what Python said on a worker.
RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.*)$", re.MULTILINE)


@contextlib.contextmanager
def workers(master: str) -> Iterator[tuple[Run, int]]:
    """
    The workers of a master: what maps a function over portions, and how many can run at once.

    :raises UsageError: Java, the master, or mmscope on a worker is not there.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("mmscope").master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    try:
        spark: Any = builder.getOrCreate()
    except Exception as error:
        why = in_words(error)
        raise UsageError(
            f"--engine spark: Spark does not start: {why} (it needs Java 17 or newer, found by "
            "PATH or JAVA_HOME: apt install default-jre-headless)"
        ) from error
    context = spark.sparkContext

    def run(function: Callable[[Portion], Reply], portions: list[Portion]) -> list[Reply]:
        try:
            return list(context.parallelize(portions, len(portions)).map(function).collect())
        except (PySparkException, Py4JError) as error:
            raise UsageError(f"--engine spark: {_why(error)}") from error

    try:
        yield run, context.defaultParallelism
    finally:
        spark.stop()


def _why(error: Exception) -> str:
    """Why a worker failed: a line."""
    raised = RAISED.findall(str(error))
    if not raised:
        return in_words(error)
    name, text = raised[-1]
    if name == "ModuleNotFoundError":
        return (
            f"a worker: {text}: pip install 'mmscope[report]' there, into the Python that "
            "PYSPARK_PYTHON names"
        )
    return f"a worker: {text}"
