# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``docs/ARCHITECTURE.md`` says how it is: folders, and the way of imports.
"""

import ast
import contextlib
import copy
import graphlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
CODE = [path for top in ("drgn", "perf", "reports") for path in sorted((ROOT / top).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def chapter(title: str) -> str:
    """What stands below a heading, up to the next one."""
    (text,) = re.findall(rf"^##+ {title}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def imported(path: Path) -> Iterator[str]:
    """Folders of ours that a file imports from, ``reports/bundle``."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("mmscope."):
                place = ROOT.joinpath(*name.split(".")[1:])
                # The name of a folder, of a file, or of something in a file.
                while not place.is_dir():
                    place = place.parent
                if place != ROOT:
                    yield str(place.relative_to(ROOT))


def test_every_file_and_folder_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:mmscope|drgn|perf|reports|templates|tests|tools|docs)/[^` ]*)`", PAGE)
    linked = [f"docs/{link}" for link in re.findall(r"\]\(((?!https:)[^)#]+)", PAGE)]
    assert len(named) > 50
    for name in {*named, *linked} - {"drgn/__init__.py"}:
        assert (ROOT / name).exists(), name


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"^\| `(.+)/` \|", chapter("Folders"), re.MULTILINE))
    folders = {
        str(folder.relative_to(ROOT))
        for top in ("drgn", "perf", "reports", "templates", "tools", "docs")
        for folder in (ROOT / top, *(ROOT / top).rglob("*"))
        if folder.is_dir() and folder.name != "__pycache__"
    }
    # What lies deeper is files that others made, or shaped as others want them.
    folders |= {
        str(folder.relative_to(ROOT))
        for here in ("tests", "tests/lab")
        for folder in (ROOT / here).iterdir()
        if folder.is_dir() and not folder.name.startswith(("__", "."))
    }
    assert described == folders | {"mmscope", "tests", "debian", "deploy"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports between files, wherever in a file they are."""
    # A folder without __init__.py is a root of its own.
    return grimp.build_graph("mmscope", "mmscope.drgn", cache_dir=None)


def in_order(graph: grimp.ImportGraph) -> None:
    """:raises graphlib.CycleError: files import each other; it names them."""
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_no_files_import_each_other(graph: grimp.ImportGraph) -> None:
    in_order(graph)


def test_a_cycle_of_imports_is_seen(graph: grimp.ImportGraph) -> None:
    ours = {".".join(("mmscope", *path.relative_to(ROOT).with_suffix("").parts)) for path in CODE}
    assert {name.removesuffix(".__init__") for name in ours} <= graph.modules
    changed = copy.deepcopy(graph)
    # It is imported in a function.
    chain = ("mmscope.reports.lake.catalog", "mmscope.reports.lake.bucket")
    assert graph.direct_import_exists(importer=chain[0], imported=chain[1])
    changed.add_import(importer="mmscope.reports.lake.layout", imported=chain[0])
    with pytest.raises(graphlib.CycleError, match=r"lake\.catalog"):
        in_order(changed)


# Whose results have numbers and no names.
MATCHES = {"match", "fullmatch", "search", "finditer"}
WORDS = {"split", "rsplit", "partition", "rpartition"}


def called(node: ast.AST) -> set[str]:
    """The names of the functions and methods that are called in an expression."""
    calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return {of.attr if isinstance(of, ast.Attribute) else ast.unparse(of) for of in calls}


def matches(tree: ast.AST) -> Iterator[str]:
    """Names of matches of regular expressions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called(node.value) & MATCHES:
            yield from (ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.NamedExpr) and called(node.value) & MATCHES:
            yield node.target.id
        elif isinstance(node, ast.For | ast.comprehension) and called(node.iter) & MATCHES:
            yield ast.unparse(node.target)
        elif isinstance(node, ast.arg) and node.annotation:
            if "re.Match" in ast.unparse(node.annotation):
                yield node.arg
        elif isinstance(node, ast.Call) and called(node) & {"sub", "subn"}:
            given = [word for word in node.args if isinstance(word, ast.Lambda)]
            yield from (word.args.args[0].arg for word in given if word.args.args)


def fetched(place: ast.AST) -> set[str]:
    """Names of rows of SQL in a loop, a comprehension or a function."""
    loops = [place] if isinstance(place, ast.For) else getattr(place, "generators", [])
    found = {ast.unparse(each.target) for each in loops if "fetchall" in called(each.iter)}
    if isinstance(place, ast.FunctionDef):
        for node in ast.walk(place):
            if isinstance(node, ast.Assign):
                # row = ….fetchone() or (0, 0)
                of = node.value.values[0] if isinstance(node.value, ast.BoolOp) else node.value
                if ast.unparse(of).endswith(".fetchone()"):
                    found |= {ast.unparse(target) for target in node.targets}
    return found


def numbered(place: ast.AST) -> Iterator[tuple[ast.Subscript, int]]:
    """What is asked for a member by a number that is written there, and the number."""
    for node in ast.walk(place):
        if isinstance(node, ast.Subscript):
            with contextlib.suppress(ValueError):
                number = ast.literal_eval(node.slice)
                if type(number) is int:
                    yield node, number


def rows_by_number(tree: ast.AST) -> Iterator[int]:
    """
    Lines where a row is asked for a member by its number: for the third or a later one, from either
    end, or for any of a row of SQL. Groups of a regular expression have numbers, words of a line
    too, and the dimensions of an array; ``rows[0]`` and ``pair[1]`` say what they are.
    """
    asked = [(node, number, ast.unparse(node.value)) for node, number in numbered(tree)]
    far = [(node, of) for node, number, of in asked if not -2 < number < 2]
    known = {*matches(tree), "sys.argv"} if far else set()
    for node, of in far:
        words = isinstance(node.value, ast.Call) and called(node.value) & WORDS
        if not (words or of in known or of.endswith(".shape")):
            yield node.lineno
    yield from (node.lineno for node, _, of in asked if ".fetchone()" in of)
    for place in ast.walk(tree):
        if rows := fetched(place):
            found = [node for node, _ in numbered(place) if ast.unparse(node.value) in rows]
            yield from (node.lineno for node in found)


def test_no_row_is_asked_by_number() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in CODE
        for line in rows_by_number(ast.parse(path.read_text()))
    ]
    assert not found, "unpack into names, or give the row a class"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("total = row[3]", True),
        ("def f(row):\n    return row[-2]", True),
        ("for row in db.execute(sql).fetchall():\n    print(row[1])", True),
        ("number = db.execute(sql).fetchone()[0]", True),
        ("def f():\n    row = db.execute(sql).fetchone() or (0, 0)\n    return row[1]", True),
        ("found = {row[0]: 1 for row in db.execute(sql).fetchall()}", True),
        ("first, last = rows[0], rows[-1]", False),
        ("name, _, _, size = row", False),
        ("if match := LINE.match(text):\n    size = match[4]", False),
        ("for found in LINE.finditer(text):\n    print(found[2])", False),
        ("def f(match: re.Match[str]):\n    return match[2]", False),
        ("LINE.sub(lambda found: found[2], text)", False),
        ("word = line.split()[2]", False),
        ("columns = table.shape[2]", False),
        ("row = rows[at]", False),
        ("rows = db.execute(sql).fetchall()\nprint(rows[0])", False),
        ("for row in db.execute(sql).fetchall():\n    print(*row)\nprint(others[1])", False),
        ("def f():\n    match = LINE.match(text)\n    return lambda: match[2]", False),
    ],
)
def test_which_numbers_are_rows(text: str, wrong: bool) -> None:
    assert bool(list(rows_by_number(ast.parse(text)))) is wrong


def test_imports_go_down_the_list() -> None:
    (listed,) = re.findall(r"```\n(.*?)```", chapter("Which way arrows go"), re.DOTALL)
    depth = {
        folder: number
        for number, line in enumerate(listed.splitlines())
        for folder in line.split(", ")
    }
    for path in CODE:
        here = str(path.parent.relative_to(ROOT))
        for there in set(imported(path)) - {here}:
            assert depth[here] < depth[there], f"{path} imports from {there}"


@pytest.mark.parametrize(
    ("top", "others"), [("drgn", {"perf", "reports"}), ("perf", {"drgn", "reports"})]
)
def test_probes_and_recordings_know_nothing_of_reports_nor_of_each_other(
    top: str, others: set[str]
) -> None:
    for path in (ROOT / top).rglob("*.py"):
        assert not {name.split("/")[0] for name in imported(path)} & others, path


def test_every_database_is_opened_in_one_place() -> None:
    """Which bounds its memory, and keeps progress bars out of what programs read."""
    opening = [path for path in CODE if "duckdb.connect(" in path.read_text()]
    assert opening == [ROOT / "reports/bundle/database.py"]


def test_no_file_of_the_tests_imports_one_that_pytest_collects() -> None:
    """What several need is in a helper module: a test may be moved, renamed, and run by itself."""
    assert {path.parent.name for path in TESTS} >= {"tests", "finding_cases", "lab", "s3", "spark"}
    collected = {path.stem for path in TESTS if path.name.startswith("test_")}
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                assert not collected.intersection(name.split(".")), f"{path} imports {name}"


def test_tests_mirror_the_source() -> None:
    """A folder's tests are in the folder of its name below tests/."""
    for top in ("drgn", "perf", "reports", "tools"):
        for path in (ROOT / "tests" / top).rglob("test_*.py"):
            assert (ROOT / path.parent.relative_to(ROOT / "tests")).is_dir(), path


def test_every_file_of_the_tests_has_its_own_name() -> None:
    """They are imported by it, from whatever folder."""
    names = Counter(path.name for path in TESTS if path.name != "conftest.py")
    assert not [name for name, files in names.items() if files > 1]


def test_import_drgn_is_the_debugger() -> None:
    assert not (ROOT / "drgn" / "__init__.py").exists()


PRINTS = {"print", "traceback.print_exc", "sys.stdout.write", "sys.stderr.write"}


def ways_out(path: Path) -> Iterator[str]:
    """What prints text in another way than ``hostile_text.echo()``, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTS:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"


def test_text_has_one_way_out_to_a_terminal() -> None:
    found = [each for path in CODE for each in ways_out(path)]
    # Where it is; and rich's tables, whose every text is made legible before.
    assert [each.split(":")[0] for each in found] == [
        "drgn/tables/hostile_text.py",
        "reports/findings/findings_text.py",
    ], found
