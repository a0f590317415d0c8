"""Builds the compiled kernels of ``native/``; everything else about the build is in pyproject.toml.

The list is explicit: a pattern that matches nothing would build a wheel without kernels, and say nothing.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

EXTENSIONS: list[Extension] = [
    Extension(
        "windrow.native.keys",
        ["native/keys.pyx"],
        depends=["native/common.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.rows",
        ["native/rows.pyx"],
        depends=["native/common.pxi", "native/encoded.pxi", "native/order.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.groups",
        ["native/groups.pyx"],
        depends=["native/common.pxi", "native/groups_tally.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.matches",
        ["native/matches.pyx"],
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
        "windrow.native.pages",
        ["native/pages.pyx"],
        depends=[
            "native/pages_thrift.pxi",
            "native/pages_footer.pxi",
            "native/pages_decode.pxi",
            "native/pages_types.pxi",
            "native/pages_rooms.pxi",
            "native/pages_texts.pxi",
            "native/pages_choose.pxi",
            "native/pages_cold.pxi",
            "native/pages_map.pxi",
            "native/pages_read.pxi",
            "native/pages_calls.pxi",
            "native/crc.pxi",
        ],
        language="c++",
        extra_compile_args=["-O3"],
    ),
    Extension(
        "windrow.native.pagewriter",
        ["native/pagewriter.pyx"],
        depends=["native/pagewriter_encode.pxi", "native/crc.pxi"],
        language="c++",
        extra_compile_args=["-O3"],
    ),
]

setup(
    ext_modules=cythonize(EXTENSIONS, build_dir="build/cython"),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
