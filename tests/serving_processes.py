"""`windrow serve` in processes of its own, as an operator starts it."""

import contextlib
import os
import signal
import subprocess
from typing import Self

PATIENCE = 120


class ServingProcess:
    """A server of a warehouse; its addresses are known when it is made.

    Args:
        command: The program.
        path: Of the warehouse.
        more: Arguments of `serve`.
        options: Of the process.
    """

    def __init__(self, command, path, *more: str, **options) -> None:
        arguments = ["--port", "0", "--flight-port", "0", "--concurrency", "2", *more]
        self.child = subprocess.Popen(
            [str(command), "-w", str(path), "serve", *arguments],
            stdout=subprocess.PIPE, text=True, start_new_session=True, **options,
        )  # fmt: skip
        addresses = {}
        while "http" not in addresses:
            line = self.child.stdout.readline()
            assert line, "it ended"
            if " on " in line:
                address = line.strip().rpartition(" on ")[2]
                addresses["flight" if address.startswith("grpc") else "http"] = address
        self.http, self.flight = addresses["http"], addresses["flight"]

    def kill(self) -> None:
        """End the supervisor, the server and its workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.child.stdout.close()

    def stop(self) -> int:
        """End it as a service manager does; gives its exit code."""
        self.child.terminate()
        code = self.child.wait(PATIENCE)
        self.child.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.kill()
