"""What handles of one warehouse share in a process: after the last close nothing of it is left, whatever happened before.

DuckDB has no list of its instances; its worker threads are counted instead, and descriptors below the warehouse.
"""

import contextlib
import datetime as dt
import gc
import os
import threading
import time
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from windrow.errors import QueryError
from windrow.queries.engine.instance import open_cursor

NOON = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.string())])


def fill(path: Path) -> windrow.Warehouse:
    """An open warehouse with one stream and a few slides."""
    wh = windrow.open(path)
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
    for minute in range(3):
        start = NOON + dt.timedelta(minutes=minute)
        times = [start + dt.timedelta(seconds=second + 1) for second in range(50)]
        wh.append("s", pa.table([pa.array(times, SCHEMA.field(0).type), list(range(50)), ["x"] * 50], schema=SCHEMA))
        wh.slide("s", to=start + dt.timedelta(minutes=1))
    return wh


def use(wh: windrow.Warehouse) -> None:
    """Go through all that opens an instance, a cursor, a thread or a file."""
    assert wh.sql("SELECT count(*) FROM s").fetchall() == [(150,)]
    assert wh.sql("SELECT v FROM s WHERE k = 7").fetchall() == [("x",)] * 3
    assert wh.sql("SELECT k, sum(k) FROM s GROUP BY k", isolation="latest").arrow().num_rows == 50
    wh.explain("SELECT * FROM s ORDER BY k LIMIT 2")


def native_threads() -> set[int]:
    """Also those that Python does not know, such as DuckDB's workers."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def descriptors(path: Path) -> list[str]:
    """Open files and maps below a folder."""
    opened = []
    for name in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [actual for actual in (*opened, *mapped) if actual.startswith(str(path))]


def threads_since(before: set[int]) -> set[int]:
    """Threads that are still there; those that end take a moment to vanish."""
    gc.collect()  # tracebacks of errors hold on to frames
    for _ in range(3000):
        if native_threads() <= before:
            break
        time.sleep(0.02)
    return native_threads() - before


def left_over(path: Path) -> list[str]:
    """Files that are still open or mapped after the handles are gone."""
    gc.collect()
    return descriptors(path)


@pytest.fixture
def before(tmp_path):
    """The process's own threads (signal watcher, parser, Arrow) are there before any is counted."""
    with fill(tmp_path / "first") as wh:
        use(wh)
    gc.collect()
    return native_threads()


def test_nothing_is_left_after_the_last_close(tmp_path, before):
    path = tmp_path / "w"
    one = fill(path)
    other = windrow.open(path)
    for wh in (one, other):
        use(wh)
    one.close()
    use(other)
    other.close()
    assert threads_since(before) == set()
    assert left_over(path) == []


def test_an_instance_that_is_left_would_be_seen(tmp_path, before):
    """So that the other tests are worth something: a cursor that is not closed keeps its instance, and its threads."""
    with fill(tmp_path / "w") as wh:
        cursor = open_cursor(wh._store)
        cursor.execute(
            "SELECT sum(range) FROM range(1_000_000)"
        ).fetchall()  # DuckDB starts its threads when it needs them
    assert native_threads() - before
    cursor.close()
    assert threads_since(before) == set()


def test_handles_share_one_instance(tmp_path):
    """A table that one handle's cursor makes is there for the other's: an instance of its own would not have it."""
    with fill(tmp_path / "w") as one, windrow.open(tmp_path / "w") as other:
        assert one._store.shared is other._store.shared
        with contextlib.closing(open_cursor(one._store)) as cursor:
            cursor.execute("CREATE TABLE memory.main.made_by_one AS SELECT 1 AS a")
        with contextlib.closing(open_cursor(other._store)) as cursor:
            assert cursor.execute("FROM memory.main.made_by_one").fetchall() == [(1,)]


def test_a_handle_that_nobody_closed_is_let_go_of_when_the_next_warehouse_is_opened(tmp_path):
    """Nothing that handles share may keep a handle alive: each would hold an instance with its threads for good."""
    wh = fill(tmp_path / "w")
    use(wh)
    catalog = weakref.ref(wh._store.catalog)
    del wh
    for _ in range(3000):  # a thread that appended rows may be about to end
        gc.collect()
        if catalog() is None:
            break
        time.sleep(0.02)
    assert catalog() is None
    with windrow.open(tmp_path / "other"):
        assert left_over(tmp_path / "w") == []


def test_nothing_is_left_after_an_exception(tmp_path, before):
    path = tmp_path / "w"
    with pytest.raises(QueryError), fill(path) as wh:
        use(wh)
        wh.sql("SELECT k // 0, error('stop') FROM s").fetchall()
    with pytest.raises(RuntimeError, match="in the middle"), windrow.open(path) as wh:
        rows = iter(wh.sql("SELECT * FROM s"))
        next(rows)
        raise RuntimeError("in the middle of an answer")
    del rows
    assert threads_since(before) == set()
    assert left_over(path) == []


def test_an_answer_outlives_its_warehouse_and_then_nothing_is_left(tmp_path, before):
    path = tmp_path / "w"
    with fill(path) as wh:
        answer, unread = wh.sql("SELECT k FROM s"), wh.sql("SELECT v FROM s")
    assert len(answer.fetchall()) == 150
    unread.close()
    assert threads_since(before) == set()
    del answer, unread, wh
    assert left_over(path) == []


def test_a_forked_child_has_its_own_and_leaves_the_parents_alone(tmp_path):
    path = tmp_path / "w"
    with fill(path) as wh:
        use(wh)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with windrow.open(path) as handle:
                    use(handle)
                del wh
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        use(wh)


def test_a_fork_with_threads_running_ends(tmp_path):
    """A child that only ends lets go of nothing that its parent still has."""
    with fill(tmp_path / "w") as wh:
        use(wh)
        thread = threading.Thread(target=use, args=[wh])
        thread.start()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        use(wh)
