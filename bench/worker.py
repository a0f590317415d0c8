"""A store in a process of its own: its memory is seen apart, and it begins cold on files that are there.

Workers are forked from a server that has imported everything, so that a first statement is measured and not imports.
Only the operation itself is timed, in the worker; the parent takes turns between workers and watches their memory.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from bench.generators import Definition
from bench.measures import Timing, timed
from bench.stores import Store

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """One store in one process.

    Args:
        store: Its class.
        folder: Of its files.
        definitions: Of its streams.
    """

    def __init__(self, store: type[Store], folder: Path, definitions: Sequence[Definition]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        self.name = store.name
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, store, folder, definitions), daemon=True)
        with checkout_on_path():
            context.set_forkserver_preload(["bench.worker", "windrow.warehouse"])
            forkserver.ensure_running()
            self._process.start()
        other.close()
        self._least, self.opened = self._receive()
        self.peak = 0

    def call(self, method: str, *given: Any) -> tuple[Timing, Any]:
        """Time one method of the store; `update`'s rows are prepared first."""
        self._pipe.send((method, given))
        answer: tuple[Timing, Any] = self._receive()
        return answer

    def _receive(self) -> Any:
        while not self._pipe.poll(0.005):
            self._watch()
        self._watch()
        try:
            ok, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(30)
            raise RuntimeError(f"{self.name}: its process ended with code {self._process.exitcode}") from None
        if not ok:
            raise answer
        return answer

    def _watch(self) -> None:
        status = Path(f"/proc/{self._process.pid}/status")
        if hasattr(self, "peak") and status.exists():
            self.peak = max(self.peak, _anonymous(status) - self._least)

    def close(self) -> None:
        """Close the store and end the process."""
        self._pipe.send(None)
        self._process.join(30)
        self._pipe.close()


@contextmanager
def checkout_on_path() -> Iterator[None]:
    """`bench` is no installed package: the server and its children find it by the path that they are started with.

    A server that another part of the program has started knows only its own path, so a child is given ours too.
    """
    before, path = os.environ.get("PYTHONPATH"), list(sys.path)
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{before}" if before else str(ROOT)
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path[:] = path
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _serve(pipe: Any, kind: type[Store], folder: Path, definitions: Sequence[Definition]) -> None:
    least = _anonymous(Path("/proc/self/status"))
    try:
        timing, store = timed(lambda: kind(folder, definitions))
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send((False, RuntimeError(f"{kind.__name__}: {type(error).__name__}: {error}")))
        return
    pipe.send((True, (least, timing)))
    while (asked := pipe.recv()) is not None:
        method, given = asked
        try:
            if method == "update":
                given = (given[0], store.prepare(given[1]), *given[2:])
            timing, answer = timed(lambda m=method, g=given: getattr(store, m)(*g))  # type: ignore[misc]
            pipe.send((True, (timing, store.as_arrow(answer))))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            pipe.send((False, RuntimeError(f"{store.name}: {error}")))
    store.close()
    # The end of a forked interpreter waits for threads that the libraries of some stores never end.
    os._exit(0)


def _anonymous(status: Path) -> int:
    lines = (line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return int(next(lines, "RssAnon: 0").split()[1]) << 10
