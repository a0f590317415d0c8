"""`readStream.format("windrow")`: each row that slides took in comes once, over restarts, or an error says what is lost."""

import datetime as dt
import json
import pickle
import random

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import windrow
import windrow.spark
from windrow.ingest.data_source import WindrowStreamReader
from windrow.ingest.schemas import build_read_schema

# The data source is planned in processes of Spark's, whose wall clock is the machine's.
NOW = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64()), ("n", pa.int64())])

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

INDEXES = {
    "merged": windrow.Index("round-robin", 2, 2, maintenance="rebuild"),
    "as written": windrow.Index("round-robin", 2, 2),
}


def at(minutes: float) -> dt.datetime:
    return NOW - dt.timedelta(minutes=60 - minutes)


class Feed:
    """A stream that gets rows minute by minute, and what each slide took in."""

    def __init__(self, path, index="auto", lifetime="12 minutes"):
        self.wh = windrow.open(path)
        self.wh.create_stream(
            "s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime=lifetime, slack="5 minutes", index=index
        )
        self.next = 0
        self.taken: list[int] = []
        self.between = lambda: None
        """Called after a batch was planned and before it is read."""

    def minute(self, minute: int, rows: int = 7) -> list[int]:
        """Append rows of one minute, one of them four minutes late if that is possible, and slide over them."""
        numbers = list(range(self.next, self.next + rows))
        self.next += rows
        stamps = [at(minute - 0.5 - (4 if i % 5 == 0 and minute > 4 else 0)) for i in numbers]
        self.wh.append("s", pa.table([pa.array(stamps, UTC), [i % 3 for i in numbers], numbers], schema=SCHEMA))
        self.wh.slide("s", to=at(minute), force=True)
        self.taken += numbers
        return numbers


class Query:
    """What Spark does with a stream reader: it logs an offset, runs the batch, commits it, and forgets all at a kill."""

    def __init__(self, feed, **options):
        self.feed = feed
        self.options = {"from_latest": False, "accept_loss": False, **options}
        self.log: list[dict] = []
        self.done = 0

    def run(self, kill_in_batch=False) -> list[list[int]]:
        """Start, read what is there, end; gives the rows of each batch that is done."""
        definition = self.feed.wh.stream("s").definition
        reader = WindrowStreamReader(
            str(self.feed.wh.path), definition, build_read_schema(definition, ["n", "k"]), **self.options
        )
        batches = []
        try:
            if not self.log:
                self.log.append(json.loads(json.dumps(reader.initialOffset())))
            while True:
                if self.done + 1 == len(self.log):
                    end = json.loads(json.dumps(reader.latestOffset(self.log[-1], ReadAllAvailable())))
                    if end == self.log[-1]:
                        return batches
                    self.log.append(end)
                partitions = pickle.loads(pickle.dumps(reader.partitions(*self.log[self.done : self.done + 2])))
                worker = pickle.loads(pickle.dumps(reader))
                if kill_in_batch:
                    return batches
                self.feed.between()
                rows = [batch for part in partitions for batch in worker.read(part)]
                assert all(batch.schema.names == ["n", "k"] for batch in rows)
                batches.append(sorted(n for batch in rows for n in batch.column("n").to_pylist()))
                self.done += 1
                reader.commit(self.log[self.done])
        finally:
            reader.stop()


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_every_row_comes_once_over_restarts(tmp_path, index):
    feed = Feed(tmp_path / "wh", index)
    with feed.wh:
        query = Query(feed)
        for minute in range(1, 4):
            feed.minute(minute)
        assert query.run() == [feed.taken]
        assert query.run() == []
        new = feed.minute(5) + feed.minute(6)
        assert query.run(kill_in_batch=True) == []
        # The batch that was under way comes again as it was, although the stream has gone on.
        later = feed.minute(7)
        assert query.run() == [new, later]
        assert feed.wh.status().readers == 0


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_slides_and_kills(tmp_path, index, seed):
    """Queries that begin anywhere and are killed anywhere get each row of later slides once."""
    chance = random.Random(seed)
    feed = Feed(tmp_path / "wh", index, lifetime="2 hours")
    with feed.wh:
        feed.minute(1)
        query, got, minute = Query(feed, from_latest=True), [], 1
        query.run()
        before = len(feed.taken)
        for _ in range(25):
            minute += chance.choice((1, 1, 2))
            feed.minute(minute, chance.randrange(1, 9))
            if chance.random() < 0.6:
                got += query.run(kill_in_batch=chance.random() < 0.5)
        got += query.run()
        assert sorted(n for batch in got for n in batch) == feed.taken[before:]


def test_files_of_a_batch_stay_while_the_stream_slides_on(tmp_path):
    """Between planning and reading, everything expires and is reclaimed that is not pinned."""
    feed = Feed(tmp_path / "wh")
    with feed.wh:
        feed.minute(1)
        first = list(feed.taken)

        def expire():
            feed.between = lambda: None
            feed.minute(30)
            feed.minute(45)
            feed.wh.gc()

        feed.between = expire
        query = Query(feed)
        with pytest.raises(windrow.WindowError, match=r"7 of 14 rows that came after slide .* have expired"):
            query.run()
        assert query.done == 1
        assert first == list(range(7))
        assert Query(feed).run() == [feed.taken[-7:]]
        query.options["accept_loss"] = True
        assert query.run() == [feed.taken[-7:]]


def test_a_batch_that_cannot_come_again_as_it_was_is_refused(tmp_path):
    feed = Feed(tmp_path / "wh")
    with feed.wh:
        feed.minute(1)
        query = Query(feed)
        query.run(kill_in_batch=True)
        feed.minute(30)
        feed.wh.gc()
        with pytest.raises(windrow.WindowError, match="had 7 rows and has 0 now"):
            query.run()


def test_checkpoints_of_another_stream_or_an_older_state(tmp_path):
    feed = Feed(tmp_path / "wh")
    with feed.wh:
        feed.minute(1)
        query = Query(feed)
        query.run()
        query.log[-1]["ordinal"] += 5
        with pytest.raises(windrow.WindowError, match="restored from an older backup"):
            query.run()
        query.log[-1]["ordinal"] -= 5
        feed.wh.drop_stream("s")
        feed.wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="12 minutes")
        with pytest.raises(windrow.WindowError, match="was dropped and made again"):
            query.run()


def test_through_spark(spark, tmp_path):
    """A query through Spark's own interface; kills are staged above, where they cost no process of Spark's."""
    windrow.spark.register(spark)
    feed, got = Feed(tmp_path / "wh"), []
    with feed.wh:
        feed.minute(1)
        feed.minute(2)
        frame = spark.readStream.format("windrow").options(path=str(feed.wh.path), stream="s").load()
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: got.append(sorted(row.n for row in rows.collect())))
            .option("checkpointLocation", str(tmp_path / "ck"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)
        assert got == [feed.taken]
        end = json.loads(query.lastProgress["sources"][0]["endOffset"])
        assert end["slide"] == feed.wh.stream("s").slide
