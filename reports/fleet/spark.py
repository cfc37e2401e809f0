# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Spark as the engine of a lake: the same Parquet files, the same queries (see ``spark_sql``).

Which bundles can be asked what is found out as for DuckDB. The types of what is found are those
that DuckDB gives it.

Cannot know: whether the workers of a cluster see the lake under the same path; they must.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import TARGET, sql_type
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.findings.findings import named
from mmscope.reports.findings.question import Question
from mmscope.reports.fleet.spark_sql import ASKED, WIDE, spark_sql
from mmscope.reports.lake.asking import Engine, QueryFailed, Row
from mmscope.reports.lake.batch import Batch
from mmscope.reports.lake.catalog import Catalog
from mmscope.reports.lake.keyed import HOSTS, NUMBER, PLACE, keyed
from mmscope.reports.lake.layout import in_words

# What Spark says of a value that is too large to compute with.
TOO_LARGE = re.compile(r"ARITHMETIC_OVERFLOW|CAST_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|CAST_INVALID")
SETTINGS = {
    # In local mode all there is: the tables of 10,000 hosts do not fit into 1 GiB.
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.ansi.enabled": "true",  # what overflows fails, and is not wrapped
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Queries are many and long, and their rows few: compiling each takes longer than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
KINDS = {"VARCHAR": "string", "HUGEINT": WIDE}
NUMBERS = "lake_numbers"  # of the bundles of a batch


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """
    A session of Spark.

    :raises UsageError: Java, or the master, is not there.
    """
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # of what is said below
    builder = SparkSession.builder.appName("mmscope").master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        why = in_words(error)
        raise UsageError(
            f"--engine spark: Spark does not start: {why} (it needs Java 17 or newer, found by "
            "PATH or JAVA_HOME: apt install default-jre-headless)"
        ) from error
    try:
        yield spark
    finally:
        spark.stop()


def spark_engine(spark: Any, catalog: Catalog, batch: Batch) -> Engine:
    """Spark over the files of a batch; what it cannot be asked is said among what is wrong."""
    spark.catalog.clearCache()  # of the batch before
    # Without createDataFrame, which starts a Python process for each CPU.
    ids = ",".join(bundle.id for bundle in batch.bundles)
    if not re.fullmatch(r"[0-9a-f,]*", ids):
        raise UsageError(f"{catalog.lake}: lake_bundles has an id that is none")
    numbers = spark.sql(
        f"select cast(pos as bigint) as {NUMBER}, col as lake_bundle "
        f"from (select posexplode(split('{ids}', ',')))"
    )
    numbers.cache().createOrReplaceTempView(NUMBERS)
    batch.connection.execute(f"create or replace table {HOSTS} ({NUMBER} bigint)")
    shown: set[str] = set()

    def rows(question: Question, numbers: Sequence[int]) -> list[tuple[int, Row]]:
        wanted = batch.files.keys() & {*named([question]), "target"}
        for table in sorted(wanted - shown):
            _show(spark, catalog, batch, table)
        shown.update(wanted)
        everybody = len(numbers) == len(batch.bundles)
        asked = f"select {NUMBER} from {NUMBERS}" if everybody else _listed(numbers)
        spark.sql(asked).createOrReplaceTempView(ASKED)
        few = "" if everybody else f" left semi join {ASKED} using ({NUMBER})"
        for table in wanted:
            spark.sql(f"select * from lake_all_{table}{few}").createOrReplaceTempView(table)
        try:
            found = [row.asDict() for row in spark.sql(spark_sql(question)).collect()]
            found.sort(key=lambda row: (row[NUMBER], row[PLACE]))
            # The types that DuckDB gives them.
            _, _, *described = batch.connection.execute(f"describe {keyed(question)}").fetchall()
            return [
                (row[NUMBER], {name: _value(row[name], kind) for name, kind, *_ in described})
                for row in found
            ]
        except (QueryFailed, PySparkException, Py4JError) as error:
            text = in_words(error)
            if not (too_large := bool(TOO_LARGE.search(text))):
                batch.said.append(f"{question.id}: Spark cannot be asked: {text}")
            raise QueryFailed(text, too_large) from error

    return rows


def _listed(numbers: Iterable[int]) -> str:
    """
    A query that gives numbers. As a list in the plan of each query they would be ten thousand
    expressions, which Spark copies at each step of planning.
    """
    text = ",".join(map(str, numbers))
    return f"select cast(col as bigint) as {NUMBER} from (select explode(split('{text}', ',')))"


def _show(spark: Any, catalog: Catalog, batch: Batch, table: str) -> None:
    """A table's whole files as a view, with the types that are declared, kept in memory."""
    declared = (
        # As ``batch`` has them.
        TARGET | {"booted_at": "epoch"}
        if table == "target"
        else {c.name: sql_type(c) for c in columns(TABLES[table].row)}
    )
    kinds = {name: KINDS.get(kind, kind.lower()) for name, kind in declared.items()}
    paths = [_escaped(str(catalog.lake.path(file).resolve())) for file in batch.files[table]]
    if paths:
        described = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items() if kind != "epoch")
        schema = f"lake_bundle string, lake_boot timestamp_ntz, {described}"
        # What a file lacks has no value.
        reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
        frame = reader.parquet(*paths)
    else:
        nothing = ", ".join(f"cast(null as {kind}) as `{name}`" for name, kind in kinds.items())
        frame = spark.sql(f"select '' as lake_bundle, {nothing} where false")
    if table == "target":
        boot = "unix_micros(cast(lake_boot as timestamp)) / 1e6D"
        frame = frame.selectExpr("*", f"{boot} as booted_at")
    frame = frame.join(spark.table(NUMBERS).hint("broadcast"), "lake_bundle")
    frame = frame.select(*kinds, NUMBER)
    lost = [number for number, missing in batch.missing.items() if table in missing]
    if lost:
        frame = frame.join(spark.sql(_listed(lost)).hint("broadcast"), NUMBER, "left_anti")
    frame.cache().createOrReplaceTempView(f"lake_all_{table}")


def _escaped(path: str) -> str:
    """A path that Hadoop takes for no pattern."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def _value(value: Any, kind: str) -> Any:
    """A value, with the type that DuckDB gives it."""
    if value is None:
        return None
    if kind in ("BIGINT", "HUGEINT", "INTEGER", "UBIGINT", "SMALLINT", "TINYINT"):
        if int(value) != value:
            raise QueryFailed(f"{value} is no integer, as it is for DuckDB")
        return int(value)
    if kind == "DOUBLE":
        return float(value)
    if kind.startswith("DECIMAL"):
        places = int(kind.rstrip(")").rpartition(",")[2])
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-places))
    return value
