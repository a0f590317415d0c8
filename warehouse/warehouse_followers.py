"""What follows streams: synopses, views and periodic queries, each kind loaded when a stream has one."""

from windrow.catalog.environment import Tables
from windrow.catalog.records import StreamEntry
from windrow.slide_hooks import Follow, Follower, Tally


def _holding() -> Follow:
    from windrow.queries.periodic.retained_slides import follow

    return follow


def _synopses() -> Follow:
    from windrow.queries.synopses.maintenance import follow

    return follow


def _tally() -> Tally:
    from windrow.queries.synopses.tally import tally

    return tally


def _follow_views() -> Follow:
    from windrow.queries.views.slide_hook import follow

    return follow


def _needed_by_views(tables: Tables, entry: StreamEntry, now: int) -> int | None:
    from windrow.queries.views.slide_hook import needs

    return needs(tables, entry, now)


FOLLOWERS: tuple[Follower, ...] = (
    Follower("views", _follow_views, _needed_by_views),  # first: what keeps a slide keeps that of its views too
    Follower("keepers", _holding),
    Follower("synopses", _synopses, tally=_tally),
)
"""What changes with a slide, and what appends do for it."""
