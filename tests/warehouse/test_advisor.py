"""Advice on a stream: what was asked is counted without writing, the search key follows the questions, auto follows."""

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, US, when
from windrow import Index
from windrow.background import background_of
from windrow.usage import COMMIT_EVERY, LEAST_AT_CLOSE

SCHEMA = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("host", pa.string())])


def rows(slot, count=20):
    ts = [BASE + (slot - 1) * DELTA + 1 + n for n in range(count)]
    exp = [instant + (1 + n % 6) * DELTA for n, instant in enumerate(ts)]
    return pa.table(
        [pa.array(ts, US), pa.array(exp, US), list(range(count)), [f"h{n % 3}" for n in range(count)]], schema=SCHEMA
    )


def create(wh, index="auto"):
    wh.create_stream(
        "s", SCHEMA, time="ts", key="k", slide=f"{DELTA} us", expires="exp", max_lifetime=f"{8 * DELTA} us", index=index
    )


def slide(wh, *slots):
    for slot in slots:
        wh.append("s", rows(slot))
        wh.slide("s", to=when(BASE + slot * DELTA))


def opened(path, **options):
    return windrow.open(path, clock=lambda: BASE + 1000 * DELTA, **options)


@pytest.fixture
def wh(path):
    with opened(path) as handle:
        create(handle)
        yield handle


def test_queries_are_counted_by_the_slide_that_follows_them(wh):
    slide(wh, 1, 2)
    for _ in range(6):
        wh.probe("s", 3)
        wh.scan("s").read_all()
        wh.sql("SELECT count(*) FROM s WHERE host = 'h1'").fetchall()
    slide(wh, 3)
    actual = wh.advise("s")
    assert actual.workload.probes == pytest.approx(6 / 3)
    assert actual.workload.scans == pytest.approx(12 / 3)
    assert actual.workload.probe_rows == pytest.approx(2.0)
    assert actual.workload.rows == 20


def test_no_query_writes_until_many_have_come_together(wh):
    slide(wh, 1)
    before = wh._store.catalog.version()
    for _ in range(LEAST_AT_CLOSE - 1):
        wh.probe("s", 3)
    assert wh._store.catalog.version() == before
    for _ in range(COMMIT_EVERY):
        wh.probe("s", 3)
    assert wh._store.catalog.version() == before + 1


def test_a_reader_counts_for_nobody_and_a_short_visit_writes_nothing(path):
    with opened(path) as wh:
        create(wh)
        slide(wh, 1)
    with opened(path) as visitor:
        before = visitor._store.catalog.version()
        visitor.probe("s", 3)
    with opened(path, read_only=True) as reader:
        for _ in range(COMMIT_EVERY + 1):
            reader.probe("s", 3)
        assert reader._store.catalog.version() == before
        assert reader.advise("s").workload.probes == 0


def test_another_search_key_is_advised_where_queries_ask_for_it(wh):
    slide(wh, 1, 2)
    assert wh.advise("s").key == ("k",)
    for _ in range(30):
        wh.sql("SELECT count(*) FROM s WHERE host = 'h1'").fetchall()
    wh.probe("s", 3)
    slide(wh, 3)
    actual = wh.advise("s")
    assert actual.key == ("host",)
    assert "'host'" in actual.key_why
    wh.relayout("s", key=list(actual.key))
    for _ in range(60):
        wh.probe("s", "h1")
    slide(wh, 4)
    assert wh.advise("s").key == ("host",)


def test_advice_names_the_present_layout_the_best_and_why(wh):
    slide(wh, *range(1, 10))
    actual = wh.advise("s")
    assert str(actual.current.index) == wh.stream("s").index
    assert actual.best == min(actual.alternatives, key=lambda each: each.total)
    assert actual.why.startswith("with 20 rows")
    only = wh.advise("s", among=[Index("round-robin", 2, 2)])
    assert {str(each.index) for each in only.alternatives} == {wh.stream("s").index, "round-robin 2x2 adaptive"}
    with pytest.raises(windrow.UnknownStreamError):
        wh.advise("t")


def test_there_is_no_advice_before_there_are_rows(wh):
    with pytest.raises(windrow.WindowError, match="nothing to go by"):
        wh.advise("s")


def finish_background(wh):
    assert not background_of(wh._store).run(60.0)
    assert wh.status().background == ()


def test_a_stream_that_chooses_for_itself_follows_clear_advice_and_no_other(wh, monkeypatch):
    from windrow import advisor as module

    better = Index("wave-insertion", 4)
    real = module.advise_in_steps

    def chosen(store, stream, among=None):
        actual = yield from real(store, stream, [better])
        estimates = {each.index: each for each in actual.alternatives}
        cheap = estimates[better]
        vars(actual)["best"] = type(cheap)(**{**vars(cheap), "total": actual.current.total * share})
        return actual

    monkeypatch.setattr(module, "advise_in_steps", chosen)
    monkeypatch.setattr(module, "FIRST_REVIEW", 8)
    monkeypatch.setattr(module, "REVIEW_INTERVAL", 16)
    share = 0.9
    slide(wh, *range(1, 9))
    finish_background(wh)
    assert wh.stream("s").relayout is None, "a little better is not worth a change"
    share = 0.5
    slide(wh, *range(9, 17))
    finish_background(wh)
    status = wh.stream("s")
    assert status.index == "wave-insertion 4x1 adaptive"
    assert status.definition.index_auto, "it goes on choosing"
    assert status.index_why.startswith("with ")
    assert wh.check().ok
