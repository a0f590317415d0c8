"""What history refuses, what it keeps of tables and gaps, and what it survives: kills, damage, backups, dropped streams."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child
from minute_streams import LIFETIME, create_stream, expected, fill_minutes, minute_start
from windrow import Index

REBUILD = Index("round-robin", 2, 2, maintenance="rebuild")


def values(answer: Any) -> list[int]:
    return sorted(v for (v,) in answer.fetchall())


def ask(wh: windrow.Warehouse, clause: str) -> list[int]:
    return values(wh.sql(f"SELECT v FROM s {clause}"))


@pytest.fixture
def wh(path: Path) -> Any:
    with create_stream(path, index=REBUILD, history="6 minutes") as made:
        fill_minutes(made, "s", 0, 15)
        yield made


class Test_refusals:
    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("SELECT v FROM s [AS OF COMMIT 100000]", "in the future"),
            ("SELECT v FROM s [AS OF SLIDE 99999999]", "ahead of stream 's'"),
            ("SELECT v FROM s [AS OF SLIDE 3]", "before the history of stream 's'"),
            ("SELECT v FROM s [AS OF TIMESTAMP '2026-01-01 00:02:00+00']", "before the history"),
            ("SELECT v FROM s [WINDOW 11 MINUTES INCLUDING EXPIRED]", "keeps rows for 10 minutes"),
            ("SELECT now(), v FROM s [INCLUDING EXPIRED]", "volatile"),
            ("SELECT v FROM s [AS OF COMMIT 30] WHERE random() < 0.5", r"random\(\) gives something else"),
            ("SELECT v, (SELECT uuid()) FROM s [AS OF COMMIT 30]", r"uuid\(\) gives something else"),
            ("SELECT v FROM s [AS OF COMMIT 30] TABLESAMPLE 50%", "a sample gives something else"),
            ("SELECT v FROM plain [INCLUDING EXPIRED]", "keeps no history"),
            ("SELECT k FROM pairs [AS OF COMMIT 20]", "is a view"),
            ("SELECT n FROM counts [AS OF COMMIT 20]", "table of results"),
            ("SELECT * FROM windrow.streams [AS OF COMMIT 20]", "has no history"),
            ("SELECT x FROM hosts [AS OF SLIDE 20]", "has no history"),
            ("SELECT a.v FROM s [AS OF COMMIT 30] a, s [AS OF SLIDE 29453759] b", "holds for all"),
            ("SELECT v FROM s [AS OF]", "write AS OF TIMESTAMP"),
            ("SELECT v FROM s [WINDOW 1 MINUTE AS OF COMMIT 1.5]", "whole number"),
            ("SELECT v FROM s [WINDOW 1 MINUTE INCLUDING]", "EXPIRED"),
        ],
    )
    def test_what_cannot_be_asked_again_is_refused_with_its_reason(self, wh: Any, statement: str, why: str) -> None:
        wh.create_stream("plain", wh.stream("s").definition.schema, time="ts", slide="1 minute", lifetime="1 hour")
        if "pairs" in statement:
            wh.create_view("pairs", "SELECT k, v FROM s")
        if "counts" in statement:
            wh.add_query("counts", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        wh.put_table("hosts", pa.table({"x": [1]}))
        with pytest.raises(windrow.WindrowError, match=why):
            wh.sql(statement)

    def test_what_runs_at_every_slide_cannot_ask_the_past(self, wh: Any) -> None:
        with pytest.raises(windrow.WindrowError, match="cannot stand in it"):
            wh.add_query("q", "SELECT count(*) FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE INCLUDING EXPIRED]")
        with pytest.raises(windrow.WindrowError, match="cannot stand in it"):
            wh.create_view("old", "SELECT k FROM s [AS OF COMMIT 4]")

    def test_a_history_is_a_slide_at_least(self, wh: Any) -> None:
        with pytest.raises(windrow.WindrowError, match="shorter than the slide"):
            wh.alter_stream("s", history="5 seconds")

    def test_an_open_snapshot_asks_again_and_refuses_two_pasts(self, wh: Any) -> None:
        commit = wh.sql("SELECT 1 FROM s").version
        with wh.snapshot(as_of=commit) as then:
            assert values(then.sql("SELECT v FROM s [WINDOW 2 MINUTES]")) == expected(15, back=2)
            with pytest.raises(windrow.WindrowError, match="already"):
                then.sql("SELECT v FROM s [INCLUDING EXPIRED]")
        for wrong in (commit + 1000, -1, "soon"):
            with pytest.raises(windrow.WindrowError):
                wh.snapshot(as_of=wrong)


class Test_asking:
    def test_every_spelling_means_the_same(self, wh: Any) -> None:
        slide = wh.stream("s").slide - 2
        wanted = expected(13, back=3)
        instant = minute_start(13).isoformat()
        for relation in (
            f"s [WINDOW 3 MINUTES AS OF SLIDE {slide}]",
            f"s [WINDOW 3 MINUTES AS OF TIMESTAMP '{instant}']",
            f"window('s', INTERVAL 3 MINUTES, as_of := TIMESTAMP '{instant}')",
            f"window('s', INTERVAL 3 MINUTES, as_of_slide := {slide})",
        ):
            for isolation in ("snapshot", "latest", "serial"):
                answer = wh.sql(f"SELECT v FROM {relation}", isolation=isolation)
                assert values(answer) == wanted
                assert answer.windows[0].slide == slide
        assert values(wh.sql("SELECT v FROM window('s', including_expired := true)")) == expected(15, back=10)
        assert ask(wh, "[WINDOW 10 MINUTES INCLUDING EXPIRED]") == expected(15, back=10)

    def test_now_and_then_are_joined_and_probed(self, wh: Any) -> None:
        slide = wh.stream("s").slide - 3
        both = wh.sql(f"SELECT a.v FROM s [AS OF SLIDE {slide}] a JOIN s b USING (v)")
        assert values(both) == sorted(set(expected(12)) & set(expected(15)))
        for key in range(5):
            wanted = [v for v in expected(12) if v % 100 % 5 == key]
            assert values(wh.sql(f"SELECT v FROM s [AS OF SLIDE {slide}] WHERE k = {key}")) == wanted
        assert values(wh.sql(f"SELECT v FROM s [ROWS 5 AS OF SLIDE {slide}]")) == expected(12)[-5:]
        plan = str(wh.explain(f"SELECT v FROM s [AS OF SLIDE {slide}] WHERE k = 2"))
        assert "AS OF SLIDE" in plan

    def test_tables_are_those_of_the_commit(self, wh: Any) -> None:
        commits = []
        for version in range(3):
            wh.put_table("hosts", pa.table({"x": [version]}))
            commits.append((wh.sql("SELECT x FROM hosts, s LIMIT 1").version, version))
        wh.drop_table("hosts")
        wh.gc()
        for commit, version in commits:
            assert wh.sql(f"SELECT DISTINCT x FROM hosts, s [AS OF COMMIT {commit}]").fetchall() == [(version,)]
        assert wh.check().ok
        fill_minutes(wh, "s", 15, 40)
        wh.gc()
        assert not list((wh.path / "tables" / "hosts").iterdir())
        assert wh.check().ok

    def test_gaps_are_those_known_then(self, wh: Any) -> None:
        before = wh.sql("SELECT 1 FROM s [WINDOW 3 MINUTES]").version
        wh.declare_gap("s", start=minute_start(13), end=minute_start(14), cause="lost")
        within = wh.sql("SELECT 1 FROM s [WINDOW 3 MINUTES]").version
        wh.close_gap(wh.gaps("s")[-1].id)
        for commit, complete in ((before, True), (within, False)):
            assert wh.sql(f"SELECT 1 FROM s [WINDOW 3 MINUTES AS OF COMMIT {commit}]").windows[0].complete is complete
        assert wh.sql("SELECT 1 FROM s [WINDOW 3 MINUTES]").windows[0].complete

    def test_a_column_that_was_added_later_is_not_there(self, wh: Any) -> None:
        before = wh.sql("SELECT * FROM s").version
        wh.alter_stream("s", add_column=("note", pa.string()))
        fill_minutes(wh, "s", 15, 17)
        assert wh.sql(f"SELECT * FROM s [AS OF COMMIT {before}]").arrow().column_names == ["ts", "k", "v"]
        assert wh.sql("SELECT * FROM s").arrow().column_names == ["ts", "k", "v", "note"]
        assert ask(wh, "[INCLUDING EXPIRED]") == expected(17, back=10)


class Test_keeping:
    def test_retention_is_expiry_and_history_and_files_go(self, wh: Any) -> None:
        assert ask(wh, "[INCLUDING EXPIRED]") == expected(15, back=LIFETIME + 6)
        fill_minutes(wh, "s", 15, 40)
        wh.gc()
        status = wh.stream("s")
        assert status.history_rows <= len(expected(40, back=LIFETIME + 8))
        assert status.history_rows >= len(expected(40, back=LIFETIME + 6)) - len(expected(40))
        assert wh.check().ok

    def test_a_history_can_begin_change_and_end(self, path: Path) -> None:
        with create_stream(path, index=REBUILD) as wh:
            fill_minutes(wh, "s", 0, 8)
            wh.alter_stream("s", history="5 minutes")
            began = wh.sql("SELECT 1 FROM s").version
            with pytest.raises(windrow.WindrowError, match="before the history"):
                wh.sql(f"SELECT v FROM s [AS OF COMMIT {began - 1}]")
            fill_minutes(wh, "s", 8, 11)
            assert ask(wh, f"[AS OF COMMIT {began}]") == expected(8)
            wh.alter_stream("s", history="2 minutes")
            fill_minutes(wh, "s", 11, 14)
            wh.alter_stream("s", history="30 minutes")
            fill_minutes(wh, "s", 14, 18)
            assert ask(wh, "[AS OF TIMESTAMP '2026-01-01 00:12:00+00']") == expected(12)
            with pytest.raises(windrow.WindrowError, match="before the history"):
                ask(wh, "[AS OF TIMESTAMP '2026-01-01 00:11:00+00']")
            wh.alter_stream("s", history="none")
            wh.gc()
            assert wh.stream("s").history_rows == 0
            assert ask(wh, "") == expected(18)
            assert wh.check().ok

    def test_a_reader_keeps_what_the_history_gives_up(self, wh: Any) -> None:
        with wh.snapshot() as held:
            fill_minutes(wh, "s", 15, 40)
            wh.gc()
            assert values(held.sql("SELECT v FROM s [INCLUDING EXPIRED]")) == expected(15, back=10)
        wh.gc()
        assert wh.check().ok

    def test_a_dropped_stream_leaves_nothing(self, wh: Any) -> None:
        wh.drop_stream("s")
        wh.gc()
        assert not list((wh.path / "streams").rglob("*.parquet"))
        assert wh.check().ok

    def test_a_backup_has_the_history(self, wh: Any, tmp_path: Path) -> None:
        wh.backup(tmp_path / "backups")
        wh.close()
        from windrow.backup import restore

        restored = restore(tmp_path / "backups", tmp_path / "restored")
        assert restored is not None
        with windrow.open(tmp_path / "restored") as again:
            assert ask(again, "[INCLUDING EXPIRED]") == expected(15, back=10)
            assert again.check().ok

    def test_repair_saves_what_it_can_of_the_history(self, wh: Any) -> None:
        commit = wh.sql("SELECT 1 FROM s").version
        history = wh._store.catalog.read(
            lambda tables: [record.segment for _, record in tables.items("history") if record.gone is None]
        )
        alive = {segment.file for segment in wh._store.manifests[1][1]}
        file = next(segment.file for segment in history if segment.file not in alive)
        (wh.path / file).unlink()
        assert not wh.check().ok
        report = wh.repair("s", give_up=True)
        assert report.rows_lost
        left = ask(wh, "[INCLUDING EXPIRED]")
        assert set(left) < set(expected(15, back=10))
        assert ask(wh, "") == expected(15)
        assert wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]").windows[0].revoked
        assert wh.check().ok


def test_standing_queries_and_views_go_on_beside_a_history(wh: Any) -> None:
    wh.add_query("sums", "SELECT k, sum(v) AS total FROM s [WINDOW 3 MINUTES SLIDE 1 MINUTE] GROUP BY k")
    wh.create_view("pairs", "SELECT k, v FROM s", key="k")
    fill_minutes(wh, "s", 15, 20)
    wh.run_due()
    totals = {row["k"]: row["total"] for row in wh.results("sums").arrow().to_pylist()}
    wanted = expected(20, back=3)
    assert totals == {k: sum(v for v in wanted if v % 100 % 5 == k) for k in range(5)}
    assert values(wh.sql("SELECT v FROM pairs")) == expected(20)
    assert ask(wh, "[INCLUDING EXPIRED]") == expected(20, back=10)
    assert wh.check().ok


STEPS = ("slide.planned", "slide.staged", "slide.published", "slide.committing", "slide.committed", "reclaim.unlinked")


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_in_a_slide_leaves_every_row_once(path: Path, tmp_path: Path, step: str) -> None:
    create_stream(path, index=REBUILD, history="6 minutes").close()
    with windrow.open(path) as wh:
        fill_minutes(wh, "s", 0, 11)
    for nth in (1, 3):
        killed = tmp_path / f"killed {nth}"
        shutil.copytree(path, killed)
        child = start_child(child_processes.slide_with_history, str(killed), 11, 18, step, nth)
        assert join_child(child) == -signal.SIGKILL
        with windrow.open(killed) as wh:
            assert wh.check().ok
            minutes = int((wh.now("s") - minute_start(0)).total_seconds()) // 60
            assert ask(wh, "[INCLUDING EXPIRED]") == expected(minutes, back=10)
            fill_minutes(wh, "s", minutes, 18)
            assert ask(wh, "[INCLUDING EXPIRED]") == expected(18, back=10)
            assert ask(wh, "[AS OF TIMESTAMP '2026-01-01 00:13:00+00']") == expected(13)
            assert ask(wh, "") == expected(18)
            wh.gc()
            assert wh.check().ok
