"""Builds the compiled kernels of ``native/``; everything else about the build is in pyproject.toml.

The list is explicit: a pattern that matches nothing would build a wheel without kernels, and say nothing.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

EXTENSIONS: list[Extension] = [
    Extension(
        "windrow.native.key_encoding",
        ["native/key_encoding.pyx"],
        depends=["native/common.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.rows",
        ["native/rows.pyx"],
        depends=["native/common.pxi", "native/encoded.pxi", "native/row_sort.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.group_aggregate",
        ["native/group_aggregate.pyx"],
        depends=["native/common.pxi", "native/groups_tally.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.hash_match",
        ["native/hash_match.pyx"],
        depends=["native/common.pxi", "native/matches_open.pxi", "native/matches_gather.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.histograms",
        ["native/histograms.pyx"],
        depends=["native/common.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.directory",
        ["native/directory.pyx"],
        depends=[
            "native/common.pxi",
            "native/encoded.pxi",
            "native/directory_build.pxi",
            "native/directory_search.pxi",
        ],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.parquet_reader",
        ["native/parquet_reader.pyx"],
        depends=[
            "native/parquet_thrift.pxi",
            "native/parquet_footer.pxi",
            "native/parquet_decode.pxi",
            "native/pages_types.pxi",
            "native/pages_rooms.pxi",
            "native/pages_texts.pxi",
            "native/pages_choose.pxi",
            "native/pages_cold.pxi",
            "native/mapped_memory.pxi",
            "native/pages_read.pxi",
            "native/pages_calls.pxi",
            "native/crc.pxi",
        ],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.parquet_writer",
        ["native/parquet_writer.pyx"],
        depends=["native/parquet_encode.pxi", "native/crc.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
]

setup(
    ext_modules=cythonize(EXTENSIONS, build_dir="build/cython"),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
