"""The one bounded cache of the product: least recently used entries leave first, by number or by bytes."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A mapping of at most `limit`; safe to use from several threads.

    Args:
        limit: How many entries, or how many bytes if `size` tells the bytes of one.
        size: What one value counts; 1 if not given.
        dropped: Called with each entry that leaves, outside the lock.
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[V], int] | None = None,
        dropped: Callable[[K, V], None] | None = None,
    ) -> None:
        self.limit = limit
        self.used = 0
        self._size = size
        self._dropped = dropped
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._guard = threading.Lock()
        _caches.add(self)

    def get(self, key: K) -> V | None:
        """The value of a key, which is then the most recently used; None if it is not here."""
        with self._guard:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def get_all(self, keys: Sequence[K]) -> list[V | None]:
        """The values of several keys, as by `get`."""
        with self._guard:
            entries = list(map(self._entries.get, keys))
            for key, entry in zip(keys, entries, strict=True):
                if entry is not None:
                    self._entries.move_to_end(key)
        return [None if entry is None else entry[0] for entry in entries]

    def put(self, key: K, value: V) -> bool:
        """Keep a value; others leave if there is no room. False if it alone is larger than the limit."""
        size = 1 if self._size is None else self._size(value)
        dropped: list[tuple[K, V]] = []
        with self._guard:
            before = self._entries.pop(key, None)
            if before is not None:
                self.used -= before[1]
                dropped.append((key, before[0]))
            fits = size <= self.limit
            if fits:
                while self._entries and self.used + size > self.limit:
                    old, (old_value, old_size) = self._entries.popitem(last=False)
                    self.used -= old_size
                    dropped.append((old, old_value))
                self._entries[key] = (value, size)
                self.used += size
        self._report_dropped(dropped)
        return fits

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not here; two threads may both make one, and the later one is kept."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def resize(self, limit: int) -> None:
        """Change the limit; what no longer fits leaves."""
        dropped: list[tuple[K, V]] = []
        with self._guard:
            self.limit = limit
            while self._entries and self.used > limit:
                key, (value, size) = self._entries.popitem(last=False)
                self.used -= size
                dropped.append((key, value))
        self._report_dropped(dropped)

    def pop(self, key: K) -> V | None:
        """Take an entry out, None if it is not here."""
        with self._guard:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self.used -= entry[1]
        self._report_dropped([(key, entry[0])])
        return entry[0]

    def clear(self) -> None:
        """Take all entries out."""
        with self._guard:
            dropped = [(key, value) for key, (value, _) in self._entries.items()]
            self._entries.clear()
            self.used = 0
        self._report_dropped(dropped)

    def items(self) -> list[tuple[K, V]]:
        """All entries, the least recently used first; none of them is used by this."""
        with self._guard:
            return [(key, value) for key, (value, _) in self._entries.items()]

    def _report_dropped(self, dropped: list[tuple[K, V]]) -> None:
        if self._dropped is not None:
            for key, value in dropped:
                self._dropped(key, value)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        with self._guard:
            return iter(list(self._entries))


Findings = BoundedCache[Hashable, tuple[Any]]
"""What was found out about something that does not change, by the function that found it and its arguments."""
P = ParamSpec("P")
T = TypeVar("T")


class HasFindings(Protocol):
    """Something that does not change, so that what is found out about it is found once."""

    @property
    def findings(self) -> Findings:
        """What was found."""


Owner = TypeVar("Owner", bound=HasFindings)


def cached_in_findings(find: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Compute something about the first argument once, and keep it there."""

    @wraps(find)
    def cached(owner: Owner, /, *rest: P.args, **named: P.kwargs) -> T:
        key = find, rest, tuple(named.items())
        finding = owner.findings.get(key)
        if finding is None:
            finding = (find(owner, *rest, **named),)
            owner.findings.put(key, finding)
        return finding[0]

    return cached


_caches: "weakref.WeakSet[BoundedCache[Any, Any]]" = weakref.WeakSet()


def _free_guards() -> None:
    """A thread that did not come along into a child may have held a guard at the fork."""
    for cache in _caches:
        cache._guard = threading.Lock()


os.register_at_fork(after_in_child=_free_guards)
