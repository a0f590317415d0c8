"""The tree is the architecture: what the folders promise each other is checked here, by reading the source.

    service  ->  ingest, queries  ->  warehouse  ->  indexes  ->  native
    periodic  ->  synopses  ->  views  ->  queries/*.py  ->  planner  ->  sql  ->  engine

Each may know what stands to its right. One module of ingest knows queries: window clauses in Spark's SQL are those of ours
(docs/decisions/011-one-module-of-spark-knows-sql.md). In ``warehouse/`` only the facade also imports from the left, inside functions.
"""

import ast
import graphlib
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"windrow": "warehouse"} | {f"windrow.{name}": name for name in ("indexes", "ingest", "native", "queries")}
FOLDERS |= {
    f"windrow.{name}": f"warehouse/{name}" for name in ("catalog", "cli", "demo", "formats", "object_store", "service")
}
FOLDERS |= {
    f"windrow.queries.{name}": f"queries/{name}"
    for name in ("engine", "periodic", "planner", "sql", "synopses", "views")
}
LAYER = {"native": 0, "indexes": 1, "warehouse": 2, "ingest": 3, "queries": 3, "service": 4}
"""The service, in warehouse/, stands above all."""
TOP_FOLDERS = ("warehouse", "indexes", "ingest", "native", "queries")

SUBPACKAGES = ("engine", "sql", "planner", "", "synopses", "views", "periodic")
"""Of queries/, from below to above; the modules directly in it are execution."""

# Errors are everybody's words. The module imports nothing of ours, so it stands below all layers.
LEAVES = {"windrow.errors"}
# The facade with the snapshots it hands out, the command line, the entry to Spark and the demo.
FACADE = re.compile(r"windrow(\.(warehouse|snapshot|spark|(cli|demo)(\.\w+)*))?$")
SPARK_SQL = "windrow.ingest.statement"
DUCKDB_HOOK = "queries/engine/arrow_source.py"

LONGEST_FUNCTION = 80
LONGEST_FILE = 1_200


class Import(NamedTuple):
    """One imported module; lazy if it stands in a function, typing if under TYPE_CHECKING."""

    module: str
    line: int
    lazy: bool
    typing: bool


def sources(*suffixes: str) -> list[Path]:
    """Our own source files in the package folders."""
    return sorted(p for folder in TOP_FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The import name of a file: warehouse/cli/__init__.py is windrow.cli, indexes/__init__.py is windrow.indexes."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = ["windrow", *parts[1:]] if parts[0] == "warehouse" else ["windrow", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p) for p in sources(".py", ".pyx")}


def layer_folder(module: str) -> str:
    """The folder that an import of ours comes from."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYER else "warehouse"


def is_type_checking(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path) -> list[Import]:
    """Every import of a module, also those inside functions."""

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, lazy, typing)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{relative(path)}:{child.lineno}: relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield Import(full if full in MODULES else str(child.module), child.lineno, lazy, typing)
            elif isinstance(child, ast.If) and is_type_checking(child):
                for statement in child.body:
                    yield from walk(ast.Module([statement], []), lazy, True)
                for statement in child.orelse:
                    yield from walk(ast.Module([statement], []), lazy, typing)
            else:
                inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, inside, typing)

    return list(walk(tree(path), lazy=False, typing=False))


def wrong_direction(importer: str, imported: Import) -> str | None:
    """Why an import of ours breaks the architecture, or None."""
    if imported.module.partition(".")[0] != "windrow" or imported.module in LEAVES:
        return None
    here, there = layer_folder(importer), layer_folder(imported.module)
    if here == there or LAYER[there] < LAYER[here] or (importer, there) == (SPARK_SQL, "queries"):
        return None
    if here == "warehouse" and not FACADE.match(importer):
        return f"only the facade, the command line, spark and demo may know {there}"
    if here == "warehouse" and not (imported.lazy or imported.typing):
        return f"{there} must be imported inside a function, so that `import windrow` stays light"
    return None if here == "warehouse" else f"{here} must not know {there}"


@pytest.mark.parametrize("path", sources(".py"), ids=relative)
def test_dependencies_point_one_way(path):
    importer = module_name(path)
    wrong = [
        f"{relative(path)}:{imported.line}: imports {imported.module}: {reason}"
        for imported in imports(path)
        if (reason := wrong_direction(importer, imported))
    ]
    assert not wrong, "\n".join(wrong)


def subpackage(module: str) -> str:
    """The subpackage of queries/ that a module is in; empty for the modules directly in it."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in SUBPACKAGES else ""


@pytest.mark.parametrize("path", [p for p in sources(".py") if layer_folder(module_name(p)) == "queries"], ids=relative)
def test_subpackages_of_queries_know_only_those_below(path):
    """Also not inside functions, nor for type annotations."""
    height = SUBPACKAGES.index(subpackage(module_name(path)))
    wrong = [
        f"{relative(path)}:{imported.line}: imports {imported.module}"
        for imported in imports(path)
        if imported.module.startswith("windrow.queries.") and SUBPACKAGES.index(subpackage(imported.module)) > height
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_cycle():
    """Imports inside functions count too; only the facade may be part of a cycle. Type annotations do not count."""
    graph = {
        module_name(path): {
            imported.module for imported in imports(path) if imported.module in MODULES and not imported.typing
        }
        for path in sources(".py")
        if not FACADE.match(module_name(path))
    }
    try:
        graphlib.TopologicalSorter({name: needs & graph.keys() for name, needs in graph.items()}).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_one_module_touches_the_private_hook_of_duckdb():
    private = re.compile(r"duckdb\._\w|\._(register_arrow_source|submit)\b")
    assert [relative(path) for path in sources(".py") if private.search(path.read_text())] == [DUCKDB_HOOK]


@pytest.mark.parametrize("path", sources(".pyx", ".pxi"), ids=relative)
def test_kernels_know_nothing_of_the_rest(path):
    imported = [
        line
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|c?import)\s+windrow\.(?!native|errors\b)", line)
    ]
    assert not imported


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_leaves_import_nothing_of_ours(leaf):
    path = ROOT / "warehouse" / f"{leaf.removeprefix('windrow.')}.py"
    assert [imported.module for imported in imports(path) if imported.module.startswith("windrow")] == []


@pytest.mark.parametrize(
    ("package", "homes"),
    [("pyspark", {"ingest"}), ("py4j", {"ingest"}), ("duckdb", {"ingest", "queries", "warehouse"})],
)
def test_engines_are_known_only_where_they_belong(package, homes):
    """Only ingest/ knows Spark; indexes/ and native/ know nothing of SQL. Type annotations do not count."""
    strangers = [
        f"{relative(path)}:{imported.line}"
        for path in sources(".py")
        for imported in imports(path)
        if imported.module.partition(".")[0] == package
        and path.relative_to(ROOT).parts[0] not in homes
        and not imported.typing
    ]
    assert strangers == []


def test_importing_windrow_is_light():
    """No Spark, no Java, no pandas: they are optional, and slow to start."""
    heavy = ("pyspark", "py4j", "pandas", "polars")
    code = f"import sys, windrow; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", sources(".py", ".pyx", ".pxi", ".pyi"), ids=relative)
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", sources(".py"), ids=relative)
def test_functions_stay_small(path):
    long = [
        f"{relative(path)}:{node.lineno}: {node.name}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert long == []


def test_nothing_is_left_to_do():
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    files = sources(".py", ".pyx", ".pxi", ".pyi", ".h", ".hpp")
    files += [
        p for folder in ("tests", "bench") for p in (ROOT / folder).rglob("*.py") if p != Path(__file__).resolve()
    ]
    left = [
        f"{relative(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marker.search(line)
    ]
    assert left == []


def test_every_package_folder_is_listed():
    """A folder that is not listed works in the tree and is missing from the wheel."""
    listed = SETTINGS["tool"]["setuptools"]["packages"]
    assert SETTINGS["tool"]["setuptools"]["package-dir"] == FOLDERS
    folders = {p.parent for p in sources(".py", ".pyx", ".pyi")}
    assert sorted(listed) == sorted(module_name(folder / "__init__.py") for folder in folders)
    assert [relative(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", sources(".pyx"), ids=relative)
def test_every_kernel_is_built_and_typed(path):
    spec = importlib.util.find_spec(module_name(path))
    assert spec is not None, "setup.py builds only what it lists"
    assert isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
    assert path.with_suffix(".pyi").exists()
