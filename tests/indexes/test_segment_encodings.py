"""How columns are written follows from a stream's own rows, and is judged again when it may have become untrue."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.indexes import segment_writer
from windrow.indexes.segment_writer import EncodingChooser, Encodings

SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("text", pa.string())])
ROWS = 512


def rows(*, repeating: bool) -> pa.Table:
    texts = [f"one of few {n % 4}" if repeating else f"{n:x}-{n * 7919:x}" for n in range(ROWS)]
    return pa.table([np.arange(1, ROWS + 1) * 1000, np.arange(ROWS), texts], schema=SCHEMA)


def has_dictionary(encodings: Encodings) -> bool:
    return "text" in (encodings.settings["use_dictionary"] or ())


def sorted_by(encodings: Encodings) -> list[int]:
    return [column.column_index for column in encodings.settings["sorting_columns"]]


def stored_with_dictionary(path, stream: str) -> set[bool]:
    files = (path / "streams" / stream / "segments").glob("*.parquet")
    actual = [pq.ParquetFile(file).metadata.row_group(0) for file in files]
    texts = [group.column(index) for group in actual for index in range(group.num_columns)]
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
    choices = [has_dictionary(chooser.choose(rows(repeating=True), None, ["k"]))]
    choices += [
        has_dictionary(chooser.choose(rows(repeating=False), None, ["k"]))
        for _ in range(segment_writer._FILES_PER_CHOICE)
    ]
    assert choices == [True] * segment_writer._FILES_PER_CHOICE + [False]


def test_other_columns_and_another_order_are_chosen_for_anew():
    chooser = EncodingChooser()
    repeating = rows(repeating=True)
    assert has_dictionary(chooser.choose(repeating, None, ["k"]))
    assert sorted_by(chooser.choose(repeating, None, ["k"])) == [1]
    assert sorted_by(chooser.choose(repeating, None, ["ts"])) == [0]
    assert not has_dictionary(chooser.choose(repeating.select(["ts", "k"]), None, ["ts"]))


def test_the_rows_that_are_written_are_judged_and_not_those_beside_them():
    both = pa.concat_tables([rows(repeating=True), rows(repeating=False)])
    assert has_dictionary(EncodingChooser().choose(both, np.arange(ROWS), ["k"]))
    assert not has_dictionary(EncodingChooser().choose(both, np.arange(ROWS, 2 * ROWS), ["k"]))


def test_few_rows_follow_what_many_have_shown_and_more_rows_are_judged_anew():
    chooser = EncodingChooser()
    assert not has_dictionary(chooser.choose(rows(repeating=True).slice(0, 100), None, ["k"]))
    assert has_dictionary(chooser.choose(rows(repeating=True), None, ["k"]))
    for _ in range(2 * segment_writer._FILES_PER_CHOICE):
        assert has_dictionary(chooser.choose(rows(repeating=False).slice(0, 100), None, ["k"]))


def column_facts(table: pa.Table, sorted_by: list[str]) -> dict[str, tuple[set[str], str]]:
    """Encodings and codec of each column of a file with these rows."""
    sink = pa.BufferOutputStream()
    writer = segment_writer.SegmentFileWriter(sink, table.schema, 1 << 20, sorted_by)
    writer.add(table)
    writer.close()
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()), page_checksum_verification=True)
    assert file.read().equals(table)
    group = file.metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: (set(column.encodings), column.compression) for column in columns}


def test_each_column_has_the_encoding_that_suits_it():
    chance = np.random.default_rng(1)
    count = 4096
    table = pa.table(
        {
            "k": pa.array(np.sort(chance.integers(0, 900, count))),
            "ts": pa.array(1_700_000_000_000_000 + chance.permutation(count) * 1000, pa.timestamp("us")),
            "country": pa.array(chance.choice(["de", "fr", "us"], count)),
            "noise": pa.array(chance.bytes(8 * count)[index : index + 8] for index in range(0, 8 * count, 8)),
            "words": pa.array([f"user {n % 900} did a thing {n}" for n in range(count)]),
            "price": pa.array(np.round(chance.normal(50, 20, count), 3)),
            "tags": pa.array([[n % 3, 7] for n in range(count)]),
        }
    )
    facts = column_facts(table, ["k"])
    assert "DELTA_BINARY_PACKED" in facts["ts"][0] and "DELTA_BINARY_PACKED" in facts["k"][0]
    assert facts["country"] == ({"PLAIN", "RLE", "RLE_DICTIONARY"}, "UNCOMPRESSED")
    assert "DELTA_LENGTH_BYTE_ARRAY" in facts["noise"][0] and facts["noise"][1] == "UNCOMPRESSED"
    assert facts["words"][1] == "ZSTD"
    assert facts["price"][1] == "LZ4", "nearly as small as by zstd, and sooner read"
    assert "RLE_DICTIONARY" in facts["tags.list.element"][0]


def test_rows_that_gain_next_to_nothing_are_written_as_they_are():
    chance = np.random.default_rng(1)
    texts = [chance.bytes(400) for _ in range(2000)]
    table = pa.table({"ts": pa.array(range(2000), pa.timestamp("us")), "body": pa.array(texts)})
    facts = column_facts(table, ["ts"])
    assert facts == {
        "ts": ({"PLAIN", "RLE"}, "UNCOMPRESSED"),
        "body": ({"DELTA_LENGTH_BYTE_ARRAY", "RLE"}, "UNCOMPRESSED"),
    }


def test_other_engines_can_skip(path):
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 second", lifetime="1 minute")
        wh.append("s", rows(repeating=True))
    [file] = (path / "streams" / "s" / "segments").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    assert [(column.column_index, column.nulls_first) for column in group.sorting_columns] == [(1, True)]
    for index in range(group.num_columns):
        column = group.column(index)
        assert column.is_stats_set == (column.path_in_schema != "text")
        assert column.has_column_index == column.is_stats_set and column.has_offset_index
