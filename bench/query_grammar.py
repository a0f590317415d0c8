"""Standing queries drawn from a grammar, sharing little; a third cannot be computed slot by slot."""

from dataclasses import dataclass

from bench.generators import Draw, WebEvents

COLUMNS = ("country", "browser", "status", "url", "user_id % 50", "millis // 100", "length(url)")
VALUES = ("count(*)", "sum(millis)", "max(millis)", "min(millis)", "avg(millis)", "sum(status)", "count(DISTINCT country)",
          "max(session % 1000)", "median(millis)", "stddev(millis)")  # fmt: skip
CUT, WHOLE, SHARED = "by slots", "not by slots", "one template"


@dataclass(frozen=True)
class StandingQuery:
    """A query, its window in slots, and its kind; `{window}` stands for the rows of its window."""

    name: str
    kind: str
    text: str
    window: int

    def sql(self, rows: str) -> str:
        """The statement over some rows."""
        return self.text.replace("{window}", rows)


class Grammar:
    """Draws queries over page views.

    Args:
        shape: The stream, whose vocabulary conditions use.
        draw: Where chance comes from.
        slots: The longest window.
    """

    def __init__(self, shape: WebEvents, draw: Draw, slots: int) -> None:
        self.shape, self.draw, self.slots = shape, draw, slots

    def queries(self, count: int) -> list[StandingQuery]:
        """So many, every third one not to be computed slot by slot."""
        statements = []
        for number in range(count):
            kind = WHOLE if number % 3 == 2 else CUT
            text = self._whole() if kind == WHOLE else self._cut()
            window = int(self.draw.chance.integers(max(1, self.slots // 5), self.slots + 1))
            statements.append(StandingQuery(f"q{number}", kind, text, window))
        return statements

    def shared(self, count: int) -> list[StandingQuery]:
        """So many of one template: they differ in window and limit only."""
        statements = []
        for number in range(count):
            columns = ("url", "country", "browser, status", "user_id % 50")[number % 4]
            limit, window = 5 + number % 11, int(self.draw.chance.integers(max(1, self.slots // 5), self.slots + 1))
            text = (f"SELECT {columns}, sum(millis) AS total FROM {{window}} GROUP BY {columns} "
                    f"ORDER BY total DESC, {columns} LIMIT {limit}")  # fmt: skip
            statements.append(
                StandingQuery(
                    f"s{number}", SHARED, text.replace("SELECT user_id % 50", "SELECT user_id % 50 AS g"), window
                )
            )
        return statements

    def _condition(self) -> str:
        draw, shape = self.draw, self.shape
        choices = (
            f"country = '{draw.one(shape.countries)}'",
            f"country IN ({', '.join(repr(c) for c in sorted({draw.one(shape.countries) for _ in range(5)}))})",
            f"status {draw.one(['=', '<>'])} {draw.one([200, 304, 404, 500])}",
            f"millis {draw.one(['<', '>', '>='])} {int(draw.chance.integers(20, 900))}",
            f"url LIKE '%{draw.one(shape.parts)}%'",
            f"browser LIKE '{draw.one('ABCDFGKLMNPRSTVWXYZ')}%'",
            f"user_id % {int(draw.chance.integers(3, 30))} = {int(draw.chance.integers(3))}",
            f"referrer {draw.one(['=', '<>'])} ''",
        )
        picked = draw.chance.choice(len(choices), int(draw.chance.integers(1, 4)), replace=False)
        return f" {draw.one(['AND', 'AND', 'OR'])} ".join(choices[int(number)] for number in sorted(picked))

    def _columns(self, most: int) -> tuple[str, str]:
        """Grouping columns with names, and the names."""
        picked = self.draw.chance.choice(len(COLUMNS), int(self.draw.chance.integers(1, most + 1)), replace=False)
        names = [f"g{number}" for number in range(len(picked))]
        return ", ".join(f"{COLUMNS[int(p)]} AS {name}" for p, name in zip(picked, names, strict=True)), ", ".join(
            names
        )

    def _values(self) -> str:
        picked = self.draw.chance.choice(len(VALUES) - 1, int(self.draw.chance.integers(1, 3)), replace=False)
        values = [VALUES[int(p)] for p in picked]
        if (
            self.draw.chance.random() < 0.2
        ):  # never the first, by which rows are ordered: its last bits depend on theirs
            values.append(VALUES[-1])
        return ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))

    def _cut(self) -> str:
        if self.draw.chance.random() < 0.2:
            return f"SELECT {self._values()} FROM {{window}} WHERE {self._condition()}"
        columns, names = self._columns(2)
        order = (
            f"v0 DESC, {names} LIMIT {int(self.draw.chance.integers(5, 40))}"
            if self.draw.chance.random() < 0.6
            else names
        )
        return f"SELECT {columns}, {self._values()} FROM {{window}} WHERE {self._condition()} GROUP BY {names} ORDER BY {order}"

    def _whole(self) -> str:
        draw, (columns, names) = self.draw, self._columns(1)
        at_most = int(draw.chance.integers(5, 30))
        return str(draw.one([
            f"SELECT zone, count(*) AS n, sum(millis) AS total FROM {{window}} JOIN places USING (country) WHERE {self._condition()} GROUP BY zone ORDER BY zone",
            f"SELECT user_id, ts, millis, millis - prior AS step FROM (SELECT user_id, ts, millis, lag(millis) OVER (PARTITION BY user_id ORDER BY ts, url, session) AS prior FROM {{window}} WHERE {self._condition()}) WHERE prior IS NOT NULL ORDER BY step DESC, user_id, ts, millis LIMIT {at_most}",
            f"SELECT max(n) AS most, avg(n) AS mean, count(*) AS groups FROM (SELECT user_id, count(*) AS n FROM {{window}} WHERE {self._condition()} GROUP BY user_id)",
            f"SELECT g0, n, rank() OVER (ORDER BY n DESC) AS place FROM (SELECT {columns}, count(DISTINCT user_id) AS n FROM {{window}} WHERE {self._condition()} GROUP BY {names}) ORDER BY place, g0 LIMIT {at_most}",
            f"SELECT count(*) AS n, count(DISTINCT user_id) AS u FROM {{window}} WHERE {self._condition()} AND millis > (SELECT avg(millis) FROM {{window}})",
            f"SELECT country, url, ts, millis FROM {{window}} WHERE {self._condition()} QUALIFY row_number() OVER (PARTITION BY country ORDER BY millis DESC, ts, url) = 1 ORDER BY country, url, ts",
        ]))  # fmt: skip
