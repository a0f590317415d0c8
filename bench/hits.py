"""Page hits of a web analytics service, and 43 statements of the shapes of ClickBench's, in our own words."""

from typing import Any

import numpy as np
import pyarrow as pa

from bench.generators import Draw, Shape, joined


class Hits(Shape):
    """Twenty-four columns: mostly small numbers, three long texts, many of them empty."""

    name, key, scanned = "hits", "visitor", "page"

    def prepare(self, draw: Draw) -> None:
        words = draw.words(150, 2)
        self.words = words
        self.visitors = draw.integers(1, 1 << 40, 60_000)
        self.sites = draw.integers(1, 1 << 20, 300)
        self.pages = [
            f"http://{draw.one(words)}.example/{draw.one(words)}/{draw.one(words)}?id={n}" for n in range(4000)
        ]
        self.titles = ["", *(" ".join(draw.chance.choice(words, 5)) + f" {n}" for n in range(2000))]
        self.phrases = [""] * 12 + [" ".join(draw.chance.choice(words, 2)) + f" {n}" for n in range(1500)]
        self.models = [""] * 3 + draw.words(60, 2)

    def columns(self, draw: Draw, ts: np.ndarray) -> dict[str, Any]:
        n = len(ts)
        visitor = draw.zipf(n, len(self.visitors), 0.8)
        page = draw.zipf(n, len(self.pages), 1.0)
        return {
            "hit": draw.integers(1, 1 << 62, n),
            "visitor": self.visitors[visitor],
            "site": self.sites[draw.zipf(n, len(self.sites), 1.3)],
            "page": pa.array(self.pages).take(pa.array(page)),
            "title": pa.array(self.titles).take(pa.array(page % len(self.titles))),
            "origin": joined(draw.pick(["", "http://find.example/", "http://www.feed.example/"], n, 1.5), draw.pick(self.words, n)),
            "phrase": draw.pick(self.phrases, n, 0.7),
            "engine": np.where(draw.chance.random(n) < 0.8, 0, draw.zipf(n, 40)).astype(np.int16),
            "model": draw.pick(self.models, n, 0.9),
            "device": (visitor % 30).astype(np.int16),
            "region": (visitor * 7 % 900).astype(np.int32),
            "system": (visitor % 45).astype(np.int16),
            "width": draw.chance.choice(np.array([0, 1024, 1280, 1366, 1600, 1920], np.int16), n),
            "height": draw.chance.choice(np.array([0, 600, 768, 900, 1080], np.int16), n),
            "address": (visitor * 2_654_435_761 % (1 << 32)).astype(np.int64),
            "counted": (draw.chance.random(n) < 0.95).astype(np.int16),
            "reloaded": (draw.chance.random(n) < 0.1).astype(np.int16),
            "is_link": (draw.chance.random(n) < 0.05).astype(np.int16),
            "is_download": (draw.chance.random(n) < 0.01).astype(np.int16),
            "source": draw.chance.choice(np.array([-1, 0, 1, 2, 3, 6], np.int16), n),
            "campaign": np.where(draw.chance.random(n) < 0.97, 0, draw.integers(1, 60, n)).astype(np.int16),
            "page_hash": (page.astype(np.int64) * 1_000_003) % (1 << 40),
            "origin_hash": draw.zipf(n, 500).astype(np.int64) * 7919,
        }  # fmt: skip

    def statements(self, draw: Draw) -> dict[str, str]:
        word, site, visitor = draw.one(self.words), self.sites[draw.zipf(1, 5)[0]], self.visitors[draw.zipf(1, 400)[0]]
        k = int(draw.chance.integers(5, 15))
        seen = f"site = {site} AND counted = 1"
        wide = ", ".join(f"sum(width + {n})" for n in range(k, k + 80))
        asked = [
            "SELECT count(*) FROM hits",
            f"SELECT count(*) FROM hits WHERE campaign <> {k % 3}",
            f"SELECT sum(campaign), count(*), avg(width + {k}) FROM hits",
            f"SELECT avg(visitor) FROM hits WHERE width <> {k}",
            f"SELECT count(DISTINCT visitor) FROM hits WHERE device <> {k}",
            f"SELECT count(DISTINCT phrase) FROM hits WHERE device <> {k}",
            "SELECT min(ts), max(ts) FROM hits",
            f"SELECT campaign, count(*) AS n FROM hits WHERE campaign > {k % 4} GROUP BY campaign ORDER BY n DESC, campaign",
            f"SELECT region, count(DISTINCT visitor) AS u FROM hits GROUP BY region ORDER BY u DESC, region LIMIT {k}",
            f"SELECT region, sum(campaign), count(*) AS n, avg(width), count(DISTINCT visitor) FROM hits GROUP BY region ORDER BY n DESC, region LIMIT {k}",
            f"SELECT model, count(DISTINCT visitor) AS u FROM hits WHERE model <> '' GROUP BY model ORDER BY u DESC, model LIMIT {k}",
            f"SELECT device, model, count(DISTINCT visitor) AS u FROM hits WHERE model <> '' GROUP BY device, model ORDER BY u DESC, device, model LIMIT {k}",
            f"SELECT phrase, count(*) AS n FROM hits WHERE phrase <> '' GROUP BY phrase ORDER BY n DESC, phrase LIMIT {k}",
            f"SELECT phrase, count(DISTINCT visitor) AS u FROM hits WHERE phrase <> '' GROUP BY phrase ORDER BY u DESC, phrase LIMIT {k}",
            f"SELECT engine, phrase, count(*) AS n FROM hits WHERE phrase <> '' GROUP BY engine, phrase ORDER BY n DESC, engine, phrase LIMIT {k}",
            f"SELECT visitor, count(*) AS n FROM hits GROUP BY visitor ORDER BY n DESC, visitor LIMIT {k}",
            f"SELECT visitor, phrase, count(*) AS n FROM hits GROUP BY visitor, phrase ORDER BY n DESC, visitor, phrase LIMIT {k}",
            f"SELECT count(*) FROM (SELECT visitor, phrase, count(*) FROM hits WHERE device <> {k} GROUP BY visitor, phrase)",
            f"SELECT visitor, extract(minute FROM ts) AS m, phrase, count(*) AS n FROM hits GROUP BY visitor, m, phrase ORDER BY n DESC, visitor, m, phrase LIMIT {k}",
            f"SELECT visitor FROM hits WHERE visitor = {visitor}",
            f"SELECT count(*) FROM hits WHERE page LIKE '%{word}%'",
            f"SELECT phrase, min(page), count(*) AS n FROM hits WHERE page LIKE '%{word}%' AND phrase <> '' GROUP BY phrase ORDER BY n DESC, phrase LIMIT {k}",
            f"SELECT phrase, min(page), min(title), count(*) AS n, count(DISTINCT visitor) FROM hits WHERE title LIKE '%{word}%' AND page NOT LIKE '%.{word}.%' AND phrase <> '' GROUP BY phrase ORDER BY n DESC, phrase LIMIT {k}",
            f"SELECT * FROM hits WHERE page LIKE '%{word}%' ORDER BY ts, hit LIMIT {k}",
            f"SELECT phrase, ts FROM hits WHERE phrase <> '' ORDER BY ts, phrase LIMIT {k}",
            f"SELECT phrase FROM hits WHERE phrase <> '' ORDER BY phrase LIMIT {k}",
            f"SELECT phrase, hit FROM hits WHERE phrase <> '' ORDER BY ts, phrase, hit LIMIT {k}",
            f"SELECT site, avg(length(page)) AS l, count(*) AS n FROM hits WHERE page <> '' GROUP BY site HAVING count(*) > {50 * k} ORDER BY l DESC, site LIMIT 25",
            f"SELECT regexp_replace(origin, '^https?://([^/]+)/.*$', '\\1') AS o, avg(length(origin)) AS l, count(*) AS n, min(origin) FROM hits WHERE origin <> '' GROUP BY o HAVING count(*) > {k} ORDER BY l DESC, o LIMIT 25",
            f"SELECT {wide} FROM hits",
            f"SELECT engine, address, count(*) AS n, sum(reloaded), avg(width) FROM hits WHERE phrase <> '' GROUP BY engine, address ORDER BY n DESC, engine, address LIMIT {k}",
            f"SELECT hit, address, count(*) AS n, sum(reloaded), avg(width) FROM hits WHERE phrase <> '' GROUP BY hit, address ORDER BY n DESC, hit, address LIMIT {k}",
            f"SELECT hit, address, count(*) AS n, sum(reloaded), avg(width) FROM hits GROUP BY hit, address ORDER BY n DESC, hit, address LIMIT {k}",
            f"SELECT page, count(*) AS n FROM hits GROUP BY page ORDER BY n DESC, page LIMIT {k}",
            f"SELECT 1, page, count(*) AS n FROM hits GROUP BY 1, page ORDER BY n DESC, page LIMIT {k}",
            f"SELECT address, address - 1, address - 2, address - 3, count(*) AS n FROM hits GROUP BY ALL ORDER BY n DESC, address LIMIT {k}",
            f"SELECT page, count(*) AS n FROM hits WHERE {seen} AND reloaded = 0 AND page <> '' GROUP BY page ORDER BY n DESC, page LIMIT {k}",
            f"SELECT title, count(*) AS n FROM hits WHERE {seen} AND reloaded = 0 AND title <> '' GROUP BY title ORDER BY n DESC, title LIMIT {k}",
            f"SELECT page, count(*) AS n FROM hits WHERE {seen} AND is_link = 1 AND is_download = 0 GROUP BY page ORDER BY n DESC, page LIMIT {k} OFFSET 20",
            f"SELECT source, engine, campaign, CASE WHEN engine = 0 AND campaign = 0 THEN origin ELSE '' END AS src, page, count(*) AS n FROM hits WHERE {seen} GROUP BY ALL ORDER BY n DESC, ALL LIMIT {k} OFFSET 20".replace(
                ", ALL", ", source, engine, campaign, src, page"
            ),
            f"SELECT page_hash, date_trunc('second', ts) AS sec, count(*) AS n FROM hits WHERE {seen} AND source IN (-1, 6) AND origin_hash = {7919 * (k % 4)} GROUP BY page_hash, sec ORDER BY n DESC, page_hash, sec LIMIT {k}",
            f"SELECT width, height, count(*) AS n FROM hits WHERE {seen} AND reloaded = 0 GROUP BY width, height ORDER BY n DESC, width, height LIMIT {k} OFFSET 5",
            f"SELECT date_trunc('second', ts) AS sec, count(*) AS n FROM hits WHERE {seen} AND reloaded = 0 GROUP BY sec ORDER BY sec LIMIT {k} OFFSET 2",
        ]
        return {f"hits {number:02}": sql for number, sql in enumerate(asked, 1)}
