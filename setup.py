"""Builds the compiled kernels of ``native/``; everything else about the build is in pyproject.toml.

The list is explicit: a pattern that matches nothing would build a wheel without kernels, and say nothing.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = {
    "bit_packing": ("common.pxi",),
    "directory": ("common.pxi",),
    "group_aggregate": ("common.pxi",),
    "hash_match": ("arrow_column.pxi", "common.pxi"),
    "key_encoding": ("arrow_column.pxi", "common.pxi"),
    "parquet_reader": (
        "common.pxi",
        "crc.pxi",
        "mapped_memory.pxi",
        "parquet_decode.pxi",
        "parquet_footer.pxi",
        "parquet_thrift.pxi",
    ),
    "row_digest": ("arrow_column.pxi", "common.pxi"),
    "rows": ("common.pxi", "row_sort.pxi"),
}
"""Each compiled module of ``native/``, with what it includes."""

EXTENSIONS = [
    Extension(
        f"windrow.native.{name}",
        [f"native/{name}.pyx"],
        depends=[f"native/{part}" for part in parts],
        language="c++",
        extra_compile_args=["-O3"],
    )
    for name, parts in KERNELS.items()
]

setup(
    ext_modules=cythonize(EXTENSIONS, build_dir="build/cython"),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
