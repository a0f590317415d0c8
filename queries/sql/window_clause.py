"""Window clauses among the tokens of a statement: where they are, which relation they follow, and what they mean.

Whether a clause is well placed is not decided here: DuckDB's parser confirms each `ClauseCandidate` or not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Literal

from windrow import times
from windrow.errors import DefinitionError, QueryError, WindowError
from windrow.past import AsOf, IncludingExpired, Past
from windrow.queries.sql.calendar_units import MAX_PREVIOUS, UNIT_LENGTHS, find_zone
from windrow.queries.sql.tokens import SourceText, Token
from windrow.queries.sql.window_spec import (
    AllRows,
    CalendarWindow,
    CountWindow,
    FixedWindow,
    LandmarkWindow,
    OffsetWindow,
    OrderedWindow,
    RangeWindow,
    SessionWindow,
    WindowSpec,
)

SYSTEM_SCHEMA = "windrow"
CLAUSE_FORMS = (
    "[WINDOW 10 MINUTES], [WINDOW 10 MINUTES SLIDE 2 MINUTES], [WINDOW 1 HOUR OFFSET 1 DAY], [ROWS 100], "
    "[ROWS 10 PARTITION BY column], [SESSION 5 MINUTES PARTITION BY column], [SINCE TIMESTAMP '…'], "
    "[FROM TIMESTAMP '…' TO TIMESTAMP '…'] or [DAY 'Europe/Berlin' PREVIOUS 1], each with INCLUDING EXPIRED or AS OF … "
    "at its end if need be"
)
_TIMESTAMP_TYPES = ("timestamp", "timestamptz", "datetime", "date")
_UNITS = "microseconds, milliseconds, seconds, minutes, hours, days or weeks"
_MAX_MICROSECONDS = times.NEVER // 4

ParseTimestamp = Callable[[str, str], int | None]
"""(type, text) to microseconds, None if DuckDB cannot read the text as that type."""


@dataclass(frozen=True)
class ClauseCandidate:
    """A place in the text that reads like a relation with a window.

    Args:
        start: First byte of the relation's name.
        stop: One past the clause, or past the name if there is none.
        clause: First byte of the clause itself, for messages.
        path: The relation's name, with its schema before it.
        written: The last part of the name as written, to stand as an alias.
        window: What the clause means.
        required: Whether it is an error if DuckDB does not see a relation here.
        before: Position of the token before the candidate, -1 for none.
        after: Position of the token behind it.
        past: The state that it is asked of, if not the present one.
    """

    start: int
    stop: int
    clause: int
    path: tuple[str, ...]
    written: str
    window: WindowSpec
    required: bool
    before: int
    after: int
    past: Past | None = None


def find_candidates(source: SourceText, instants: ParseTimestamp) -> list[ClauseCandidate]:
    """Everything in the text that may be a relation with a window, and the system tables, in order."""
    tokens = source.tokens
    candidates: list[ClauseCandidate] = []
    position = 0
    while position < len(tokens):
        candidate = None
        if _opens_clause(tokens, position):
            candidate = _parse_bracket_form(source, position, instants)
        elif _is(tokens, position + 1, "(") and tokens[position].is_name and tokens[position].name.lower() == "window":
            candidate = _parse_function_form(source, position, instants)
        elif tokens[position].is_name and tokens[position].name.lower() == SYSTEM_SCHEMA:
            candidate = _match_system_table(tokens, position)
        if candidate is not None:
            candidates.append(candidate)
        position = max(position + 1, candidate.after if candidate else 0)
    return candidates


def explain_misread_clause(source: SourceText, offset: int) -> QueryError | None:
    """A better message for a syntax error at a bracket that was probably meant as a window clause."""
    for position, token in enumerate(source.tokens):
        if token.text == "[" and token.start <= offset and position + 1 < len(source.tokens):
            inner = source.tokens[position + 1]
            near = offset <= (source.tokens[position + 2].start if position + 2 < len(source.tokens) else inner.stop)
            if near and inner.word in ("rows", "range", "session", "since", "last", "slide", "now", "unbounded"):
                return source.error(token.start, f"this is not a window clause; write {CLAUSE_FORMS}")
    return None


def _is(tokens: Sequence[Token], position: int, text: str) -> bool:
    return 0 <= position < len(tokens) and tokens[position].text == text


def _word(tokens: Sequence[Token], position: int) -> str:
    return tokens[position].word if 0 <= position < len(tokens) else ""


def _opens_clause(tokens: Sequence[Token], position: int) -> bool:
    """Whether a bracket opens a window clause: never where it could open a list or a subscript in valid SQL."""
    if not _is(tokens, position, "["):
        return False
    first, second = _word(tokens, position + 1), tokens[position + 2] if position + 2 < len(tokens) else None
    if first in ("window", "from"):
        return True  # reserved words: no expression begins with them
    if second is None:
        return False
    if (first, second.word) in (("as", "of"), ("including", "expired")):
        return True  # no expression begins with AS, and two names in a row are none
    if first in UNIT_LENGTHS:
        return second.kind == "string_const"  # a constant of a type that DuckDB does not have
    if first in ("rows", "range"):
        number = second.kind == "numeric_const" and second.text[0] != "."
        return number or (first == "range" and second.word == "interval")
    if first == "session":
        return second.kind == "numeric_const" or second.word == "interval"
    return first == "since" and second.word in _TIMESTAMP_TYPES and position + 3 < len(tokens)


def _parse_bracket_form(source: SourceText, position: int, instants: ParseTimestamp) -> ClauseCandidate:
    tokens = source.tokens
    first = position - 1
    if first < 0 or not tokens[first].is_name:
        raise source.error(tokens[position].start, "a window clause stands directly after the name of a stream")
    while _is(tokens, first - 1, ".") and first >= 2 and tokens[first - 2].is_name:
        first -= 2
    parser = _ClauseParser(source, position + 1, instants)
    window = parser.clause()
    parser.expect("]", f"the window clause must end here with ]; write {CLAUSE_FORMS}")
    return ClauseCandidate(
        start=tokens[first].start,
        stop=tokens[parser.position - 1].stop,
        clause=tokens[position].start,
        path=tuple(token.name for token in tokens[first:position:2]),
        written=tokens[position - 1].text,
        window=window,
        required=True,
        before=first - 1,
        after=parser.position,
        past=parser.past,
    )


def _parse_function_form(source: SourceText, position: int, instants: ParseTimestamp) -> ClauseCandidate:
    tokens = source.tokens
    parser = _ClauseParser(source, position + 2, instants)
    name = parser.string("window('stream', INTERVAL 10 MINUTES) begins with the stream's name as a string")
    window = parser.arguments()
    parser.expect(")", "window('stream', …) must end here with )")
    quoted = '"' + name.replace('"', '""') + '"'
    return ClauseCandidate(
        start=tokens[position].start,
        stop=tokens[parser.position - 1].stop,
        clause=tokens[position].start,
        path=(name,),
        written=name if name.isidentifier() and name.isascii() else quoted,
        window=window,
        required=True,
        before=position - 1,
        after=parser.position,
        past=parser.past,
    )


def _match_system_table(tokens: Sequence[Token], position: int) -> ClauseCandidate | None:
    """``windrow.streams`` and the like; ``windrow.x`` may also be a column of something called windrow."""
    if _is(tokens, position - 1, ".") or not _is(tokens, position + 1, ".") or position + 2 >= len(tokens):
        return None
    table = tokens[position + 2]
    if not table.is_name or any(_is(tokens, position + 3, after) for after in (".", "(", "[")):
        return None
    return ClauseCandidate(
        start=tokens[position].start,
        stop=table.stop,
        clause=tokens[position].start,
        path=(SYSTEM_SCHEMA, table.name),
        written=table.text,
        window=AllRows(),
        required=False,
        before=position - 1,
        after=position + 3,
    )


class _ClauseParser:
    """Reads the inside of a clause, token by token; every refusal names its place."""

    def __init__(self, source: SourceText, position: int, instants: ParseTimestamp) -> None:
        self._source = source
        self._instants = instants
        self.position = position
        self.past: Past | None = None

    def _error(self, message: str, back: int = 0) -> QueryError:
        position = self.position - back
        tokens = self._source.tokens
        return self._source.error(tokens[position].start if position < len(tokens) else len(self._source.data), message)

    def _peek(self) -> Token | None:
        return self._source.tokens[self.position] if self.position < len(self._source.tokens) else None

    def _take(self, message: str) -> Token:
        token = self._peek()
        if token is None:
            raise self._error(message)
        if token.text in ("?", "$", ":") and self.position > 0:
            raise self._error("a window is part of the statement, not a parameter; write its length here")
        self.position += 1
        return token

    def _word(self, *words: str) -> bool:
        token = self._peek()
        if token is not None and token.word in words:
            self.position += 1
            return True
        return False

    def _symbol(self, *symbols: str) -> bool:
        token = self._peek()
        if token is not None and token.text in symbols:
            self.position += 1
            return True
        return False

    def expect(self, symbol: str, message: str) -> None:
        """The next token must be `symbol`."""
        if not self._symbol(symbol):
            raise self._error(message)

    def string(self, message: str) -> str:
        """A plain quoted string."""
        token = self._take(message)
        if token.kind != "string_const" or token.text[0] != "'" or len(token.text) < 2:
            raise self._error(message, back=1)
        return token.text[1:-1].replace("''", "'")

    def clause(self) -> WindowSpec:
        """What stands between the brackets."""
        window = AllRows() if self._begins_past() else self._window()
        if self._begins_past():
            self.past = self._past()
        return window

    def _begins_past(self) -> bool:
        token = self._peek()
        return token is not None and token.word in ("as", "including")

    def _past(self) -> Past:
        """Of which state: ``INCLUDING EXPIRED``, or ``AS OF`` a time, a slide or a commit."""
        if self._word("including"):
            if not self._word("expired"):
                raise self._error("INCLUDING goes on with EXPIRED")
            return IncludingExpired()
        form = "write AS OF TIMESTAMP '…', AS OF SLIDE 12 or AS OF COMMIT 34"
        self._word("as")
        if not self._word("of"):
            raise self._error(form)
        if self._is_instant():
            return AsOf("timestamp", self._instant())
        kinds: tuple[Literal["slide"], Literal["commit"]] = ("slide", "commit")
        for kind in kinds:
            if self._word(kind):
                return AsOf(kind, self._ordinal(kind))
        raise self._error(form)

    def _ordinal(self, kind: str) -> int:
        negative = self._symbol("-")
        number = self._number()
        if number != int(number) or (negative and kind == "commit") or number > _MAX_MICROSECONDS:
            raise self._error(f"AS OF {kind.upper()} takes a whole number, not {number}", back=1)
        return -int(number) if negative else int(number)

    def _window(self) -> WindowSpec:
        kind = self._take("").word
        if kind in ("window", "range"):
            length = self._duration()
            offset = self._duration() if self._word("offset") else None
            slide = self._duration() if self._word("slide") else None
            return RangeWindow(length, slide) if offset is None else OffsetWindow(length, offset, slide)
        if kind == "rows":
            return self._partition(CountWindow(self._count()))
        if kind == "session":
            return self._partition(SessionWindow(self._duration()))
        if kind in UNIT_LENGTHS:
            unit = self._calendar(kind)
            return replace(unit, previous=self._previous()) if self._word("previous") else unit
        start = self._instant()
        if kind == "since":
            return LandmarkWindow(start)
        if not self._word("to"):
            raise self._error("[FROM TIMESTAMP '…' goes on with TO TIMESTAMP '…']")
        return self._between(start, self._instant())

    def arguments(self) -> WindowSpec:
        """What stands behind the stream's name in the function form."""
        window: WindowSpec = AllRows()
        while self._symbol(","):
            window = self._argument(window)
        return window

    def _argument(self, window: WindowSpec) -> WindowSpec:
        argument = self.position
        following = self._source.tokens[self.position + 1] if self.position + 1 < len(self._source.tokens) else None
        if following is not None and following.text in (":=", "=>"):
            word = self._take("").word
            self.position += 1
            if self._named_past(word):
                return window
            named = self._kind(word) if isinstance(window, AllRows) else self._detail(word, window)
            if named is not None:
                return named
        elif self._is_instant() and isinstance(window, AllRows):
            start = self._instant()
            both = (
                "window('stream', TIMESTAMP '…', TIMESTAMP '…') needs both ends; for one, write since := TIMESTAMP '…'"
            )
            self.expect(",", both)
            return self._between(start, self._instant())
        elif isinstance(window, AllRows):
            return RangeWindow(self._duration())
        self.position = argument
        raise self._error(
            "window('stream', …) takes INTERVAL n unit [, offset := INTERVAL n unit] [, slide := INTERVAL n unit], "
            "rows := n [, partition_by := 'column'], session := INTERVAL n unit [, partition_by := 'column'], since := "
            "TIMESTAMP '…', TIMESTAMP '…', TIMESTAMP '…' or day := 'Europe/Berlin' [, previous := 1], each with "
            "as_of := TIMESTAMP '…', as_of_slide := n, as_of_commit := n or including_expired := true"
        )

    def _named_past(self, word: str) -> bool:
        """Whether a named argument of the function form says of which state."""
        if self.past is not None or word not in ("as_of", "as_of_slide", "as_of_commit", "including_expired"):
            return False
        if word == "as_of":
            self.past = AsOf("timestamp", self._instant())
        elif word == "including_expired":
            if not self._word("true"):
                raise self._error("write including_expired := true, or leave it out")
            self.past = IncludingExpired()
        else:
            kind: Literal["slide", "commit"] = "slide" if word == "as_of_slide" else "commit"
            self.past = AsOf(kind, self._ordinal(kind))
        return True

    def _kind(self, word: str) -> WindowSpec | None:
        """The kind of window that a named argument of the function form begins; None if it begins none."""
        if word == "rows":
            return CountWindow(self._count())
        if word == "session":
            return SessionWindow(self._duration())
        if word == "since":
            return LandmarkWindow(self._instant())
        return self._calendar(word) if word in UNIT_LENGTHS else None

    def _detail(self, word: str, window: WindowSpec) -> WindowSpec | None:
        """The window with what a further argument says of it; None if it has nothing of that name to say."""
        if word == "previous" and isinstance(window, CalendarWindow) and not window.previous:
            return replace(window, previous=self._previous())
        if word == "slide" and isinstance(window, RangeWindow | OffsetWindow) and window.slide is None:
            return replace(window, slide=self._duration())
        if word == "offset" and isinstance(window, RangeWindow):
            return OffsetWindow(window.length, self._duration(), window.slide)
        if word == "partition_by" and isinstance(window, OrderedWindow) and not window.keys:
            return replace(window, keys=self._quoted_columns())
        return None

    def _partition(self, window: OrderedWindow) -> OrderedWindow:
        """The window of each key, if the clause goes on with PARTITION BY."""
        if not self._word("partition"):
            return window
        if not self._word("by"):
            raise self._error("PARTITION goes on with BY and a column")
        columns = [self._column()]
        while self._symbol(","):
            columns.append(self._column())
        return replace(window, keys=tuple(columns))

    def _column(self) -> str:
        message = "the name of a column is expected here, as in PARTITION BY host"
        token = self._take(message)
        if not token.is_name:
            raise self._error(message, back=1)
        return token.name

    def _quoted_columns(self) -> tuple[str, ...]:
        """One column in quotes, or several in a list."""
        message = "partition_by takes columns in quotes: 'host' or ['host', 'port']"
        if not self._symbol("["):
            return (self.string(message),)
        columns = [self.string(message)]
        while self._symbol(","):
            columns.append(self.string(message))
        self.expect("]", message)
        return tuple(columns)

    def _calendar(self, unit: str) -> CalendarWindow:
        zone = self.string(f"{unit.upper()} is followed by a time zone, as in {unit.upper()} 'Europe/Berlin'")
        try:
            find_zone(zone)
        except WindowError as error:
            raise self._error(str(error), back=1) from None
        return CalendarWindow(unit, zone)

    def _previous(self) -> int:
        number = self._number()
        if number < 1 or number != int(number) or number > MAX_PREVIOUS:
            raise self._error(f"PREVIOUS takes a whole number of units, 1 to {MAX_PREVIOUS}, not {number}", back=1)
        return int(number)

    def _between(self, start: int, stop: int) -> FixedWindow:
        if start >= stop:
            raise self._error(f"the window ends at {times.format_time(stop)}, not after it begins", back=1)
        return FixedWindow(start, stop)

    def _number(self) -> Decimal:
        message = f"a number is expected here; write {CLAUSE_FORMS}"
        token = self._take(message)
        try:
            return Decimal(token.text if token.kind == "numeric_const" else "")
        except InvalidOperation:
            raise self._error(message, back=1) from None

    def _count(self) -> int:
        number = self._number()
        if number < 1 or number != int(number) or number > _MAX_MICROSECONDS:
            raise self._error(f"[ROWS n] takes a whole number of rows, at least 1, not {number}", back=1)
        return int(number)

    def _duration(self) -> int:
        started = self.position
        interval = self._word("interval")
        token = self._peek()
        if token is not None and token.kind == "string_const":
            micros = self._quoted_duration(interval)
        else:
            nested = interval and self._symbol("(")
            micros = self._part(self._number(), nested)
            while not interval and (token := self._peek()) is not None and token.kind == "numeric_const":
                micros += self._part(self._number(), nested=False)
        if micros <= 0 or micros > _MAX_MICROSECONDS or micros != int(micros):
            message = "a window is a whole number of microseconds long, more than zero and less than 70000 years"
            raise self._error(message, back=self.position - started)
        return int(micros)

    def _part(self, number: Decimal, nested: bool) -> Decimal:
        if nested:
            self.expect(")", "INTERVAL (n) unit must close its parenthesis")
        expected = f"a unit is expected here: {_UNITS}"
        token = self._take(expected)
        if not token.word:
            raise self._error(expected, back=1)
        factor = times.unit_micros(token.word)
        if factor is None:
            varies = token.word.rstrip("s") in ("month", "quarter", "year", "decade", "century")
            what = "has no fixed length" if varies else "is not a unit"
            raise self._error(f"{token.text} {what}; use {_UNITS}", back=1)
        return number * factor

    def _quoted_duration(self, interval: bool) -> Decimal:
        text = self.string("a duration is expected here")
        token = self._peek()
        if interval and token is not None and token.word and times.unit_micros(token.word):
            try:
                return self._part(Decimal(text.strip()), nested=False)
            except InvalidOperation:
                raise self._error(f"INTERVAL '{text}' {token.text} needs a number between the quotes", back=1) from None
        try:
            return Decimal(times.parse_duration(text, "window"))
        except DefinitionError as error:
            raise self._error(str(error), back=1) from None

    def _is_instant(self) -> bool:
        token = self._peek()
        return token is not None and token.word in (*_TIMESTAMP_TYPES, "cast")

    def _instant(self) -> int:
        started = self.position
        kind, text = self._cast() if self._word("cast") else self._typed()
        micros = self._instants(kind, text)
        if micros is None or abs(micros) > _MAX_MICROSECONDS:
            message = f"{text!r} is not a {kind} that a window can begin or end at"
            raise self._error(message, back=self.position - started)
        return micros

    def _instant_type(self) -> str:
        token = self._take("TIMESTAMP '…' is expected here")
        if token.word not in _TIMESTAMP_TYPES:
            raise self._error("TIMESTAMP '…' is expected here", back=1)
        if self._word("with"):
            if not (self._word("time") and self._word("zone")):
                raise self._error("TIMESTAMP WITH TIME ZONE '…' is expected here")
            return "timestamptz"
        return token.word

    def _typed(self) -> tuple[str, str]:
        kind = self._instant_type()
        form = f"{kind.upper()} '2026-11-16 12:00:00'"
        return kind, self.string(f"{kind.upper()} is followed by a quoted time, as in {form}")

    def _cast(self) -> tuple[str, str]:
        self.expect("(", "CAST('…' AS TIMESTAMP) is expected here")
        text = self.string("CAST('…' AS TIMESTAMP) is expected here")
        if not self._word("as"):
            raise self._error("CAST('…' AS TIMESTAMP) is expected here")
        kind = self._instant_type()
        self.expect(")", "CAST('…' AS TIMESTAMP) must close its parenthesis")
        return kind, text
