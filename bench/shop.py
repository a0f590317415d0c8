"""A shop with its suppliers, and 22 statements of the shapes of TPC-H's, in our own words: six streams and two tables."""

import datetime as dt
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench.generators import SECOND, Definition, Draw, at, joined
from bench.workload import ORIGIN

DAY = 86_400 * SECOND
DAYS = 2400
SLOTS = 12
"""All rows come within twelve slots, and none of them expires; the shop's 200 days are one of the streams' clock."""
LANDS = (
    "alba",
    "bora",
    "cyra",
    "dena",
    "eris",
    "fara",
    "gila",
    "hova",
    "iona",
    "jura",
    "kara",
    "lima",
    "mona",
    "nola",
    "orsa",
)
PARTS_OF_WORLD = ("north", "south", "east")
MODES = ("AIR", "SHIP", "RAIL", "TRUCK", "MAIL", "CARRY")
URGENCIES = ("1-now", "2-soon", "3-week", "4-month", "5-any")
TRADES = ("bikes", "homes", "farms", "yards", "desks")
BOXES = ("SMALL BOX", "LARGE BOX", "SMALL BAG", "LARGE BAG", "TIN", "ROLL")


def _money(values: np.ndarray) -> pa.Array:
    """Decimals with two places."""
    return pa.array(np.round(values, 2)).cast(pa.decimal128(15, 2))


def _dates(days: np.ndarray) -> pa.Array:
    start = (dt.date(2024, 1, 1) - dt.date(1970, 1, 1)).days
    return pa.array((start + days).astype(np.int32)).view(pa.date32())


class Shop:
    """The rows of one seed.

    Args:
        seed: Of all of it.
        orders: How many orders; there are four lines to each, and fewer of everything else.
    """

    def __init__(self, seed: int, orders: int) -> None:
        self.seed, self.orders = seed, orders
        self.customers, self.parts, self.suppliers = max(30, orders // 10), max(40, orders // 8), max(20, orders // 150)
        draw = Draw(seed, 1)
        self.colours = draw.words(40, 2)
        self.makes = [
            f"{a} {b} {c}"
            for a in ("PLAIN", "PROMO", "GRAND")
            for b in ("WASHED", "BARE", "COATED")
            for c in ("STEEL", "BRASS", "WOOD")
        ]
        self.rows = self._make(draw)
        keys = {
            "lines": "order_no",
            "orders": "order_no",
            "customers": "customer",
            "parts": "part",
            "suppliers": "supplier",
            "offers": "part",
        }
        self.definitions = [
            Definition(name, rows.schema, keys[name], keys[name], 4 * SLOTS, DAY) for name, rows in self.rows.items()
        ]
        self.tables = {
            "lands": pa.table(
                {"land": np.arange(15, dtype=np.int32), "land_name": LANDS, "world": np.arange(15, dtype=np.int32) % 3}
            ),
            "worlds": pa.table({"world": np.arange(3, dtype=np.int32), "world_name": PARTS_OF_WORLD}),
        }

    def _make(self, draw: Draw) -> dict[str, pa.Table]:
        n, lines = self.orders, 4 * self.orders
        placed = np.sort(draw.integers(1, DAYS - 160, n))
        order = draw.integers(0, n, lines)
        part = draw.integers(0, self.parts, lines)
        supplier = (part * 7 + draw.integers(0, 4, lines) * 13) % self.suppliers
        quantity = draw.integers(1, 51, lines)
        price = quantity * (900 + part % 1000 + np.round(part % 97 / 100, 2))
        sent = placed[order] + draw.integers(1, 120, lines)
        promised, received = placed[order] + draw.integers(30, 90, lines), sent + draw.integers(1, 30, lines)
        many = self.parts * 4
        offered = np.repeat(np.arange(self.parts), 4)
        early = ORIGIN + np.arange(1, 1 + max(many, self.customers, self.suppliers))
        customer, back = np.arange(self.customers), sent <= DAYS - 500
        return {
            "lines": pa.table({
                "ts": at(ORIGIN + sent * DAY // (DAYS // SLOTS) + 1), "order_no": order, "part": part, "supplier": supplier,
                "line_no": draw.integers(1, 8, lines, np.int32), "quantity": quantity, "price": _money(price),
                "discount": _money(draw.integers(0, 11, lines) / 100), "tax": _money(draw.integers(0, 9, lines) / 100),
                "returned": pa.array(np.where(back, np.where(draw.chance.random(lines) < 0.5, "R", "A"), "N")),
                "state": pa.array(np.where(sent > DAYS - 500, "O", "F")),
                "sent": _dates(sent), "promised": _dates(promised), "received": _dates(received),
                "mode": draw.pick(list(MODES), lines, 0.2), "box": draw.pick(list(BOXES), lines, 0.1),
            }),
            "orders": pa.table({
                "ts": at(ORIGIN + placed * DAY // (DAYS // SLOTS) + 1), "order_no": np.arange(n), "customer": draw.integers(0, self.customers * 2 // 3, n),
                "state": pa.array(np.where(placed > DAYS - 500, "O", "F")), "total": _money(draw.money(n, 90_000, 0.6)),
                "placed": _dates(placed), "urgency": draw.pick(list(URGENCIES), n, 0.1),
                "remark": joined(draw.pick(self.colours, n), " ", draw.pick(["", "special ", "urgent "], n, 1.5), draw.pick(["packages ", "requests "], n), draw.integers(0, 900, n)),
            }),
            "customers": pa.table({
                "ts": at(early[: self.customers]), "customer": customer, "name": joined("Customer ", customer), "land": (customer * 11 % 15).astype(np.int32),
                "phone": joined(10 + customer * 11 % 15, "-", draw.integers(100, 999, self.customers)), "balance": _money(draw.money(self.customers, 800) - 600),
                "trade": draw.pick(list(TRADES), self.customers, 0.1),
            }),
            "parts": pa.table({
                "ts": at(early[: self.parts]), "part": np.arange(self.parts), "title": joined(draw.pick(self.colours, self.parts, 0.2), " ", draw.pick(self.colours, self.parts, 0.2)),
                "maker": joined("Maker ", draw.integers(1, 6, self.parts)), "brand": joined("Brand ", draw.integers(11, 36, self.parts)),
                "make": draw.pick(self.makes, self.parts, 0.1), "size": draw.integers(1, 51, self.parts, np.int32), "pack": draw.pick(list(BOXES), self.parts, 0.1),
            }),
            "suppliers": pa.table({
                "ts": at(early[: self.suppliers]), "supplier": np.arange(self.suppliers), "name": joined("Supplier ", np.arange(self.suppliers)),
                "land": (np.arange(self.suppliers) * 4 % 15).astype(np.int32), "balance": _money(draw.money(self.suppliers, 900)),
                "remark": draw.pick(["good service", "Customer Complaints", "on time"], self.suppliers, 1.2),
            }),
            "offers": pa.table({
                "ts": at(early[:many]), "part": offered, "supplier": (offered * 7 + np.tile(np.arange(4), self.parts) * 13) % self.suppliers,
                "stock": draw.integers(1, 10_000, many), "cost": _money(draw.money(many, 300)),
            }),
        }  # fmt: skip

    def slots(self) -> Iterator[tuple[str, pa.Table, int]]:
        """The rows of each stream slot by slot, with the clock after them."""
        for definition in self.definitions:
            rows = self.rows[definition.name].sort_by("ts")
            ends = np.searchsorted(
                np.array(rows["ts"].cast(pa.int64())), [definition.now(slot) for slot in range(1, SLOTS + 1)], "right"
            )
            for slot, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
                if start < end or slot == SLOTS:
                    yield definition.name, rows.slice(start, end - start), definition.now(slot)

    def turn(self, number: int) -> dict[str, str]:
        """The statements of one turn."""
        d = Draw(self.seed, 3, number)
        land, other = (str(word) for word in d.chance.choice(LANDS, 2, replace=False))
        world, trade, colour, size = (
            d.one(PARTS_OF_WORLD),
            d.one(TRADES),
            d.one(self.colours),
            int(d.chance.integers(1, 51)),
        )
        day = dt.date(2024, 1, 1) + dt.timedelta(days=int(d.chance.integers(300, 1500)))
        a, b = f"DATE '{day}'", f"DATE '{day + dt.timedelta(days=365)}'"
        kept = "price * (1 - discount)"
        asked = [
            f"SELECT returned, state, sum(quantity), sum(price), sum({kept}), sum({kept} * (1 + tax)), avg(quantity), avg(price), avg(discount), count(*) FROM lines WHERE sent <= {b} GROUP BY returned, state ORDER BY returned, state",
            f"SELECT s.balance, s.name, land_name, p.part, p.maker FROM parts p JOIN offers o USING (part) JOIN suppliers s USING (supplier) JOIN lands USING (land) JOIN worlds USING (world) WHERE p.size BETWEEN {size} AND {size + 5} AND p.make LIKE '%BRASS' AND world_name = '{world}' AND o.cost = (SELECT min(i.cost) FROM offers i JOIN suppliers t USING (supplier) JOIN lands l USING (land) JOIN worlds w USING (world) WHERE i.part = p.part AND w.world_name = '{world}') ORDER BY s.balance DESC, land_name, s.name, p.part LIMIT 100",
            f"SELECT order_no, sum({kept}) AS worth, placed FROM customers JOIN orders USING (customer) JOIN lines USING (order_no) WHERE trade = '{trade}' AND placed < {a} AND sent > {a} GROUP BY order_no, placed ORDER BY worth DESC, placed, order_no LIMIT 10",
            f"SELECT urgency, count(*) FROM orders o WHERE placed >= {a} AND placed < {a} + INTERVAL 3 MONTHS AND EXISTS (SELECT 1 FROM lines l WHERE l.order_no = o.order_no AND promised < received) GROUP BY urgency ORDER BY urgency",
            f"SELECT land_name, sum({kept}) AS worth FROM customers c JOIN orders USING (customer) JOIN lines USING (order_no) JOIN suppliers s USING (supplier) JOIN lands n ON s.land = n.land JOIN worlds USING (world) WHERE c.land = s.land AND world_name = '{world}' AND placed >= {a} AND placed < {b} GROUP BY land_name ORDER BY worth DESC, land_name",
            f"SELECT sum(price * discount) FROM lines WHERE sent >= {a} AND sent < {b} AND discount BETWEEN 0.0{size % 7 + 1} AND 0.0{size % 7 + 3} AND quantity < {20 + size % 9}",
            f"SELECT n1.land_name AS seller, n2.land_name AS buyer, year(sent) AS y, sum({kept}) AS worth FROM suppliers s JOIN lines USING (supplier) JOIN orders USING (order_no) JOIN customers c USING (customer) JOIN lands n1 ON s.land = n1.land JOIN lands n2 ON c.land = n2.land WHERE ((n1.land_name = '{land}' AND n2.land_name = '{other}') OR (n1.land_name = '{other}' AND n2.land_name = '{land}')) AND sent >= {a} GROUP BY ALL ORDER BY seller, buyer, y",
            f"SELECT y, sum(CASE WHEN seller = '{land}' THEN worth ELSE 0 END) / sum(worth) AS share FROM (SELECT year(placed) AS y, {kept} AS worth, n2.land_name AS seller FROM parts JOIN lines USING (part) JOIN suppliers s USING (supplier) JOIN orders USING (order_no) JOIN customers c USING (customer) JOIN lands n1 ON c.land = n1.land JOIN worlds w ON n1.world = w.world JOIN lands n2 ON s.land = n2.land WHERE world_name = '{world}' AND make LIKE 'GRAND%') GROUP BY y ORDER BY y",
            f"SELECT land_name, y, sum(gain) AS gain FROM (SELECT land_name, year(placed) AS y, {kept} - cost * quantity AS gain FROM parts JOIN lines l USING (part) JOIN suppliers s USING (supplier) JOIN offers f ON f.part = l.part AND f.supplier = l.supplier JOIN orders USING (order_no) JOIN lands n ON s.land = n.land WHERE title LIKE '%{colour}%') GROUP BY land_name, y ORDER BY land_name, y DESC",
            f"SELECT c.customer, c.name, sum({kept}) AS worth, balance, land_name, phone FROM customers c JOIN orders USING (customer) JOIN lines USING (order_no) JOIN lands USING (land) WHERE placed >= {a} AND placed < {a} + INTERVAL 3 MONTHS AND returned = 'R' GROUP BY ALL ORDER BY worth DESC, c.customer LIMIT 20",
            f"SELECT part, sum(cost * stock) AS worth FROM offers JOIN suppliers USING (supplier) JOIN lands USING (land) WHERE land_name = '{land}' GROUP BY part HAVING sum(cost * stock) > (SELECT sum(cost * stock) * 0.001 FROM offers JOIN suppliers USING (supplier) JOIN lands USING (land) WHERE land_name = '{land}') ORDER BY worth DESC, part LIMIT 200",
            f"SELECT mode, sum(CASE WHEN urgency IN ('1-now', '2-soon') THEN 1 ELSE 0 END) AS high, sum(CASE WHEN urgency NOT IN ('1-now', '2-soon') THEN 1 ELSE 0 END) AS low FROM orders JOIN lines USING (order_no) WHERE mode IN ('{MODES[size % 6]}', '{MODES[(size + 1) % 6]}') AND promised < received AND sent < promised AND received >= {a} AND received < {b} GROUP BY mode ORDER BY mode",
            f"SELECT many, count(*) AS n FROM (SELECT c.customer, count(order_no) AS many FROM customers c LEFT JOIN orders o ON c.customer = o.customer AND o.remark NOT LIKE '%special%{('packages', 'requests')[size % 2]}%' GROUP BY c.customer) GROUP BY many ORDER BY n DESC, many DESC",
            f"SELECT 100.0 * sum(CASE WHEN make LIKE 'PROMO%' THEN {kept} ELSE 0 END) / sum({kept}) FROM lines JOIN parts USING (part) WHERE sent >= {a} AND sent < {a} + INTERVAL 1 MONTH",
            f"WITH earned AS (SELECT supplier, sum({kept}) AS total FROM lines WHERE sent >= {a} AND sent < {a} + INTERVAL 3 MONTHS GROUP BY supplier) SELECT supplier, name, total FROM suppliers JOIN earned USING (supplier) WHERE total = (SELECT max(total) FROM earned) ORDER BY supplier",
            f"SELECT brand, make, size, count(DISTINCT supplier) AS n FROM offers JOIN parts USING (part) WHERE brand <> 'Brand {size % 25 + 11}' AND make NOT LIKE 'PROMO%' AND size IN ({size}, {size % 9 + 1}, {size % 20 + 5}, {size % 31 + 9}) AND supplier NOT IN (SELECT supplier FROM suppliers WHERE remark LIKE '%Complaints%') GROUP BY brand, make, size ORDER BY n DESC, brand, make, size LIMIT 100",
            f"SELECT sum(price) / 7.0 FROM lines l JOIN parts p USING (part) WHERE brand = 'Brand {size % 25 + 11}' AND pack = '{BOXES[size % 6]}' AND quantity < (SELECT 0.4 * avg(quantity) FROM lines i WHERE i.part = p.part)",
            f"SELECT c.name, customer, order_no, placed, total, sum(quantity) FROM customers c JOIN orders USING (customer) JOIN lines USING (order_no) WHERE order_no IN (SELECT order_no FROM lines GROUP BY order_no HAVING sum(quantity) > {200 + size}) GROUP BY ALL ORDER BY total DESC, placed, order_no LIMIT 100",
            f"SELECT sum({kept}) FROM lines JOIN parts USING (part) WHERE (brand = 'Brand 12' AND pack IN ('SMALL BOX', 'SMALL BAG') AND quantity BETWEEN {size % 10} AND {size % 10 + 10} AND size BETWEEN 1 AND 15 AND mode IN ('AIR', 'MAIL')) OR (brand = 'Brand 23' AND pack IN ('TIN', 'ROLL') AND quantity BETWEEN 10 AND 25 AND size BETWEEN 1 AND 25 AND mode IN ('AIR', 'MAIL')) OR (brand = 'Brand 34' AND pack IN ('LARGE BOX', 'LARGE BAG') AND quantity BETWEEN 20 AND 35 AND mode IN ('AIR', 'MAIL'))",
            f"SELECT s.name FROM suppliers s JOIN lands USING (land) WHERE supplier IN (SELECT supplier FROM offers o WHERE part IN (SELECT part FROM parts WHERE title LIKE '{colour[0]}%') AND stock > (SELECT 0.5 * sum(quantity) FROM lines l WHERE l.part = o.part AND l.supplier = o.supplier AND sent >= {a} AND sent < {b})) AND land_name = '{land}' ORDER BY s.name",
            f"SELECT s.name, count(*) AS n FROM suppliers s JOIN lines l1 USING (supplier) JOIN orders o USING (order_no) JOIN lands USING (land) WHERE o.state = 'F' AND l1.received > l1.promised AND EXISTS (SELECT 1 FROM lines l2 WHERE l2.order_no = l1.order_no AND l2.supplier <> l1.supplier) AND NOT EXISTS (SELECT 1 FROM lines l3 WHERE l3.order_no = l1.order_no AND l3.supplier <> l1.supplier AND l3.received > l3.promised) AND land_name = '{land}' GROUP BY s.name ORDER BY n DESC, s.name LIMIT 100",
            f"SELECT code, count(*), sum(balance) FROM (SELECT substring(phone, 1, 2) AS code, balance FROM customers c WHERE substring(phone, 1, 2) IN ('{10 + size % 15}', '{10 + size % 7}', '{12 + size % 11}', '20') AND balance > (SELECT avg(balance) FROM customers WHERE balance > 0) AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.customer)) GROUP BY code ORDER BY code",
        ]
        return {f"shop {number:02}": sql for number, sql in enumerate(asked, 1)}
