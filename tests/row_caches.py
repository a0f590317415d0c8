"""The row cache of a warehouse, for tests that want rows to be in memory, or want to know whether they are."""

import windrow
from windrow.queries.engine.instance import warehouse_instance
from windrow.queries.planner.row_cache import RowCache, row_cache


def find_cache(wh: windrow.Warehouse) -> RowCache:
    """The cache; the warehouse must have one."""
    cache = row_cache(wh._store, warehouse_instance(wh._store))
    assert cache is not None
    return cache


def settle(wh: windrow.Warehouse) -> None:
    """Wait until all that was asked for is in memory."""
    cache = row_cache(wh._store, warehouse_instance(wh._store))
    if cache is not None:
        cache.wait()


def path_of(wh: windrow.Warehouse, sql: str) -> str:
    """How the only stream of a statement is read."""
    (plan,) = wh.explain(sql).relations
    return plan.path
