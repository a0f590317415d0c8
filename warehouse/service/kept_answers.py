"""Answers that are read in pieces: their rows lie in a file for a while, bounded in bytes and in time.

All pieces are of one answer at one commit, wherever a reader jumps to, and neither the server nor the reader holds more
than some pieces in memory.
"""

import bisect
import json
import os
import secrets
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.catalog.records import Role
from windrow.errors import BusyError, QueryError, UnknownStreamError, WindrowError
from windrow.files import disk_errors
from windrow.formats.text import distinct_names, format_column, is_bytes, type_name
from windrow.indexes.arrow_arrays import compute as pc
from windrow.service.row_formats import dump_json
from windrow.service.statement_worker import Request
from windrow.service.worker_pool import RunningStatement, read_batches

_PIECE_ROWS = 8192
"""Rows that are kept, and read again, together. A choice, not measured."""
_CELL_CHARACTERS = 400
"""Of longer cells a piece has the beginning."""
_CHART_ROWS = 100_000
"""Of a longer answer the chart has the beginning, and says so. A bound, not measured."""


@dataclass(frozen=True)
class KeepLimits:
    """What the kept answers of one process may take."""

    answer_bytes: int = 512 << 20
    all_bytes: int = 2 << 30
    answers: int = 64
    of_one_token: int = 8
    idle_seconds: float = 600.0
    """An answer that nobody has asked for so long is dropped,"""
    patience_seconds: float = 60.0
    """and one that still runs is cancelled after this."""


class KeptAnswer:
    """The rows of one statement, while they come and after.

    Args:
        who: The token that asked.
        role: As it was when it asked.
        statement: What a worker runs.
        limits: How much is kept, and how long one that nobody reads goes on.
        make_room: Called with a number of bytes; whether all answers together may take so many more.
    """

    def __init__(
        self,
        who: str,
        role: Role,
        statement: RunningStatement,
        limits: KeepLimits,
        make_room: Callable[[int], bool],
    ) -> None:
        self.who, self.role = who, role
        self.about: dict[str, Any] | None = None
        self.schema: pa.Schema | None = None
        self.error: BaseException | None = None
        self.done = False
        self.cut = ""
        """Why not all rows were kept, in one sentence; empty if they were."""
        self.rows = self.bytes = 0
        self.used = time.monotonic()
        self._statement, self._limits, self._make_room = statement, limits, make_room
        self._file = tempfile.TemporaryFile(prefix="windrow-answer-")  # noqa: SIM115 - it goes with this object
        weakref.finalize(self, self._file.close)
        self._starts: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._changed = threading.Condition()

    def fill(self, request: Request) -> None:
        """Run the statement and keep what comes; a thread does it."""
        try:
            self._statement.begin(request, self._is_abandoned)
            about = json.loads(self._statement.frame()[1])
            batches = read_batches(self._statement)
            schema = next(batches)
            with self._changed:
                self.about, self.schema = about, schema.remove_metadata()
                self._changed.notify_all()
            with disk_errors("keeping an answer"):
                for batch in batches:
                    for start in range(0, batch.num_rows, _PIECE_ROWS):
                        self._add(batch.slice(start, _PIECE_ROWS))
                    if self.cut:
                        break
        except WindrowError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whoever reads it gets it
            self.error = error
        finally:
            self._statement.close()
            with self._changed:
                self.done = True
                self._changed.notify_all()

    def _add(self, piece: pa.RecordBatch) -> None:
        if self.cut or not piece.num_rows:
            return
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, piece.schema.remove_metadata(), options=options) as writer:
            writer.write_batch(piece.replace_schema_metadata(None))
        content = sink.getvalue()
        if self.bytes + content.size > self._limits.answer_bytes or not self._make_room(content.size):
            self.cut = (
                f"only the first {self.rows:,} rows ({self.bytes / 1e6:,.0f} MB) are kept; "
                "ask for less, or have all rows by POST /sql"
            )
            return
        self._file.write(content)
        self._file.flush()
        with self._changed:
            self._starts.append(self.rows)
            self._places.append((self.bytes, content.size))
            self.rows += piece.num_rows
            self.bytes += content.size
            self._changed.notify_all()

    def _is_abandoned(self) -> bool:
        return time.monotonic() - self.used > self._limits.patience_seconds

    def cancel(self) -> None:
        """End the statement if it still runs."""
        self._statement.cancel("whoever asked wants it no longer")

    def wait(self, rows: int, seconds: float) -> None:
        """Return when so many rows are there, or all, or the time is over; raises the statement's error."""
        self.used = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self.done or (self.schema is not None and self.rows >= rows), seconds)
        self.used = time.monotonic()
        if self.error is not None:
            raise self.error

    def state(self) -> dict[str, Any]:
        """How far it has come."""
        columns = None
        if self.schema is not None:
            columns = [
                {"name": name, "type": type_name(field), "kind": _kind(field)}
                for name, field in zip(distinct_names(self.schema.names), self.schema, strict=True)
            ]
        return {
            "rows": self.rows, "done": self.done, "columns": columns, "about": self.about, "cut": self.cut,
        }  # fmt: skip

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Rows from `start` to before `stop`; without `stop` all that there will be, waited for."""
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        while True:
            with self._changed:
                while stop is None and not self.done and number >= len(self._places):
                    self._changed.wait()
                if number >= len(self._places):
                    break
                first, (place, size) = self._starts[number], self._places[number]
            self.used = time.monotonic()
            if stop is not None and first >= stop:
                return
            batch = pa.ipc.open_stream(pa.py_buffer(os.pread(self._file.fileno(), size, place))).read_next_batch()
            low, high = max(0, start - first), batch.num_rows if stop is None else stop - first
            yield batch.slice(low, high - low)
            number += 1
        if stop is None and self.error is not None:
            raise self.error

    def piece(self, start: int, count: int, *, whole: bool) -> list[list[str | None]]:
        """Rows as text, as all of Windrow writes values; None for NULL. Long cells are cut unless `whole`."""
        rows: list[list[str | None]] = []
        for batch in self.batches(start, start + count):
            columns = [_texts(column, field, whole) for column, field in zip(batch.columns, batch.schema, strict=True)]
            rows += map(list, zip(*columns, strict=True))
        return rows

    def chart_rows(self) -> pa.Table:
        """The rows that are drawn: the first ones, if there are very many."""
        if self.schema is None:
            raise QueryError("there are no rows yet; ask again")
        return pa.Table.from_batches(list(self.batches(0, _CHART_ROWS)), self.schema)


def _kind(field: pa.Field) -> str:
    kind = field.type
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return "number"
    if pt.is_temporal(kind):
        return "time"
    if pt.is_boolean(kind):
        return "truth"
    return "bytes" if is_bytes(kind) else "nested" if pt.is_nested(kind) else "text"


def _texts(column: pa.Array, field: pa.Field, whole: bool) -> list[str | None]:
    text = format_column(column, field).cast(pa.large_string())
    if not whole and pc.any(pc.greater(pc.utf8_length(text), _CELL_CHARACTERS)).as_py():
        short = pc.utf8_slice_codeunits(text, 0, _CELL_CHARACTERS)
        shortened = pc.binary_join_element_wise(short, _large("…"), _large(""))
        text = pc.if_else(pc.greater(pc.utf8_length(text), _CELL_CHARACTERS), shortened, text)
    values: list[str | None] = text.to_pylist()
    return values


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


class AnswerStore:
    """The kept answers of a process, by their id; each only for the token that asked.

    Args:
        limits: What they may take.
    """

    def __init__(self, limits: KeepLimits | None = None) -> None:
        self._limits = limits or KeepLimits()
        self._kept: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None

    def begin(self, who: str, role: Role, statement: RunningStatement, request: Request) -> str:
        """Begin to keep the rows of a statement; gives the answer's id."""
        answer = KeptAnswer(who, role, statement, self._limits, self._has_room)
        key = secrets.token_urlsafe(12)
        with self._guard:
            self._drop_some(who)
            self._kept[key] = answer
        self._watch()
        threading.Thread(target=answer.fill, args=(request,), name="windrow-answer", daemon=True).start()
        return key

    def get(self, key: str, who: str, role: Role) -> KeptAnswer:
        """An answer, for the token that asked, with the rights that it had then."""
        with self._guard:
            answer = self._kept.get(key)
            if answer is None or answer.who != who or answer.role != role:
                raise UnknownStreamError("there is no such answer, or no longer; ask again")
            self._kept.move_to_end(key)
        return answer

    def drop(self, key: str) -> None:
        """Forget an answer, and end its statement."""
        with self._guard:
            answer = self._kept.pop(key, None)
        if answer is not None:
            answer.cancel()

    def close(self) -> None:
        """Forget them all."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._kept):
            self.drop(key)

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept; the least recently used answers that are whole give way."""
        with self._guard:
            ended = [key for key, answer in self._kept.items() if answer.done]
            while sum(answer.bytes for answer in self._kept.values()) + size > self._limits.all_bytes:
                if not ended:
                    return False
                self._kept.pop(ended.pop(0))
        return True

    def _drop_some(self, who: str) -> None:
        """Drop what is old, and the least recently used of what is too much; the lock is held."""
        limits = self._limits
        self._drop_idle()
        of_caller = [key for key, answer in self._kept.items() if answer.who == who]
        for key in of_caller[: max(0, len(of_caller) - limits.of_one_token + 1)]:
            self._kept.pop(key).cancel()
        ended = [key for key, answer in self._kept.items() if answer.done]
        while len(self._kept) >= limits.answers:
            if not ended:
                raise BusyError(f"{len(self._kept)} answers are being read already; ask again later")
            self._kept.pop(ended.pop(0))

    def _drop_idle(self) -> None:
        oldest = time.monotonic() - self._limits.idle_seconds
        for key in [key for key, answer in self._kept.items() if answer.used < oldest]:
            self._kept.pop(key).cancel()

    def _watch(self) -> None:
        """Look again in a while, as long as there are any."""
        with self._guard:
            self._drop_idle()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            if self._kept:
                self._timer = threading.Timer(self._limits.idle_seconds / 4, self._watch)
                self._timer.daemon = True
                self._timer.start()


def encode_piece(answer: KeptAnswer, start: int, count: int, *, whole: bool) -> bytes:
    """A piece with the state of its answer."""
    return dump_json(answer.state() | {"start": start, "cells": answer.piece(start, count, whole=whole)})
