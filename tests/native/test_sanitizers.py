"""The Parquet reader under AddressSanitizer and UBSan, with damaged files as we write them and as pyarrow does.

It is compiled once more, with the sanitizers, and reads files with some bytes changed: it may refuse them or give other
rows, and must not touch memory that is not its own. Arrow allocates by the system's allocator, else an overflow of an
output would not be seen.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SEED", "20261118"))
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all"]

CHILD = """
import importlib.machinery, importlib.util, io, random, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import windrow.native
name = "windrow.native.parquet_reader"
loader = importlib.machinery.ExtensionFileLoader(name, sys.argv[1])
reader = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
loader.exec_module(reader)
assert reader.__file__ == sys.argv[1]
sys.modules[name] = reader
from windrow.indexes.segment_writer import SegmentFileWriter

chance = random.Random(int(sys.argv[2]))
words = ["", "a", "some words", "x" * 300]

def made():
    rows = chance.choice([1, 8, 100, 3000])
    pick = lambda values: [None if chance.random() < 0.1 else chance.choice(values) for _ in range(rows)]
    many = [chance.getrandbits(40) for _ in range(rows)]
    table = pa.table({
        "n": pa.array(range(rows), pa.int64()), "t": pa.array(pick(words), pa.string()),
        "f": pa.array(pick([1.5, 0.0]), pa.float64()), "b": pa.array(pick([True, False]), pa.bool_()),
        "d": pa.array(pick([1, -1]), pa.int16()), "m": pa.array(many, pa.int64()),
        "u": pa.array([f"{value:x}" for value in many], pa.string()), "l": pa.array(pick([[1], [], [2, 3]]), pa.list_(pa.int32())),
        "ts": pa.array(range(rows), pa.timestamp("us", "UTC")),
    })
    out = io.BytesIO()
    if chance.random() < 0.7:
        sink = pa.PythonFile(out, "w")
        writer = SegmentFileWriter(sink, table.schema, chance.choice([2_000, 1 << 20]), ["n"][: chance.randrange(2)])
        for start in range(0, rows, 1000):
            writer.add(table[start : start + 1000])
        writer.close()
    else:
        compression = chance.choice(["none", "snappy", "zstd"])
        pq.write_table(table, out, row_group_size=1000, compression=compression, data_page_size=2000,
                       use_dictionary=chance.random() < 0.5, write_page_checksum=chance.random() < 0.5)
    return table, out.getvalue()

tried = refused = 0
while tried < int(sys.argv[3]):
    table, sound = made()
    layout = reader.open_file_layout(sound, table.schema)
    checksums = layout.checksums(sound)
    for _ in range(20):
        tried += 1
        data = bytearray(sound)
        for _ in range(chance.choice([1, 1, 3])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        content = bytes(data[: chance.choice([len(data)] * 9 + [chance.randrange(len(data))])])
        for known in (None, checksums):
            try:
                opened = reader.open_file_layout(content, table.schema, known)
                opened.verify(content, table.schema.names)
                rows = min(opened.num_rows, table.num_rows)
                start = chance.randrange(rows + 1)
                columns = chance.sample(table.schema.names, 4)
                reader.read_ranges([(content, opened, [start], [rows])], columns, table.schema).validate(full=False)
                wanted = pa.schema([table.schema.field(name) for name in columns])
                part, first, last = (np.array([value], np.int64) for value in (0, start, rows))
                limits = [("ts", -1, chance.randrange(rows + 1))]
                live = reader.read_live([(content, opened)], part, first, last, limits, wanted, table.schema)
                live.validate(full=False)
            except (ValueError, MemoryError, OSError, pa.ArrowException):
                refused += 1
print("tried", tried, "refused", refused)
"""


def compile_with_sanitizers(folder: Path, *options: str) -> Path:
    """The reader as a library of its own; skips where that cannot be made."""
    pytest.importorskip("Cython", reason="Cython, which builds the reader, is not in this environment")
    compiler = os.environ.get("CXX", "g++").split()
    source, library = folder / "parquet_reader.cpp", folder / f"parquet_reader{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [sys.executable, "-m", "cython", "-3", "--cplus", "-o", str(source), "native/parquet_reader.pyx"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command = [*compiler, "-shared", "-fPIC", "-std=c++17", *FLAGS, *options, f"-I{sysconfig.get_path('include')}"]
    (folder / "empty.cpp").write_text("")
    try:
        tried = subprocess.run(
            [*command, "-o", os.devnull, str(folder / "empty.cpp")], capture_output=True, check=False
        )
    except OSError as error:
        pytest.skip(f"there is no compiler: {error}")
    if tried.returncode:
        pytest.skip(f"the compiler has no sanitizers: {tried.stderr[-200:]!r}")
    done = subprocess.run([*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def read_damaged_files(library: Path, number: int) -> None:
    pytest.importorskip("Cython", reason="Cython, which builds the reader, is not in this environment")
    compiler = os.environ.get("CXX", "g++").split()
    preloaded = [
        subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    settings = {
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(library), str(SEED), str(number)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"seed {SEED}: {done.stdout}")
    assert done.returncode == 0, f"seed {SEED}: {done.stderr[:200]} … {done.stderr[-4000:]}"
    assert f"tried {number}" in done.stdout


def test_damaged_files_are_read_within_bounds(tmp_path: Path) -> None:
    read_damaged_files(compile_with_sanitizers(tmp_path, "-O0"), 200)


@pytest.mark.soak
def test_thousands_of_damaged_files_are_read_within_bounds(tmp_path: Path) -> None:
    read_damaged_files(compile_with_sanitizers(tmp_path, "-O1", "-g"), 4000)
