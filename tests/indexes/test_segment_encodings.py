"""How columns are written follows from a stream's own rows, and is judged again when it may have become untrue."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.indexes import segment_writer
from windrow.indexes.segment_writer import EncodingChooser

SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("text", pa.string())])
ROWS = 512


def rows(*, repeating: bool) -> pa.Table:
    texts = [f"one of few {n % 4}" if repeating else f"{n:x}-{n * 7919:x}" for n in range(ROWS)]
    return pa.table([np.arange(1, ROWS + 1) * 1000, np.arange(ROWS), texts], schema=SCHEMA)


def has_dictionary(settings: dict) -> bool:
    return "text" in (settings["use_dictionary"] or ())


def stored_with_dictionary(path, stream: str) -> set[bool]:
    files = (path / "streams" / stream / "segments").glob("*.parquet")
    found = [pq.ParquetFile(file).metadata.row_group(0) for file in files]
    texts = [group.column(at) for group in found for at in range(group.num_columns)]
    return {column.has_dictionary_page for column in texts if column.path_in_schema == "text"}


@pytest.mark.parametrize("first", [True, False])
def test_two_streams_with_the_same_columns_are_encoded_apart(path, first):
    with windrow.open(path) as wh:
        for name in ("few", "many") if first else ("many", "few"):
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 second", lifetime="1 minute")
            wh.append(name, rows(repeating=name == "few"))
            wh.slide(name, to="1970-01-01T00:00:02Z")
        assert stored_with_dictionary(path, "few") == {True}
        assert stored_with_dictionary(path, "many") == {False}


def test_a_choice_holds_for_some_files_and_not_for_ever():
    chooser = EncodingChooser()
    choices = [has_dictionary(chooser.choose_settings(rows(repeating=True), None, ["k"]))]
    choices += [
        has_dictionary(chooser.choose_settings(rows(repeating=False), None, ["k"]))
        for _ in range(segment_writer._FILES_PER_CHOICE)
    ]
    assert choices == [True] * segment_writer._FILES_PER_CHOICE + [False]


def test_other_columns_and_another_order_are_chosen_for_anew():
    chooser = EncodingChooser()
    repeating = rows(repeating=True)
    assert has_dictionary(chooser.choose_settings(repeating, None, ["k"]))
    assert chooser.choose_settings(repeating, None, ["k"])["write_statistics"] == ["k"]
    assert chooser.choose_settings(repeating, None, ["ts"])["write_statistics"] == ["ts"]
    assert not has_dictionary(chooser.choose_settings(repeating.select(["ts", "k"]), None, ["ts"]))


def test_the_rows_that_are_written_are_judged_and_not_those_beside_them():
    both = pa.concat_tables([rows(repeating=True), rows(repeating=False)])
    assert has_dictionary(EncodingChooser().choose_settings(both, np.arange(ROWS), ["k"]))
    assert not has_dictionary(EncodingChooser().choose_settings(both, np.arange(ROWS, 2 * ROWS), ["k"]))


def test_a_key_that_repeats_does_not_have_all_rows_written_in_another_way():
    chance = np.random.default_rng(1)
    key = pa.array(np.arange(ROWS) // 7 * 1_000_003)
    noise = {name: pa.array(chance.random(ROWS)) for name in "abcdef"}
    rows = pa.table({"k": key, **noise})
    assert segment_writer.is_plain(EncodingChooser().choose_settings(rows, None, ["k"]))
    repeating = pa.table({"k": key, **dict.fromkeys("abc", key), "d": noise["d"]})
    assert not segment_writer.is_plain(EncodingChooser().choose_settings(repeating, None, ["k"]))
