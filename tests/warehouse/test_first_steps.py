"""What somebody new tries in the first hour: each test is something that made one of them stumble."""

import datetime as dt
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import typing
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from command_line import NOON, SCHEMA, UTC, CommandLine, at, rows, table
from windrow.automatic_slides import AutomaticSlides
from windrow.definitions import RESERVED_WORDS
from windrow.warehouse import FailurePolicy, GapPolicy, Isolation, MissedRuns, Output, Policy, RunGapPolicy, Warehouse

OPTIONS = {"time": "ts", "key": "src", "slide": "1 minute", "lifetime": "16 minutes"}


@pytest.fixture
def wh(path):
    with windrow.open(path) as wh:
        wh.create_stream("packets", SCHEMA, **OPTIONS)
        yield wh


class Test_names_and_types:
    def test_the_module_shows_what_is_for_users_and_nothing_else(self):
        assert set(dir(windrow)) == set(windrow.__all__)
        for name in windrow.__all__:
            assert getattr(windrow, name) is not None
        assert not {"os", "Any", "importlib"} & set(dir(windrow))

    def test_every_class_that_the_interface_returns_has_a_public_name(self):
        returned = set()
        for _, method in inspect.getmembers(Warehouse, inspect.isfunction):
            returned |= set(str(method.__annotations__.get("return", "")).replace("[", " ").replace("]", " ").split())
        ours = {name for name in returned if name[0].isupper() and not name.startswith(("None", "Any", "Self"))}
        assert ours - {"QueryPlanGroup"} <= set(windrow.__all__), ours

    def test_open_takes_what_a_warehouse_takes(self, path):
        ours, theirs = inspect.signature(windrow.open).parameters, inspect.signature(Warehouse).parameters
        assert [(p.name, p.default, p.kind) for p in ours.values()] == [
            (p.name, p.default, p.kind) for p in theirs.values()
        ]
        with pytest.raises(TypeError, match="read_onyl"):
            windrow.open(path, read_onyl=True)

    def test_named_choices_are_those_that_are_checked(self):
        from windrow.cli.queries import MISSED_POLICIES, OUTPUT_KINDS
        from windrow.cli.sql import ISOLATION_LEVELS
        from windrow.definitions import FAILURE_POLICIES
        from windrow.queries.answer import GAP_POLICIES
        from windrow.queries.periodic import registry, scheduler

        assert typing.get_args(GapPolicy) == GAP_POLICIES
        for choice in typing.get_args(RunGapPolicy):
            registry.check_waiting(choice, "1 minute" if choice == "wait" else None, "latest", "snapshot")
        assert set(typing.get_args(Isolation)) == set(ISOLATION_LEVELS)
        assert set(typing.get_args(MissedRuns)) == set(MISSED_POLICIES)
        assert set(typing.get_args(Output)) == set(OUTPUT_KINDS)
        assert set(typing.get_args(FailurePolicy)) == set(FAILURE_POLICIES)
        for policy in typing.get_args(Policy):
            scheduler.check_policy(policy)

    def test_words_that_sql_keeps_for_itself_are_no_names(self, wh):
        """The list is compared with what DuckDB's own parser does not take behind FROM."""
        words = [row[0] for row in duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
        refused = set()
        for word in words:
            try:
                duckdb.extract_statements(f"SELECT * FROM {word}")
            except duckdb.Error:
                refused.add(word)
        assert refused == RESERVED_WORDS
        with pytest.raises(windrow.InvalidNameError, match="'Order' is a reserved word of SQL"):
            wh.create_stream("Order", SCHEMA, **OPTIONS)
        with pytest.raises(windrow.InvalidNameError, match="'table'"):
            wh.put_table("table", table(1))

    def test_an_unknown_column_is_an_error_of_the_schema(self, wh):
        with pytest.raises(windrow.SchemaError, match=r"no column 'nope'; it has ts, src, len"):
            wh.scan("packets", columns=["nope"])


class Test_declaring:
    def frames(self):
        data = {"ts": [at(1), at(2)], "name": ["a", None], "n": [1, 2], "x": [0.5, None]}
        yield pa.table(data)
        yield pd.DataFrame(data)
        yield pl.DataFrame(data)
        yield [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]

    def test_a_stream_like_a_frame_takes_that_frame(self, wh):
        for number, frame in enumerate(self.frames()):
            name = f"s{number}"
            wh.create_stream(name, like=frame, time="ts", slide="1 minute")
            assert wh.append(name, frame).accepted == 2
            wh.slide(name, to=at(60))
            actual = wh.sql(f"SELECT epoch_us(ts), name, n, x FROM {name} ORDER BY n").fetchall()
            assert [row[1:] for row in actual] == [("a", 1, 0.5), (None, 2, None)]
            assert [row[0] for row in actual] == [int(at(s).timestamp()) * 1_000_000 for s in (1, 2)]

    def test_a_stream_like_a_file_takes_that_file(self, tmp_path, wh):
        file = tmp_path / "day.csv"
        file.write_text("ts,host\n2025-01-01T12:00:01,ant\n")
        wh.create_stream("logs", like=file, time="ts", slide="1 minute")
        assert wh.stream("logs").definition.schema.names == ["ts", "host"]
        pq.write_table(table(1, 2), tmp_path / "day.parquet")
        wh.create_stream("more", like=str(tmp_path / "day.parquet"), time="ts", slide="1 minute")
        assert wh.stream("more").definition.schema.equals(SCHEMA)
        with pytest.raises(windrow.DefinitionError, match=r"either its schema or like="):
            wh.create_stream("none", time="ts", slide="1 minute")

    def test_a_notebook_can_be_run_twice(self, wh):
        for _ in range(2):
            wh.create_stream("packets", SCHEMA, **OPTIONS, if_not_exists=True)
            view = wh.create_view("large", "SELECT src, len FROM packets WHERE len > 150", if_not_exists=True)
            summary = wh.create_summary(
                "heavy", "SELECT src, count(*) AS n FROM packets GROUP BY src", if_not_exists=True
            )
            query = wh.add_query(
                "n", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]", if_not_exists=True
            )
            wh.append("packets", table(*range(1, 61)), batch_id="1")
            wh.slide("packets", to=at(60))
        assert (view.name, summary.name, query.name) == ("large", "heavy", "n")
        assert wh.sql("SELECT count(*) FROM packets").fetchall() == [(60,)]
        with pytest.raises(windrow.StreamExistsError):
            wh.create_stream("packets", SCHEMA, **OPTIONS)
        with pytest.raises(windrow.DefinitionError):
            wh.create_stream("large", SCHEMA, **OPTIONS)

    def test_scripts_can_be_run_twice(self, path, wh, tmp_path):
        (tmp_path / "t.csv").write_text("a\n1\n")
        run = CommandLine(path)
        columns = ["--column", "ts:timestamptz", "--time", "ts", "--slide", "1 minute", "--if-not-exists"]
        for _ in range(2):
            run("stream", "create", "s", *columns)
            run(
                "view",
                "create",
                "v",
                "SELECT src, len FROM packets",
                "--time",
                "at",
                "--expires",
                "gone",
                "--if-not-exists",
            )
            run("summary", "create", "m", "SELECT src, count(*) AS n FROM packets GROUP BY src", "--if-not-exists")
            run("role", "create", "r", "--right", "read", "--if-not-exists")
            run("table", "put", "t", tmp_path / "t.csv")
            run("init")
            run("query", "add", "q", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]", "--if-not-exists")
        for kind, name, *declared in (
            ("view", "v", "SELECT src, len FROM packets"),
            ("summary", "m", "SELECT src, count(*) AS n FROM packets GROUP BY src"),
            ("role", "r", "--right", "append"),
            ("stream", "s", *columns),
        ):
            again = run(kind, "create", name, *declared, "--if-not-exists").stdout
            assert again.startswith(f"there is already {kind} {name}"), again
        assert run.json("role", "list")[0]["rights"] == ["read"], "what is there stays as it is"
        assert {"at", "src", "len"} <= set(wh.stream("v").definition.schema.names)

    def test_what_a_view_cannot_read_is_called_by_its_name(self, wh):
        wh.put_table("known", pa.table({"src": pa.array([1], pa.int64())}))
        wh.append("packets", table(1, 2, 3))
        wh.slide("packets", to=at(60))
        wh.add_query("totals", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        with pytest.raises(windrow.ViewError, match="view 'v' reads results, which come with runs, and 'packets'"):
            wh.create_view("v", "SELECT p.src, n FROM packets AS p, totals")
        with pytest.raises(windrow.ViewError, match="SEMI JOIN"):
            wh.create_view("v", "SELECT src, len FROM packets WHERE src IN (SELECT src FROM known)")
        wh.create_view("v", "SELECT src, len FROM packets SEMI JOIN known USING (src)")  # as it was advised
        assert wh.sql("SELECT src, len FROM v").fetchall() == [(1, 101)]


class Test_the_clock:
    def test_the_status_has_the_clock_as_a_time(self, wh):
        assert wh.status().streams[0].now is None
        wh.append("packets", table(1))
        wh.slide("packets", to=at(60))
        assert wh.status().streams[0].now == at(60) == wh.now("packets")

    def test_the_status_says_what_a_stream_waits_for(self, path, wh):
        def waits(name="packets"):
            return wh.stream(name).waits_for

        assert waits() == "its first rows"
        wh.append("packets", table(1, 61))
        assert waits() == "a slide, which may go to 2025-01-01T12:01:00Z"
        wh.slide("packets")
        assert waits() == "newer rows, or a slide that names its time"
        assert "newer rows, or a slide --to a time" in CommandLine(path)("slide", "packets").stdout
        wh.slide("packets", to=at(120))
        assert waits() == "newer rows"
        wh.create_view("v", "SELECT src, len FROM packets")
        assert waits("v") == "slides of packets"
        wh.create_stream("two", SCHEMA, **OPTIONS, sources=["a", "b"])
        assert waits("two") == "source 'a', source 'b'"
        assert "waits for" in CommandLine(path)("status").stdout

    def test_a_stream_slides_to_the_wall_clock(self, path):
        now = [int(at(150).timestamp()) * 1_000_000]
        with windrow.open(path, clock=lambda: now[0]) as wh:
            wh.create_stream("packets", SCHEMA, **OPTIONS)
            assert wh.slide("packets", to="now").now == at(120)
            said, slid = [], []
            clocks = AutomaticSlides(wh, ["packets"], 60_000_000, slid.append, said.append)
            clocks.run()
            assert slid == [], "the clock less the lag is at 12:01:30"
            now[0] += 60_000_000
            wh.append("packets", table(125))
            clocks.run()
            clocks.run()
            assert slid == [], "12:02:30 less nothing"
            now[0] += 60_000_000
            clocks.run()
            assert [(report.now, report.inserted) for report in slid] == [(at(180), 1)]
            with pytest.raises(windrow.UnknownStreamError):
                AutomaticSlides(wh, ["nope"], 0, slid.append, said.append)

    def test_a_source_that_is_behind_is_waited_for_and_named_once(self, path):
        now = [int(at(190).timestamp()) * 1_000_000]
        with windrow.open(path, clock=lambda: now[0]) as wh:
            wh.create_stream("packets", SCHEMA, **OPTIONS, sources=["a", "b"])
            wh.append("packets", table(1, 180), source="a")
            wh.append("packets", table(1, 60), source="b")
            said, slid = [], []
            clocks = AutomaticSlides(wh, ["packets"], 0, slid.append, said.append)
            clocks.run()
            clocks.run()
            assert [report.now for report in slid] == [at(60)]
            assert len(said) == 1 and "source 'b' has reached 2025-01-01T12:01:00Z" in said[0]

    def test_append_can_slide_over_what_it_appended(self, path, wh, tmp_path):
        file = tmp_path / "rows.parquet"
        pq.write_table(table(*range(1, 91)), file)
        run = CommandLine(path)
        document = run.json("append", "packets", file, "--slide")
        assert (document["accepted"], document["slide"]["now"]) == (90, "2025-01-01T12:02:00Z")
        assert wh.sql("SELECT count(*) FROM packets").fetchall() == [(90,)]
        wh.create_stream("two", SCHEMA, **OPTIONS, sources=["a", "b"])
        output = run("append", "two", file, "--source", "a", "--slide").stdout
        assert "two has not slid yet: it waits for b" in output

    def test_sql_has_the_clock_of_the_machine_and_the_streams_own(self, path):
        """As docs/sql.md says: `now()` is the machine's, whatever clock was given to `open`."""
        with windrow.open(path, clock=lambda: int(NOON.timestamp()) * 1_000_000) as wh:
            wh.create_stream("packets", SCHEMA, **OPTIONS)
            wh.slide("packets", to=NOON)
            ((machine, stream),) = wh.sql("SELECT now(), (SELECT now FROM windrow.streams)").fetchall()
        assert abs(machine - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
        assert stream == NOON


class Test_looking_after_it:
    def test_an_answer_says_what_it_is(self, wh):
        wh.append("packets", table(1))
        wh.slide("packets", to=at(60))
        answer = wh.sql("SELECT src, len FROM packets [WINDOW 1 MINUTE]")
        assert repr(answer).startswith("<Answer (src int64, len int32) of packets [WINDOW 1 MINUTE]")
        assert "not read yet" in repr(answer)
        answer.fetchall()
        assert repr(answer).endswith("; read>")

    def test_missing_permission_is_not_called_read_only(self, path, wh, monkeypatch):
        monkeypatch.setattr(wh._store.catalog, "writable", False)
        with pytest.raises(windrow.StorageError, match=r"this process may not write .*catalog.* ask its owner"):
            wh.append("packets", table(1))
        with (
            windrow.open(path, read_only=True) as reading,
            pytest.raises(windrow.StorageError, match="without read_only"),
        ):
            reading.append("packets", table(1))

    @pytest.mark.skipif(os.getuid() != 0, reason="another user is played, which needs root")
    def test_another_user_is_told_to_ask_for_the_permission_whatever_was_opened(self):
        """In a process of that user, for each kind of change and both ways of opening."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            with windrow.open(path) as wh:
                wh.create_stream("packets", SCHEMA, **OPTIONS)
                wh.append("packets", table(1))
                wh.slide("packets", to=at(60))
                wh.append("packets", table(61))
            for place in (path, *path.rglob("*")):
                place.chmod(0o755 if place.is_dir() else 0o644)
            self.change_as_another_user(path)

    def change_as_another_user(self, path):
        program = f"""
            import os, pydoc, shlex, sys, warnings  # what that user could not import
            sys.path.append({str(Path(__file__).parents[1])!r})
            import preloaded_modules, windrow
            os.setgid(65534)
            os.setuid(65534)
            for read_only in (False, True):
                with warnings.catch_warnings(record=True) as caught:
                    wh = windrow.open({str(path)!r}, read_only=read_only)
                (warning,) = caught
                assert warning.filename == "<string>", warning
                assert wh.sql("SELECT src FROM packets").fetchall() == [(1,)]
                counted = "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
                for change in (
                    lambda: wh.append("packets", [{{"ts": "2025-01-01T12:02:00Z", "src": 1, "len": 1}}]),
                    lambda: wh.slide("packets"),
                    lambda: wh.create_view("v", "SELECT src FROM packets"),
                    lambda: wh.add_query("n", counted),
                    lambda: wh.create_summary("s", "SELECT src, count(*) AS n FROM packets GROUP BY src"),
                    lambda: wh.drop_stream("packets"),
                    lambda: wh.erase("packets", where="src = 1"),
                    lambda: wh.sql("SELECT count(*) FROM packets", isolation="fresh").fetchall(),
                    wh.gc,
                ):
                    try:
                        change()
                    except windrow.StorageError as error:
                        assert "ask" in str(error) and "permission" in str(error), error
                        assert "read_only" not in str(error) and not error.temporary, error
                    else:
                        raise AssertionError("it was changed")
                wh.close()
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="statements run in a process of their own")
    def test_statements_of_the_command_leave_nothing_behind(self, path, wh):
        windrow_command = [sys.executable, "-m", "windrow", "-w", str(path)]
        subprocess.run([*windrow_command, "sql", "SELECT count(*) AS n FROM packets", "--csv"], check=True)
        assert wh.gc().orphans == 0

    def test_a_handle_says_what_it_is(self, path, wh):
        assert repr(wh) == f"<Warehouse {path}>"
        with windrow.open(path, read_only=True) as reading:
            assert repr(reading) == f"<Warehouse {path}, for reading>"
        for size in (-1, "1GB"):
            with pytest.raises(windrow.QueryError, match=r"cache_bytes=.* is not a number of bytes"):
                windrow.open(path, cache_bytes=size)

    def test_whatever_is_listed_is_shown_as_a_table(self, wh):
        wh.append("packets", table(1))
        wh.slide("packets", to=at(60))
        assert "<th>kind</th>" in wh.gaps()._repr_html_()
        assert "before first data" in str(wh.gaps())
        wh.add_query("n", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        assert "delivered" in str(wh.run_due(now=True))
        wh.erase("packets", where="src = 1")
        assert str(dt.datetime.now(dt.UTC).year) in str(wh.erasures("packets"))
        assert repr(wh.snapshot()) == f"<Snapshot of commit {wh.status().version}: packets>"

    def test_a_warehouse_whose_files_are_in_a_store_says_where(self, tmp_path):
        with windrow.open(tmp_path / "w", segments=f"file://{tmp_path}/objects") as wh:
            assert f"files in file://{tmp_path}/objects" in str(wh.status())
            assert "<td>uncopied_commits</td>" in wh.status().store._repr_html_()

    def test_a_check_does_not_tell_to_check(self, path, wh):
        wh.add_query("n", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        wh.append("packets", table(*range(1, 60)))
        wh.slide("packets", to=at(60))
        file = next(path.glob("streams/packets/segments/*"))
        for harm in (lambda: file.write_bytes(b"damaged"), file.unlink):
            harm()
            with windrow.open(path) as fresh:
                problems = fresh.check().problems
            assert problems and not any("windrow check" in problem for problem in problems)

    def test_gc_counts_what_its_opening_removed(self, path, wh):
        wh.close()
        crash = (
            "import os, windrow, pyarrow as pa\n"
            f"wh = windrow.open({str(path)!r})\n"
            "wh._store.writer.stage().write_bytes(b'half')\n"
            "os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", crash], check=True)
        assert "1 orphan" in CommandLine(path)("gc").stdout
        assert "0 orphans" in CommandLine(path)("gc").stdout

    def test_help_shows_whole_sentences(self, path):
        for group in ("", "stream", "view", "summary", "query", "table", "role", "token", "backup"):
            output = CommandLine(path)(*filter(None, [group]), "--help").stdout
            assert "..." not in output.replace("[ARGS]...", ""), output


class Test_frames_are_checked_by_value:
    """Whatever type a column has: rows are taken if every value is one of the stream's type."""

    def test_values_that_fit_are_taken(self, wh):
        naive = [at(s).replace(tzinfo=None) for s in (1, 2)]
        for times in (
            pa.array(naive, pa.timestamp("ns")),
            pa.array([t.isoformat() for t in naive], pa.large_string()),
            pa.array([at(1), at(2)], pa.timestamp("ms", "Europe/Berlin")),
        ):
            for lengths in (pa.array([1, None], pa.int64()), pa.array([1.0, None]), pa.array([1, 2], pa.uint64())):
                assert (
                    wh.append("packets", pa.table({"ts": times, "src": pa.array([1, 2]), "len": lengths})).accepted == 2
                )
        wh.slide("packets", to=at(60))
        actual = wh.sql("SELECT DISTINCT ts FROM packets ORDER BY ts").fetchall()
        assert actual == [(at(1),), (at(2),)], "times without a zone are UTC"

    def test_a_frame_of_pandas_with_gaps_is_taken(self, wh):
        frame = pd.DataFrame({"ts": pd.to_datetime(["2025-01-01 12:00:01", "2025-01-01 12:00:02"]), "src": [1, None]})
        assert wh.append("packets", frame.assign(len=[1, 2])).accepted == 2

    @pytest.mark.parametrize(
        ("column", "values", "why"),
        [
            ("len", pa.array([1, 1 << 31], pa.int64()), "row 2.*'len' cannot become int32"),
            ("len", pa.array([1.0, 2.5]), "row 2.*'len'"),
            ("ts", pa.array([1, 1001], pa.timestamp("ns")), "row 1.*'ts'"),
            ("ts", pa.array(["2025-01-01", "soon"]), "row 2.*'ts'"),
        ],
    )
    def test_the_first_value_that_does_not_fit_is_named(self, wh, column, values, why):
        given = table(1, 2)
        with pytest.raises(windrow.SchemaError, match=why):
            wh.append("packets", given.set_column(given.schema.names.index(column), column, values))
        assert wh.stream("packets").spooled_rows == 0

    def test_numbers_are_not_rounded(self, wh):
        wh.create_stream(
            "f",
            pa.schema([("ts", UTC), ("x", pa.float32()), ("y", pa.list_(pa.float32()))]),
            time="ts",
            slide="1 minute",
        )
        exact = {"ts": [at(1)], "x": [0.5], "y": pa.array([[0.5]], pa.list_(pa.float32()))}
        assert wh.append("f", pa.table(exact)).accepted == 1
        for other in ({"x": [0.1]}, {"y": [[0.5]]}):
            with pytest.raises(windrow.SchemaError):
                wh.append("f", pa.table(exact | other))

    def test_dicts_are_rows(self, wh):
        given = [*rows(1, 2), {"ts": "2025-01-01T12:00:03Z", "src": 7, "len": None}]
        assert wh.append("packets", rows(1, 2)).accepted == 2
        assert wh.append("packets", (row for row in given[2:])).accepted == 1
        wh.slide("packets", to=at(60))
        assert wh.sql("SELECT src, len FROM packets ORDER BY ts").fetchall() == [(1, 101), (2, 102), (7, None)]


class Test_data_that_changes:
    def test_new_columns_are_taken_in_on_request(self, wh):
        wh.append("packets", rows(1))
        new = [row | {"host": "ant", "tags": ["a"]} for row in rows(2)]
        with pytest.raises(windrow.SchemaError, match="column 'host' is not in the stream"):
            wh.append("packets", new)
        with pytest.raises(windrow.DefinitionError, match="evolve='drop' is unknown"):
            wh.append("packets", new, evolve="drop")
        assert wh.append("packets", new, evolve="add").accepted == 1
        assert wh.append("packets", rows(3), evolve="add").accepted == 1
        wh.slide("packets", to=at(60))
        actual = wh.sql("SELECT src, host, tags FROM packets ORDER BY ts").fetchall()
        assert actual == [(1, None, None), (2, "ant", ["a"]), (0, None, None)]

    def test_rejected_rows_are_mended_by_sql(self, wh):
        wh.append("packets", [{"ts": None, "src": n, "len": n} for n in (1, 2, 3)])
        assert wh.replay("packets").accepted == 0
        with pytest.raises(windrow.QueryError, match="cannot be selected from like that"):
            wh.replay("packets", with_="SELECT nope FROM rejected")
        with pytest.raises(windrow.QueryError):
            wh.replay("packets", with_="SELECT * FROM read_csv('/etc/passwd')")
        assert wh.rejected("packets").num_rows == 3
        mended = "SELECT * REPLACE (TIMESTAMPTZ '2025-01-01 12:00:01Z' AS ts) FROM rejected WHERE src > 1"
        assert wh.replay("packets", with_=mended).accepted == 2
        assert wh.rejected("packets").num_rows == 0
        wh.slide("packets", to=at(60))
        assert wh.sql("SELECT src FROM packets ORDER BY src").fetchall() == [(2,), (3,)]
