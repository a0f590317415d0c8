"""All that a child of the tests' servers would otherwise import by itself, each one anew: about a second of a busy core."""

import _strptime  # noqa: F401 - what pyarrow imports when it first needs it
import importlib
import pkgutil

import pandas as pd  # noqa: F401
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import pytest  # noqa: F401

import windrow.queries

for module in (
    *pkgutil.iter_modules(windrow.__path__, "windrow."),
    *pkgutil.walk_packages(windrow.queries.__path__, "windrow.queries."),
):
    if not module.name.endswith(("__main__", ".dbt")):  # the second needs dbt, which this environment may lack
        importlib.import_module(module.name)
for name in ("child_processes", "view_histories"):
    importlib.import_module(name)
