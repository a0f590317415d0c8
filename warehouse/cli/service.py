"""Commands of the service: `serve`, and the roles and tokens of those who use it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow.arguments import check_size
from windrow.cli import terminal
from windrow.cli.queries import policy_option, spark_options, spark_session
from windrow.cli.server_log import server_log
from windrow.cli.session import Group, Session, command, if_not_exists_option, sending
from windrow.cli.worker_process import RESTART, can_fork, supervise
from windrow.errors import AccessError
from windrow.times import parse_slack

if TYPE_CHECKING:
    from windrow.queries.periodic.counters import ServerCounters
    from windrow.queries.periodic.runner import RunReport
    from windrow.warehouse import Warehouse


@click.command(short_help="Answer over the network, and run periodic queries as their streams slide.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Of HTTP; 0: any.")
@click.option("--flight-port", type=click.IntRange(0, 65535), help="Also answer Arrow Flight SQL; 0: any.")
@click.option("--no-http", is_flag=True, help="Open no port; only run periodic queries.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The certificate chain, in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's private key, in PEM.")
@click.option("--insecure", is_flag=True, help="Listen without TLS and tokens: whoever reaches the port is the owner.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=4, show_default=True, help="Statements at once.")
@click.option("--queue", type=click.IntRange(0, 100_000), default=64, show_default=True, help="Statements that wait.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 86_400), default=600, show_default=True, help="Seconds of a statement."
)
@click.option("--memory", metavar="SIZE", help="Of a statement, such as 2GB; by default a share.")
@click.option(
    "--grace", type=click.FloatRange(0, 3600), default=10, show_default=True, help="Seconds to end what runs."
)
@click.option("--audit", type=click.Path(path_type=Path), help="Append one line of JSON for each statement.")
@click.option(
    "--poll", type=click.FloatRange(0.01, 60), default=0.2, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--slide", "slides", metavar="STREAM", multiple=True, help="Slide STREAM by the wall clock; several times."
)
@click.option(
    "--lag", metavar="DURATION", default="0 seconds", show_default=True, help="How far behind it, for late rows."
)
@policy_option
@spark_options
@command
@sending
def serve(
    session: Session,
    allowed: dict[str, Any],
    no_http: bool,
    poll: float,
    slides: tuple[str, ...],
    lag: str,
    policy: str,
    master: str | None,
    spark_settings: tuple[str, ...],
    **network_options: Any,
) -> None:
    """Answer SQL and take rows over HTTP and Arrow Flight SQL; watch for slides and run what is due.

    One line with time and level is written for each run, slide and problem. A second process on the same warehouse
    answers too; it waits with the periodic queries and takes them over when the first ends.
    """
    import signal

    def work() -> int:
        from windrow.automatic_slides import AutomaticSlides
        from windrow.queries.engine.interrupt import has_late_calls
        from windrow.queries.periodic.server import PeriodicServer
        from windrow.spark import find_engine

        def must_restart() -> bool:
            return has_late_calls() or (engine is not None and not engine.is_alive())

        def ran_in_time(_: "RunReport") -> None:
            if must_restart():
                server.stop()

        with contextlib.ExitStack() as stack:
            spark = stack.enter_context(spark_session(master, spark_settings))
            engine = find_engine(spark)
            wh = stack.enter_context(session.open(**allowed))
            clocks = AutomaticSlides(wh, slides, behind, lambda _: None, log.warning)
            server = PeriodicServer(
                wh._store, poll=poll, policy=policy, engine=engine, ran=ran_in_time, before=clocks.run
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            if not no_http:
                stack.enter_context(_answer_network(wh, server.counts, log, **network_options))
            server.run()
            return RESTART if must_restart() else 0

    behind = parse_slack(lag, "--lag")
    session.check_exists()
    with server_log(session.json) as log:
        code = supervise(work) if can_fork() else work()
    if code:
        raise click.exceptions.Exit(code)


@contextlib.contextmanager
def _answer_network(
    wh: "Warehouse",
    counts: "ServerCounters",
    log: logging.Logger,
    *,
    host: str,
    port: int,
    flight_port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    concurrency: int,
    queue: int,
    timeout: float,
    memory: str | None,
    grace: float,
    audit: Path | None,
) -> Iterator[None]:
    """Answer over HTTP, and Flight SQL, as long as the block lasts."""
    network = _import_network()
    from windrow.service.audit import AuditLog

    limits = network.Limits(
        concurrency=concurrency, waiting=queue, seconds=timeout, memory=check_size(memory, "memory")
    )
    settings = network.ServerSettings(
        host=host,
        port=port,
        flight_port=flight_port,
        certificate=tls_cert,
        key=tls_key,
        insecure=insecure,
        grace=grace,
        limits=limits,
    )
    audit_log = AuditLog(audit, log.warning)
    with contextlib.closing(audit_log), network.serving(wh, settings, counts, audit_log.write, log.info):
        yield


def _import_network() -> Any:
    try:
        from windrow.service import server
    except ImportError as error:
        raise AccessError(
            f"serving over the network needs more packages ({error.name}): pip install 'windrow[serve]', "
            "or give --no-http to run periodic queries only"
        ) from None
    return server


@click.group(cls=Group)
def role() -> None:
    """Roles: what the bearers of a token may do."""


@role.command("create")
@click.argument("name")
@click.option(
    "--right",
    "rights",
    type=click.Choice(("read", "append", "operate")),
    multiple=True,
    required=True,
    help="Ask; append rows and heartbeats; change everything else. May be given several times.",
)
@click.option(
    "--grant",
    "grants",
    metavar="NAME[:COLUMN,…]",
    multiple=True,
    help="A stream, view, table or result, and which of its columns; without any grant the role may use everything.",
)
@click.option("--newest", metavar="DURATION", help="Rows are seen only when they are this old.")
@click.option("--oldest", metavar="DURATION", help="Rows older than this are not seen.")
@click.option("--rows", type=click.IntRange(1), help="Rows that an answer may have.")
@click.option("--seconds", type=click.FloatRange(0.001), help="How long a statement may run.")
@click.option("--memory", metavar="SIZE", help="How much memory a statement may take, such as 500MB.")
@if_not_exists_option
@command
def create_role(
    session: Session,
    name: str,
    rights: tuple[str, ...],
    grants: tuple[str, ...],
    newest: str | None,
    oldest: str | None,
    rows: int | None,
    seconds: float | None,
    memory: str | None,
    if_not_exists: bool,
) -> None:
    """Make a role, or replace it; its tokens follow at their next request."""
    from windrow.access import list_roles, put_role

    granted: dict[str, list[str] | None] = {}
    for text in grants:
        relation, _, columns = text.partition(":")
        granted[relation] = [column.strip() for column in columns.split(",")] if columns else None
    with session.open() as wh:
        existing = [each for each in list_roles(wh._store) if if_not_exists and each.name == name]
        if not existing:
            put_role(
                wh._store, name, rights, granted or None,
                newest=newest, oldest=oldest, rows=rows, seconds=seconds, memory=memory,
            )  # fmt: skip
    if session.json:
        terminal.write_json({"role": name})
    elif existing:
        terminal.say(f"there is already role {name}, which may {', '.join(existing[0].rights)}")
    else:
        terminal.say(f"role {name} may {', '.join(rights)}")


@role.command("list")
@command
def show_roles(session: Session) -> None:
    """List the roles."""
    import msgspec

    from windrow.access import list_roles

    with session.open(read_only=True) as wh:
        roles = list_roles(wh._store)
    if session.json:
        terminal.write_json([msgspec.to_builtins(one) for one in roles])
        return
    grants = [
        "everything"
        if r.grants is None
        else ", ".join(n if c is None else f"{n}:{','.join(c)}" for n, c in r.grants.items())
        for r in roles
    ]
    rows = [(r.name, ", ".join(r.rights), text) for r, text in zip(roles, grants, strict=True)]
    terminal.print_table(["role", "rights", "may use"], rows)


@role.command("drop")
@click.argument("name")
@command
def remove_role(session: Session, name: str) -> None:
    """Remove a role that no token has."""
    from windrow.access import drop_role

    with session.open() as wh:
        drop_role(wh._store, name)
    terminal.write_json({"dropped": name}) if session.json else terminal.say(f"role {name} dropped")


@click.group(cls=Group)
def token() -> None:
    """Tokens: what a client sends to be let in."""


@token.command("create")
@click.argument("role")
@click.option("--lifetime", metavar="DURATION", help="After which it is refused; by default never.")
@click.option("--note", default="", help="Whose it is.")
@command
def make_token(session: Session, role: str, lifetime: str | None, note: str) -> None:
    """Make a token of a role. Its text is printed once and stored nowhere."""
    from windrow.access import create_token

    with session.open() as wh:
        number, text = create_token(wh._store, role, lifetime=lifetime, note=note)
    if session.json:
        terminal.write_json({"id": number, "token": text})
    else:
        click.echo(text)


@token.command("list")
@command
def show_tokens(session: Session) -> None:
    """List the tokens, without their secrets."""
    from windrow.access import list_tokens
    from windrow.times import format_time

    with session.open(read_only=True) as wh:
        tokens = list_tokens(wh._store)
    rows = [
        (t.id, t.role, format_time(t.created), "never" if t.expires is None else format_time(t.expires), t.note)
        for t in tokens
    ]
    names = ["id", "role", "created", "expires", "note"]
    if session.json:
        terminal.write_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        terminal.print_table(names, rows)


@token.command("revoke")
@click.argument("id")
@command
def forget_token(session: Session, id: str) -> None:
    """Refuse a token from its next request on."""
    from windrow.access import revoke_token

    with session.open() as wh:
        revoke_token(wh._store, id)
    terminal.write_json({"revoked": id}) if session.json else terminal.say(f"token {id} revoked")
