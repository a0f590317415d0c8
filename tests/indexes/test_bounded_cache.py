"""The bounded cache against a plain list of what was used last."""

from hypothesis import given
from hypothesis import strategies as st

from windrow.indexes.bounded_cache import BoundedCache

STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "put", "pop", "resize"]), st.integers(0, 5), st.integers(0, 7)), max_size=60
)


@given(STEPS, st.integers(1, 12))
def test_it_holds_what_a_plain_list_of_recent_use_holds(steps, limit):
    left = []
    cache = BoundedCache(limit, size=lambda value: value, dropped=lambda key, value: left.append((key, value)))
    recent: list[tuple[int, int]] = []
    gone = []
    for step, key, value in steps:
        if step == "resize":
            limit = value
            cache.resize(limit)
            while recent and sum(size for _, size in recent) > limit:
                gone.append(recent.pop(0))
            assert cache.items() == recent
            continue
        old = next((entry for entry in recent if entry[0] == key), None)
        if step == "get":
            assert cache.get(key) == (None if old is None else old[1])
            if old is not None:
                recent.remove(old)
                recent.append(old)
            continue
        if old is not None:
            recent.remove(old)
            gone.append(old)
        if step == "pop":
            assert cache.pop(key) == (None if old is None else old[1])
            continue
        assert cache.put(key, value) == (value <= limit)
        if value <= limit:
            while recent and sum(size for _, size in recent) + value > limit:
                gone.append(recent.pop(0))
            recent.append((key, value))
        assert cache.used == sum(size for _, size in recent)
        assert list(cache) == [key for key, _ in recent]
    assert left == gone
    cache.clear()
    assert (len(cache), cache.used) == (0, 0)


def test_without_sizes_it_counts_entries():
    cache = BoundedCache(2)
    assert [cache.get_or_make(number, lambda n=number: n * n) for number in (1, 2, 3)] == [1, 4, 9]
    assert 1 not in cache
    assert list(cache) == [2, 3]
