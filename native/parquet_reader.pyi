"""Types of the Parquet reader."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

class Declined(ValueError):
    """The rows may be sound, but must be read by pyarrow; `part` is the position of the file among the parts."""

    part: int | None

class Damaged(ValueError):
    """The bytes cannot be what a writer wrote; `part` is the position of the file among the parts."""

    part: int | None

class FileMap(Buffer):
    """A whole file as memory that cannot be written; the descriptor is no longer needed."""

    def __init__(self, descriptor: int, size: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    @property
    def lost(self) -> bool:
        """Whether a page was read that the file no longer has: it became shorter, and reads as zeros there."""
    def holds(self, address: int) -> bool:
        """Whether an address is in this memory."""

class FileLayout:
    """Where the columns of one file lie: its row groups and chunks, and (found at the first touch) their pages.

    `declined` names each column of the schema that `read_ranges` cannot read from this file, and why.
    """

    trusted: bool
    """Checksums of pages need not be compared: this very process wrote them."""
    kept: Any
    """A `BoundedCache` of unpacked pages; None: they are not kept."""
    name: str
    """Of the file, in that cache."""

    @property
    def packed(self) -> bool:
        """Whether a column that can be read is compressed."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def declined(self) -> dict[str, str]: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_row_groups(self) -> int: ...
    def row_groups(self) -> list[int]:
        """The first row of each row group, and the number of rows at the end: for readers by row group."""
    def cuts(self, start: int, stop: int) -> list[int]:
        """The rows between `start` and `stop` at which another row group begins."""
    def open_bytes(self, names: Iterable[str], start: int, stop: int) -> int:
        """About how many bytes of columns, in the row groups within [start, stop), can be handed out where they lie.

        They are long texts, neither compressed nor in a dictionary, and need no memory but for their offsets.
        """

    def plain_texts(self) -> list[str]:
        """The text columns that are neither compressed nor in a dictionary anywhere in the file."""

    def verify(self, file: Buffer, names: Iterable[str], first: int = 0, last: int = ...) -> None:
        """Compare columns, in the row groups from `first` up to `last`, with their checksums: each chunk once.

        Names that the file does not have are passed over. Raises `Damaged`.
        """
    def checksums(self, file: Buffer) -> bytes:
        """What `open_file_layout` compares a file with: its size, and checksums of its footer and column chunks."""

def open_file_layout(file: Buffer, schema: pa.Schema, checksums: bytes | None = None) -> FileLayout:
    """Parse a file's footer (`file` is the whole file as a buffer) for reading columns of the Arrow schema.

    With `checksums`, as `FileLayout.checksums` gave them when the file was written, its size and footer are compared
    with them at once, and each column chunk when it is first read. Another file is then `Damaged`.
    """

def read_ranges(
    parts: Iterable[
        tuple[Buffer, FileLayout, Sequence[int] | npt.NDArray[np.int64], Sequence[int] | npt.NDArray[np.int64]]
    ],
    columns: Sequence[str],
    schema: pa.Schema,
) -> pa.Table:
    """`read_spans` for ranges that are given file by file: (file, layout, starts, stops)."""

def read_spans(
    files: Sequence[tuple[Buffer, FileLayout]],
    part: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    stop: npt.NDArray[np.int64],
    columns: Sequence[str],
    schema: pa.Schema,
) -> pa.Table:
    """Read many row ranges, in order, as a table of one chunk per column.

    A column of the schema that a file lacks is null in its rows.

    Args:
        files: (file, layout) of each part: the whole file as a buffer, and what `open_file_layout` gave for it.
        part: of each range, the position of its file among `files`.
        start: first row of each range.
        stop: one past the last row of each range.
        columns: names of columns of the schema.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """

def read_live(
    files: Sequence[tuple[Buffer, FileLayout]],
    part: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    stop: npt.NDArray[np.int64],
    limits: Iterable[tuple[str, int, int]],
    wanted: pa.Schema,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Read those rows of many ranges that are within limits, in order, as one batch; of the others only what decides.

    A limit is (name, after, upto): a column of 64-bit numbers or times, and which values are kept: after < v <= upto.
    `wanted` is the schema of the wanted columns, all of them of `schema`; text may be wanted as views of the files.
    Errors and the other arguments are those of `read_spans`.
    """

def read_rows(
    file: Buffer, layout: FileLayout, start: int, stop: int, wanted: pa.Schema, schema: pa.Schema
) -> pa.RecordBatch:
    """Read one row range of one file as one batch; arguments and errors as of `read_live`."""

def count_lost_pages() -> int:
    """How many pages of mapped files were gone when somebody read them."""

def count_idle_bytes() -> int:
    """Bytes that are kept for the next long column of text."""
