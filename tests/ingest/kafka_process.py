"""A process that runs `windrow ingest` commands with Spark's Kafka package, one after the other, in one session.

Run as: kafka_process.py <jars, separated by commas> <step to die at, or -> <times to pass it>
Each line on standard input is the arguments of a command as JSON; the answer is a line with its code and output.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from child_spark import session
from click.testing import CliRunner

from windrow import cli
from windrow.cli.session import Session


def main(jars: str, step: str, passes: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    sys.path.append(str(Path(__file__).parents[1]))
    from faulty_disks import KillAtStep

    opened = Session.open
    files = KillAtStep(step, int(passes) + 1)

    def open_with_kill(self: Session, **options: Any) -> Any:
        return opened(self, files=files, **options)

    Session.open = open_with_kill  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: None)
    spark = session("local[2]", **{"spark.jars": jars})
    for line in sys.stdin:
        done = CliRunner().invoke(cli.windrow, ["ingest", *json.loads(line)])
        print(json.dumps({"code": done.exit_code, "output": done.output, "stdout": done.stdout}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
