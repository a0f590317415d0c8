"""The command line called in this process on one warehouse, and a stream of packets to try it with."""

import csv
import datetime as dt
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from windrow import cli

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("src", pa.int64()), ("len", pa.int32())])
COLUMNS = ["--column", "ts:timestamptz", "--column", "src:bigint", "--column", "len:int"]
PACKETS = [*COLUMNS, "--time", "ts", "--key", "src", "--slide", "1 minute", "--lifetime", "16 minutes"]


def at(seconds: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


def rows(*seconds: int) -> list[dict]:
    """One packet a second, from source second % 3."""
    return [{"ts": at(s), "src": s % 3, "len": 100 + s} for s in seconds]


def table(*seconds: int) -> pa.Table:
    return pa.Table.from_pylist(rows(*seconds), SCHEMA)


def shown(row: dict) -> dict:
    """Convert a row as JSON shows it."""
    return {k: v.isoformat().replace("+00:00", "Z") if isinstance(v, dt.datetime) else v for k, v in row.items()}


def by_time(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: row["ts"])


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


class CommandLine:
    """The command line on one warehouse, called in this process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, code=0, input=None, env=None):
        result = CliRunner(env={"COLUMNS": "200", **(env or {})}).invoke(
            cli.windrow, ["-w", str(self.path), *map(str, arguments)], input=input, prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments, **options):
        return json.loads(self(*arguments, "--json", **options).stdout)

    def error(self, *arguments, code=1, **options):
        """Run a command that must fail; return its one line of error."""
        result = self(*arguments, code=code, **options)
        assert result.stdout == ""
        if code == 1:
            assert result.stderr.startswith("windrow: ")
            assert result.stderr.count("\n") == 1
        return result.stderr


def write(data: pa.Table, file) -> None:
    """Write a table without using the product's own writers."""
    name = file.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(data, file)
    elif name.endswith((".arrow", ".arrows")):
        make = pa.ipc.new_file if name.endswith(".arrow") else pa.ipc.new_stream
        with pa.OSFile(str(file), "wb") as sink, make(sink, data.schema) as writer:
            writer.write_table(data)
    else:
        out = io.StringIO()
        plain = [shown(row) for row in data.to_pylist()]
        if name.endswith(".json"):
            json.dump(plain, out)
        elif name.endswith(".jsonl"):
            out.write("".join(json.dumps(row) + "\n" for row in plain))
        else:
            writer = csv.DictWriter(out, data.schema.names, delimiter="\t" if ".tsv" in name else ",")
            writer.writeheader()
            writer.writerows(plain)
        text = out.getvalue().encode()
        file.write_bytes(gzip.compress(text) if file.name.endswith(".gz") else text)


FILES = ["a.csv", "a.tsv", "a.csv.gz", "a.json", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.arrows"]
