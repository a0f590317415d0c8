"""Who may do what: roles, and tokens that name them, in the catalog.

A token names a role; of the token itself only a digest is stored. A role has rights, the relations and columns that it
may use, the ages of rows that it sees, and limits for its statements. Statements of a role are answered from a
snapshot that holds nothing else, so errors, EXPLAIN and system tables cannot show more.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.records import RIGHTS, Role, Token
from windrow.definitions import check_name
from windrow.errors import AccessError
from windrow.store import Store

_PREFIX = "windrow"
_SECRET_BYTES = 32


def put_role(
    store: Store,
    name: str,
    rights: Sequence[str],
    grants: Mapping[str, Sequence[str] | None] | None = None,
    *,
    newest: times.Duration | None = None,
    oldest: times.Duration | None = None,
    rows: int | None = None,
    seconds: float | None = None,
    memory: str | None = None,
) -> Role:
    """Store a role, or replace it; tokens of that role follow at their next request."""
    check_name(name, "role")
    unknown = [right for right in rights if right not in RIGHTS]
    if unknown or not rights:
        raise AccessError(f"a role's rights are some of {', '.join(RIGHTS)}, not {', '.join(unknown) or 'none'}")
    if rows is not None and rows < 1:
        raise AccessError(f"rows is {rows}; a role's answers must be allowed at least one row")
    role = Role(
        name=name,
        rights=tuple(right for right in RIGHTS if right in rights),
        grants=None if grants is None else {n: None if c is None else tuple(c) for n, c in grants.items()},
        newest=None if newest is None else times.parse_duration(newest, "newest"),
        oldest=None if oldest is None else times.parse_duration(oldest, "oldest"),
        rows=rows,
        seconds=seconds,
        memory=memory,
    )
    with store.catalog.write() as tables:
        _check_grants(tables, role)
        tables.put("roles", name.encode(), role)
    return role


def _check_grants(tables: Tables, role: Role) -> None:
    """Refuse a grant on a column that is not there: it would grant nothing, and nobody would notice."""
    streams = {entry.definition.name.lower(): entry for _, entry in tables.items("streams")}
    for name, columns in (role.grants or {}).items():
        if name.lower() not in streams:
            continue
        existing = streams[name.lower()].definition.schema.names
        missing = {column.lower() for column in columns or ()} - {column.lower() for column in existing}
        if missing:
            raise AccessError(f"stream {name!r} has no column {min(missing)!r}; it has {', '.join(existing)}")


def list_roles(store: Store) -> list[Role]:
    """All roles, by name."""
    return store.catalog.read(lambda tables: [role for _, role in tables.items("roles")])


def drop_role(store: Store, name: str) -> None:
    """Remove a role that no token has."""
    with store.catalog.write() as tables:
        if _find(tables, "roles", name) is None:
            raise AccessError(f"there is no role {name!r}; {_list_names(tables)}")
        bearers = [token.id for _, token in tables.items("tokens") if token.role == name]
        if bearers:
            raise AccessError(f"role {name!r} has tokens ({', '.join(bearers)}); revoke them first")
        tables.delete("roles", name.encode())


def create_token(store: Store, role: str, *, lifetime: times.Duration | None = None, note: str = "") -> tuple[str, str]:
    """A new token of a role: its id, and the text to hand out, which is nowhere stored and never shown again."""
    number, secret = secrets.token_hex(4), secrets.token_urlsafe(_SECRET_BYTES)
    now = store.clock()
    expires = None if lifetime is None else now + times.parse_duration(lifetime, "lifetime")
    token = Token(id=number, role=role, digest=_digest(secret), created=now, expires=expires, note=note)
    with store.catalog.write() as tables:
        if _find(tables, "roles", role) is None:
            raise AccessError(f"there is no role {role!r}; {_list_names(tables)}")
        tables.put("tokens", number.encode(), token)
    return number, f"{_PREFIX}_{number}_{secret}"


def list_tokens(store: Store) -> list[Token]:
    """All tokens."""
    return store.catalog.read(lambda tables: [token for _, token in tables.items("tokens")])


def revoke_token(store: Store, number: str) -> None:
    """Remove a token: its next request is refused."""
    with store.catalog.write() as tables:
        if _find(tables, "tokens", number) is None:
            raise AccessError(f"there is no token {number!r}; 'windrow token list' shows those that there are")
        tables.delete("tokens", number.encode())


def authenticate(store: Store, text: str) -> tuple[Token, Role] | None:
    """The token and role of a text that somebody sent, None if it is not, or no longer, one of ours."""
    prefix, _, rest = text.partition("_")
    number, _, secret = rest.partition("_")
    if prefix != _PREFIX or not number.isalnum() or not number.isascii():
        return None

    def find_credentials(tables: Tables) -> tuple[Token, Role] | None:
        token = _find(tables, "tokens", number)
        return None if token is None else (token, _find(tables, "roles", token.role))

    credentials = store.catalog.read(find_credentials)
    if credentials is None or credentials[1] is None or not hmac.compare_digest(credentials[0].digest, _digest(secret)):
        return None
    return None if credentials[0].expires is not None and credentials[0].expires <= store.clock() else credentials


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()  # of 256 random bits: there is nothing to guess


def _find(tables: Tables, table: str, name: str) -> Any:
    """A record, also out of a catalog that has no such database yet."""
    return next((record for key, record in tables.items(table, name.encode()) if key == name.encode()), None)


def _list_names(tables: Tables) -> str:
    names = [role.name for _, role in tables.items("roles")]
    return f"there is {', '.join(names)}" if names else "make one with 'windrow role create'"
