"""The benchmarks are no part of the package: they are loaded as `windrow bench` loads them."""

from conftest import ROOT
from windrow.cli.admin import import_bench

import_bench(ROOT)
