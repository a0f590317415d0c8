"""`windrow bench`: the benchmarks stand beside the package in its source tree, and are found and run from there."""

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click

_MISSING = (
    "the benchmarks are not part of the installed package; run 'windrow bench' inside a checkout of windrow's source"
)


def checkout() -> Path | None:
    """The root of windrow's source tree: the one this package runs from, else the one we stand in."""
    here = Path.cwd()
    for folder in (Path(__file__).resolve().parent.parent, here, *here.parents):
        settings = folder / "pyproject.toml"
        if (folder / "bench" / "cli.py").is_file() and settings.is_file():
            with settings.open("rb") as file:
                if tomllib.load(file).get("project", {}).get("name") == "windrow":
                    return folder
    return None


def load(root: Path) -> ModuleType:
    """Make `bench` importable without putting the root on the path, where `indexes` and others would be found twice."""
    if "bench.cli" not in sys.modules:
        folder = root / "bench"
        spec = importlib.util.spec_from_file_location(
            "bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["bench"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module("bench.cli")


@click.command("bench", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def _not_here() -> None:
    """Compare Windrow with what you would use instead (only in a checkout of its source)."""
    raise click.UsageError(_MISSING)


_ROOT = checkout()
bench: click.Command = load(_ROOT).bench if _ROOT is not None else _not_here
