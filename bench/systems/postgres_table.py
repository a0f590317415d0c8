"""PostgreSQL: a table partitioned by insertion time with B-trees on key and expiry, in a server of the bench's own.

The server is Debian's; it runs as an unprivileged user, on a loopback port, over a folder of the bench, and is stopped
at the end.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.systems.base import Scanned, System, rows_to_arrow
from bench.workload import ORIGIN, Batch, SlidingRows

_USERS = ("postgres", "nobody")
_PARTITIONS = 9
"""Slots of insertion time that share a partition: the table has about S / this many."""


def binaries() -> Path | None:
    """Where the server's programs are, if it is installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if programs:
        return programs[-1].parent
    program = shutil.which("initdb")
    return Path(program).resolve().parent if program else None


class Postgres(System):
    """COPY and DELETE in one transaction; a partition is dropped when all of it must be dead."""

    name = "postgres"
    about = (
        f"partitioned by insertion ({_PARTITIONS} slots each), B-trees on key and exp, COPY binary + "
        "DELETE WHERE exp <= now in one transaction, old partitions dropped, autovacuum on; "
        "conversion to and from Python rows not counted"
    )
    needs = "psycopg"

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        programs = binaries()
        assert programs is not None
        self.programs = programs
        self.data = folder / "data"
        self.port = _free_port()
        self._start()
        import psycopg

        self.connection = psycopg.connect(host="127.0.0.1", port=self.port, user="bench", dbname="postgres")
        self.connection.autocommit = True
        self._run(
            "CREATE TABLE rows (slot int NOT NULL, key bigint, ts bigint, exp bigint, payload text) "
            "PARTITION BY RANGE (slot)"
        )
        self._run("CREATE INDEX ON rows (key)")
        self._run("CREATE INDEX ON rows (exp)")
        self.now = ORIGIN
        self.partitions: set[int] = set()

    def _start(self) -> None:
        self.user: str | None = None
        if os.getuid() == 0:
            # The server refuses to be root, and the bench's folder may be one that only root can enter.
            self.user = next(name for name in _USERS if _exists(name))
            self.data = Path(tempfile.mkdtemp(prefix="windrow-bench-", dir=_enterable(self.folder)))
            shutil.chown(self.data, self.user)
        else:
            self.data.mkdir()
        self._as_user(
            self.programs / "initdb", "-D", self.data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale"
        )
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' "
            "-c shared_buffers=1GB -c max_wal_size=4GB -c checkpoint_timeout=15min"
        )
        self._as_user(
            self.programs / "pg_ctl", "-D", self.data, "-w", "-l", self.data / "server.log", "-o", options, "start"
        )

    def _as_user(self, *command: Any) -> None:
        done = subprocess.run(
            [str(part) for part in command], user=self.user, cwd="/", capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"PostgreSQL: {Path(str(command[0])).name} failed: {(done.stderr or done.stdout).strip()}"
            )

    def _run(self, statement: str) -> Any:
        return self.connection.execute(statement)  # type: ignore[arg-type]

    def prepare(self, batch: Batch) -> Any:
        """Python tuples."""
        rows = batch.rows
        numbers = [rows.column(name).cast(pa.int64()).to_pylist() for name in ("key", "ts", "exp")]
        texts = rows.column("payload").to_pylist()
        return list(zip([batch.slot] * len(texts), *numbers, texts, strict=True))

    def update(self, batch: Batch, prepared: Any) -> None:
        """One transaction, in which old partitions go as well."""
        part = batch.slot // _PARTITIONS
        dead = [
            partition
            for partition in self.partitions
            if (partition + 1) * _PARTITIONS + self.workload.slots < batch.slot
        ]
        with self.connection.transaction():
            if part not in self.partitions:
                low, high = part * _PARTITIONS, (part + 1) * _PARTITIONS
                self._run(f"CREATE TABLE rows_{part} PARTITION OF rows FOR VALUES FROM ({low}) TO ({high})")
            with self.connection.cursor().copy("COPY rows FROM STDIN (FORMAT binary)") as copy:
                copy.set_types(["int4", "int8", "int8", "int8", "text"])
                for row in prepared:
                    copy.write_row(row)
            self._run(f"DELETE FROM rows WHERE exp <= {batch.now}")
            for old in dead:
                self._run(f"DROP TABLE rows_{old}")
        self.partitions = (self.partitions | {part}) - set(dead)
        self.now = batch.now

    def probe(self, key: int) -> Any:
        """Python rows by the index."""
        return self._run(f"SELECT key, ts, exp, payload FROM rows WHERE key = {key}").fetchall()

    def as_arrow(self, answer: Any) -> pa.Table:
        """Columns of the workload's schema."""
        return rows_to_arrow(answer, self.workload.schema)

    def scan(self) -> Scanned:
        """An aggregate over the payload, compared by bytes as the others do."""
        count, greatest = self._run('SELECT count(*), max(payload COLLATE "C") FROM rows').fetchone()
        return int(count), str(greatest or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """A connection of its own."""
        import psycopg

        other = psycopg.connect(host="127.0.0.1", port=self.port, user="bench", dbname="postgres", autocommit=True)

        def ask(now: int) -> int:
            row = other.execute("SELECT count(*) FROM rows WHERE exp <= %s", (now,)).fetchone()
            return int(row[0]) if row else 0

        return ask, other.close

    def space(self) -> int:
        """Of the table with its indexes; the write-ahead log comes on top and is bounded."""
        row = self._run(
            "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits "
            "WHERE inhparent = 'rows'::regclass"
        ).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Stop the server."""
        self.connection.close()
        self._as_user(self.programs / "pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop")
        shutil.rmtree(self.data, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _enterable(folder: Path) -> Path:
    """The nearest folder above that everybody can reach."""
    above = (folder, *folder.parents)
    return next(
        path for place, path in enumerate(above) if all(parent.stat().st_mode & 0o001 for parent in above[place:])
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
