"""Rows as users have them, made from a seed: few distinct texts, skewed keys, prices with two decimals, times in order.

A :class:`Shape` is one kind of stream with its vocabulary; `batch` makes the rows of a slot and `statements` the SQL
that its owner would ask, with constants that differ from turn to turn.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.workload import ORIGIN

SECOND = 1_000_000
_SYLLABLES = (
    "ba",
    "co",
    "di",
    "fu",
    "ge",
    "ka",
    "lo",
    "mi",
    "nu",
    "pe",
    "ra",
    "so",
    "ti",
    "vu",
    "we",
    "xo",
    "ya",
    "zi",
)


class Draw:
    """Random columns."""

    def __init__(self, *seed: int) -> None:
        self.chance = np.random.default_rng(list(seed))

    def zipf(self, count: int, distinct: int, skew: float = 1.1) -> np.ndarray:
        """Ranks below `distinct`, the first ones by far the most often."""
        weights = np.cumsum(1.0 / np.arange(1, distinct + 1) ** skew)
        return np.searchsorted(weights, self.chance.random(count) * weights[-1])

    def words(self, count: int, syllables: int = 3) -> list[str]:
        """Different words that can be spoken."""
        chosen: dict[str, None] = {}
        while len(chosen) < count:
            chosen["".join(self.chance.choice(_SYLLABLES, syllables))] = None
            syllables += len(chosen) > len(_SYLLABLES) ** syllables // 2
        return list(chosen)

    def pick(self, values: list[str], count: int, skew: float = 1.1) -> pa.Array:
        """Texts out of a vocabulary, the first ones most often."""
        return pa.array(values).take(pa.array(self.zipf(count, len(values), skew)))

    def times(self, start: int, length: int, count: int) -> np.ndarray:
        """Instants in ``(start, start + length]``, in order."""
        return np.sort(start + self.chance.integers(1, length, count, endpoint=True))

    def money(self, count: int, middle: float, spread: float = 1.0) -> np.ndarray:
        """Amounts with two decimals, most of them small."""
        return np.round(self.chance.lognormal(np.log(middle), spread, count), 2)

    def integers(self, low: int, high: int, count: int, kind: Any = np.int64) -> np.ndarray:
        """Whole numbers from `low` to below `high`."""
        return self.chance.integers(low, high, count).astype(kind)

    def one(self, values: Any) -> Any:
        """One of them."""
        return values[int(self.chance.integers(len(values)))]


def joined(*parts: Any) -> pa.Array:
    """Texts put together row by row."""
    texts = [part if isinstance(part, str) else pc.cast(pa.array(part), pa.string()) for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def at(micros: np.ndarray) -> pa.Array:
    """Times as Arrow has them."""
    return pa.array(micros).view(pa.timestamp("us"))


@dataclass(frozen=True)
class Definition:
    """What a store has to know of a stream, in words that every store understands."""

    name: str
    schema: pa.Schema
    key: str
    scanned: str
    """The column whose greatest value a scan finds."""
    slots: int
    delta: int = SECOND
    expires: str | None = None

    @property
    def lifetime(self) -> int:
        """The longest life of a row, in microseconds."""
        return self.slots * self.delta

    def now(self, slot: int) -> int:
        """The clock after a slot."""
        return ORIGIN + slot * self.delta

    def live(self, rows: pa.Table, slot: int) -> pa.Table:
        """The rows that live after a slot: what every store must hold."""
        if self.expires:
            return rows.filter(pc.greater(rows[self.expires].cast(pa.int64()), self.now(slot)))
        return rows.filter(pc.greater(rows["ts"].cast(pa.int64()), self.now(slot) - self.lifetime))


class Shape(ABC):
    """One kind of stream.

    Args:
        seed: Of its vocabulary, rows and statements.
        slots: How many slots a row lives, at the longest.
    """

    name = ""
    key = ""
    scanned = ""
    expires: str | None = None
    scale = 1.0
    """Rows of this shape beside the others: wide rows are fewer."""

    def __init__(self, seed: int, slots: int, delta: int = SECOND) -> None:
        self.seed, self.slots, self.delta = seed, slots, delta
        self.prepare(Draw(seed, 1))
        schema = self.batch(0, 1).schema
        self.definition = Definition(self.name, schema, self.key, self.scanned, slots, delta, self.expires)

    @abstractmethod
    def prepare(self, draw: Draw) -> None:
        """Make the vocabulary."""

    @abstractmethod
    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        """All columns but the time."""

    @abstractmethod
    def statements(self, draw: Draw) -> dict[str, str]:
        """What is asked in one turn, by label."""

    def batch(self, slot: int, count: int) -> pa.Table:
        """The rows that arrive in a slot, counted from 1, in order of time."""
        draw = Draw(self.seed, 2, slot)
        ts = draw.times(ORIGIN + (slot - 1) * self.delta, self.delta, count)
        return pa.table({"ts": at(ts), **self.columns(draw, ts)})

    def turn(self, number: int) -> dict[str, str]:
        """The statements of a turn."""
        return self.statements(Draw(self.seed, 3, number))


class Packets(Shape):
    """Network traffic: few hosts send most of it, small and full packets."""

    name, key, scanned = "packets", "src", "len"

    def prepare(self, draw: Draw) -> None:
        self.hosts = draw.integers(0, 1 << 24, 20_000)
        self.ports = draw.chance.permutation(np.array([80, 443, 22, 53, 25, 123, 8080, 3306, 5432, 6379]))

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        sizes = np.where(draw.chance.random(n) < 0.7, draw.chance.choice([40, 52, 1500], n), draw.integers(60, 1400, n))
        known = self.ports[draw.zipf(n, len(self.ports))]
        return {
            "src": self.hosts[draw.zipf(n, len(self.hosts))],
            "dst": self.hosts[draw.zipf(n, len(self.hosts), 0.9)],
            "sport": draw.integers(1024, 65536, n, np.int32),
            "dport": np.where(draw.chance.random(n) < 0.85, known, draw.integers(1024, 65536, n)).astype(np.int32),
            "proto": draw.pick(["tcp", "udp", "icmp", "gre"], n, 1.8),
            "flags": draw.pick(["A", "PA", "S", "SA", "FA", "R", ""], n, 1.2),
            "len": sizes.astype(np.int32),
        }

    def statements(self, draw: Draw) -> dict[str, str]:
        port, size, host = draw.one(self.ports), 40 + int(draw.chance.integers(1400)), self.hosts[draw.zipf(1, 2000)[0]]
        return {
            "totals": f"SELECT count(*), sum(len), max(len), avg(len) FROM packets WHERE len > {size}",
            "traffic by second": "SELECT date_trunc('second', ts) AS sec, proto, sum(len) FROM packets "
            f"WHERE dport = {port} GROUP BY sec, proto ORDER BY sec, proto",
            "top talkers": "SELECT src, sum(len) AS bytes, count(*) FROM packets GROUP BY src "
            f"ORDER BY bytes DESC, src LIMIT {10 + size % 7}",
            "one host": f"SELECT dport, count(*) AS n, sum(len) FROM packets WHERE src = {host} GROUP BY dport "
            "ORDER BY n DESC, dport LIMIT 10",
            "pairs": "SELECT src, dst, count(*) AS n FROM packets GROUP BY src, dst ORDER BY n DESC, src, dst "
            f"LIMIT {5 + size % 5}",
            "flags by protocol": f"SELECT proto, flags, count(*) FROM packets WHERE sport > {1024 + 7 * size} "
            "GROUP BY proto, flags ORDER BY proto, flags",
            "scanners": "SELECT src, count(DISTINCT dport) AS ports FROM packets WHERE flags = 'S' GROUP BY src "
            f"HAVING count(*) > {size % 9} ORDER BY ports DESC, src LIMIT 20",
        }


class WebEvents(Shape):
    """Page views: users and pages by popularity, sixty browsers, mostly status 200."""

    name, key, scanned = "views", "user_id", "url"

    def prepare(self, draw: Draw) -> None:
        self.users = draw.integers(0, 1 << 28, 100_000)
        parts = draw.words(70, 2)
        self.urls = [
            f"https://www.{draw.one(parts)}.example/{draw.one(parts)}/{draw.one(parts)}/{n}.html" for n in range(3000)
        ]
        self.referrers = ["", *(f"https://{draw.one(parts)}.example/?q={draw.one(parts)}+{n}" for n in range(800))]
        self.browsers = [f"{word.title()} {n % 9 + 90}.0 ({draw.one(['Windows', 'Linux', 'Mac', 'Phone'])})"
                         for n, word in enumerate(draw.words(60, 3))]  # fmt: skip
        self.countries = draw.words(90, 2)
        self.parts = parts

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        users = draw.zipf(n, len(self.users))
        return {
            "user_id": self.users[users],
            "session": self.users[users] * 16 + draw.integers(0, 3, n),
            "url": draw.pick(self.urls, n),
            "referrer": draw.pick(self.referrers, n, 1.3),
            "browser": pa.array(self.browsers).take(pa.array(users % len(self.browsers))),
            "country": pa.array(self.countries).take(pa.array((users * 7) % len(self.countries))),
            "status": draw.chance.choice(np.array([200, 304, 404, 500], np.int16), n, p=[0.86, 0.08, 0.05, 0.01]),
            "millis": np.minimum(draw.chance.lognormal(4, 1, n), 60_000).astype(np.int32),
        }

    def statements(self, draw: Draw) -> dict[str, str]:
        part, country, slow = draw.one(self.parts), draw.one(self.countries), int(draw.chance.integers(50, 500))
        user = self.users[draw.zipf(1, 5000)[0]]
        return {
            "totals": f"SELECT count(*), avg(millis), max(millis) FROM views WHERE millis > {slow}",
            "views by second": "SELECT date_trunc('second', ts) AS sec, count(*), count(DISTINCT user_id) FROM views "
            f"WHERE country <> '{country}' GROUP BY sec ORDER BY sec",
            "top pages": f"SELECT url, count(*) AS n, avg(millis) FROM views WHERE status = 200 AND millis < {slow * 9} "
            "GROUP BY url ORDER BY n DESC, url LIMIT 10",
            "LIKE": f"SELECT count(*), max(url) FROM views WHERE url LIKE '%{part}%'",
            "function of a text": "SELECT split_part(referrer, '/', 3) AS site, count(*) AS n FROM views "
            f"WHERE millis > {slow} GROUP BY site ORDER BY n DESC, site LIMIT 20",
            "regular expression": f"SELECT count(*) FROM views WHERE regexp_matches(browser, '^[A-{chr(67 + slow % 20)}].*Linux')",
            "browsers by country": "SELECT browser, country, count(*) AS n FROM views "
            f"WHERE status <> {draw.one([200, 304, 404])} GROUP BY browser, country ORDER BY n DESC, browser, country LIMIT 15",
            "slowest": f"SELECT ts, user_id, url, millis FROM views WHERE country = '{country}' "
            "ORDER BY millis DESC, ts, user_id, url LIMIT 10",
            "one user": f"SELECT url, count(*) AS n FROM views WHERE user_id = {user} GROUP BY url ORDER BY n DESC, url LIMIT 10",
        }


class Logs(Shape):
    """Service logs: messages of a few hundred templates, trace ids that hardly repeat."""

    name, key, scanned = "logs", "host", "message"

    def prepare(self, draw: Draw) -> None:
        self.words = draw.words(120, 2)
        self.hosts = [f"{word}-{n:03}" for n, word in enumerate(draw.words(200, 2))]
        self.services = draw.words(30, 3)
        self.templates = [
            " ".join(draw.chance.choice(self.words, int(draw.chance.integers(4, 10)))) + " " for _ in range(300)
        ]

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        return {
            "host": draw.pick(self.hosts, n, 0.6),
            "service": draw.pick(self.services, n),
            "level": draw.pick(["INFO", "DEBUG", "WARN", "ERROR", "FATAL"], n, 2.0),
            "message": joined(draw.pick(self.templates, n), draw.integers(0, 5000, n)),
            "trace": joined("t", draw.integers(0, 1 << 60, n)),
            "bytes": draw.money(n, 900).astype(np.int64),
        }

    def statements(self, draw: Draw) -> dict[str, str]:
        word, service, host = draw.one(self.words), draw.one(self.services), draw.one(self.hosts)
        return {
            "errors by service": "SELECT service, count(*) AS n FROM logs WHERE level IN ('ERROR', 'FATAL') "
            f"AND service <> '{service}' GROUP BY service ORDER BY n DESC, service",
            "levels by second": "SELECT date_trunc('second', ts) AS sec, level, count(*) FROM logs "
            f"WHERE host <> '{host}' GROUP BY sec, level ORDER BY sec, level",
            "search": f"SELECT ts, host, message FROM logs WHERE message LIKE '%{word}%' AND level <> 'DEBUG' "
            "ORDER BY ts DESC, host, message LIMIT 20",
            "count of a word": f"SELECT count(*), count(DISTINCT host) FROM logs WHERE contains(message, '{word}')",
            "bytes by host": f"SELECT host, sum(bytes) AS b FROM logs WHERE service = '{service}' GROUP BY host "
            "ORDER BY b DESC, host LIMIT 10",
            "one host": f"SELECT level, count(*), max(ts) FROM logs WHERE host = '{host}' GROUP BY level ORDER BY level",
            "message kinds": "SELECT regexp_replace(message, '[0-9]+', 'N') AS kind, count(*) AS n FROM logs "
            f"WHERE level = 'WARN' GROUP BY kind ORDER BY n DESC, kind LIMIT {10 + len(word)}",
        }


class JsonEvents(Shape):
    """Events with a JSON body, as devices and programs send them."""

    name, key, scanned = "events", "device", "body"

    def prepare(self, draw: Draw) -> None:
        self.devices = [f"{word}:{n}" for n, word in enumerate(draw.words(5000, 3))]
        self.kinds = draw.words(12, 3)
        self.models = draw.words(25, 2)

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        battery, level = draw.integers(1, 101, n), draw.money(n, 20)
        return {
            "device": draw.pick(self.devices, n, 0.8),
            "kind": draw.pick(self.kinds, n),
            "body": joined(
                '{"model": "', draw.pick(self.models, n), '", "battery": ', battery, ', "level": ', level,
                ', "tags": ["', draw.pick(self.kinds, n), '"], "ok": ', draw.pick(["true", "false"], n, 3.0), "}",
            ),
        }  # fmt: skip

    def statements(self, draw: Draw) -> dict[str, str]:
        kind, model, least = draw.one(self.kinds), draw.one(self.models), int(draw.chance.integers(5, 60))
        return {
            "kinds": f"SELECT kind, count(*), max(ts) FROM events WHERE kind <> '{kind}' GROUP BY kind ORDER BY kind",
            "field of the body": "SELECT body->>'$.model' AS model, count(*) AS n FROM events "
            f"WHERE kind = '{kind}' GROUP BY model ORDER BY n DESC, model",
            "low batteries": "SELECT count(*), min(CAST(body->>'$.battery' AS INTEGER)) FROM events "
            f"WHERE CAST(body->>'$.battery' AS INTEGER) < {least}",
            "text in the body": f"SELECT kind, count(*) FROM events WHERE body LIKE '%{model}%' GROUP BY kind ORDER BY kind",
            "busiest devices": f"SELECT device, count(*) AS n FROM events GROUP BY device ORDER BY n DESC, device LIMIT {least}",
            "one device": f"SELECT ts, body FROM events WHERE device = '{draw.one(self.devices[:500])}' ORDER BY ts, body LIMIT 20",
        }


class Sensors(Shape):
    """Two hundred columns: most measurements drift slowly, some are constant, some are missing."""

    name, key, scanned, scale = "sensors", "sensor", "v001", 0.08

    def prepare(self, draw: Draw) -> None:
        self.bases = np.round(draw.chance.uniform(-50, 500, 198), 1)
        self.kinds = draw.chance.choice(4, 198, p=[0.5, 0.2, 0.2, 0.1])

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        found: dict[str, Any] = {"sensor": draw.integers(0, 500, n, np.int32)}
        drift = draw.chance.normal(0, 1, n).cumsum()
        for number, (base, kind) in enumerate(zip(self.bases, self.kinds, strict=True)):
            if kind == 0:
                values = np.round(base + 0.1 * np.roll(drift, 31 * number), 1)
            elif kind == 1:
                values = np.full(n, base)
            elif kind == 2:
                values = base + draw.integers(0, 12, n)
            else:
                values = np.round(draw.chance.normal(base, 5, n), 3)
            missing = draw.chance.random(n) < 0.05 if number % 9 == 0 else None
            found[f"v{number:03}"] = pa.array(values.astype(np.float64), mask=missing)
        return found

    def statements(self, draw: Draw) -> dict[str, str]:
        a, b, c = (f"v{int(n):03}" for n in draw.chance.choice(198, 3, replace=False))
        sensor = int(draw.chance.integers(500))
        return {
            "three columns": f"SELECT count(*), avg({a}), max({b}), min({c}) FROM sensors",
            "by sensor": f"SELECT sensor, avg({a}) AS mean, max({b}) FROM sensors GROUP BY sensor ORDER BY round(mean, 6) DESC, sensor LIMIT 20",
            "threshold": f"SELECT count(*), count({a}) FROM sensors WHERE {a} > {self.bases[int(a[1:])]} AND {b} IS NOT NULL",
            "highest": f"SELECT ts, sensor, {a}, {c} FROM sensors ORDER BY {a} DESC NULLS LAST, ts, sensor LIMIT 10",
            "one sensor": f"SELECT ts, {a}, {b} FROM sensors WHERE sensor = {sensor} ORDER BY ts, {a}, {b} LIMIT 50",
            "all columns": f"SELECT * FROM sensors WHERE sensor = {sensor} ORDER BY ts, v001, v002 LIMIT 20",
            "by second": f"SELECT date_trunc('second', ts) AS sec, avg({a}), stddev({b}) FROM sensors GROUP BY sec ORDER BY sec",
        }


class Quotes(Shape):
    """Prices that hold until they end: every row has a lifetime of its own."""

    name, key, scanned, expires = "quotes", "symbol", "venue", "exp"

    def prepare(self, draw: Draw) -> None:
        self.symbols = [word.upper() for word in draw.words(800, 2)]
        self.prices = draw.money(800, 60)
        self.venues = [word.title() for word in draw.words(12, 2)]

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        longest = self.slots * self.delta
        symbol = draw.zipf(n, 800, 0.9)
        bid = np.round(self.prices[symbol] * (1 + draw.chance.normal(0, 0.003, n)), 2)
        lives = np.clip(draw.chance.lognormal(np.log(longest / 4), 0.9, n), 1, longest).astype(np.int64)
        return {
            "symbol": pa.array(self.symbols).take(pa.array(symbol)),
            "bid": bid,
            "ask": np.round(bid + draw.integers(1, 9, n) / 100, 2),
            "size": draw.chance.choice(np.array([100, 200, 300, 500, 1000], np.int32), n),
            "venue": draw.pick(self.venues, n),
            "exp": at(ts + lives),
        }

    def statements(self, draw: Draw) -> dict[str, str]:
        symbol, venue, size = draw.one(self.symbols), draw.one(self.venues), int(draw.chance.integers(100, 900))
        return {
            "best bids": f"SELECT symbol, max(bid), min(ask), count(*) FROM quotes WHERE size > {size} GROUP BY symbol ORDER BY symbol",
            "by venue": f"SELECT venue, count(*), sum(size), avg(ask - bid) FROM quotes WHERE symbol <> '{symbol}' GROUP BY venue ORDER BY venue",
            "widest": f"SELECT symbol, max(ask - bid) AS wide FROM quotes WHERE venue = '{venue}' GROUP BY symbol ORDER BY wide DESC, symbol LIMIT 10",
            "one symbol": f"SELECT ts, venue, bid, ask FROM quotes WHERE symbol = '{symbol}' ORDER BY bid DESC, ts, venue, ask LIMIT 20",
            "newest of each": "SELECT symbol, arg_max(bid, (ts, bid)), max(ts) FROM quotes "
            f"WHERE venue <> '{venue}' GROUP BY symbol ORDER BY symbol",
            "ending soon": f"SELECT count(*), min(exp) FROM quotes WHERE exp - ts < INTERVAL {size} MILLISECONDS",
        }


class Payments(Shape):
    """Rows whose key is a UUID, which never comes again."""

    name, key, scanned = "payments", "id", "note"

    def prepare(self, draw: Draw) -> None:
        self.accounts = draw.integers(0, 1 << 30, 50_000)
        words = np.array(draw.words(90, 2))
        self.notes = [" ".join(note) for note in words[draw.zipf(4 * 2000, 90, 0.5)].reshape(-1, 4)]
        self.states = ["done", "sent", "open", "back", "fail", "held"]

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        text = draw.chance.bytes(16 * n).hex()
        ids = [f"{text[i:i + 8]}-{text[i + 8:i + 12]}-4{text[i + 13:i + 16]}-a{text[i + 17:i + 20]}-{text[i + 20:i + 32]}"
               for i in range(0, 32 * n, 32)]  # fmt: skip
        return {
            "id": pa.array(ids),
            "account": self.accounts[draw.zipf(n, len(self.accounts))],
            "amount": draw.money(n, 35),
            "state": draw.pick(self.states, n, 1.6),
            "note": draw.pick(self.notes, n),
        }

    def statements(self, draw: Draw) -> dict[str, str]:
        account, amount = self.accounts[draw.zipf(1, 5000)[0]], int(draw.chance.integers(10, 300))
        state, word = draw.one(self.states), draw.one(self.notes).split()[0]
        return {
            "states": f"SELECT state, count(*), sum(amount) FROM payments WHERE amount > {amount} GROUP BY state ORDER BY state",
            "largest": f"SELECT id, account, amount FROM payments WHERE state = '{state}' ORDER BY amount DESC, id LIMIT 10",
            "by account": f"SELECT account, sum(amount) AS total, count(*) FROM payments WHERE state <> '{state}' "
            "GROUP BY account ORDER BY round(total, 4) DESC, account LIMIT 10",
            "one account": f"SELECT state, count(*), sum(amount) FROM payments WHERE account = {account} GROUP BY state ORDER BY state",
            "notes": f"SELECT note, count(*) AS n FROM payments WHERE note LIKE '{word}%' GROUP BY note ORDER BY n DESC, note LIMIT 20",
            "prefix of ids": f"SELECT left(id, 1) AS first, count(*), max(amount) FROM payments WHERE amount < {amount * 20} GROUP BY first ORDER BY first",
        }


SHAPES: tuple[type[Shape], ...] = (Packets, WebEvents, Logs, JsonEvents, Sensors, Quotes, Payments)
