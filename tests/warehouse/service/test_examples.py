"""The examples of docs/service.md, checked by the programs that they are for, where those are installed."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import windrow
from certificates import make_certificate
from serving_processes import PATIENCE, ServingProcess
from windrow.access import create_token, put_role
from windrow.queries.periodic.counters import ServerCounters
from windrow.service.metrics import render_metrics

PAGE = (Path(__file__).parents[3] / "docs" / "service.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} on this machine")
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    (unit,) = examples("ini")
    file = tmp_path / "windrow.service"
    file.write_text(unit.replace("/opt/windrow/bin/windrow", shutil.which("true") or "/bin/true"))
    run("systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(file))


def test_the_commands_of_the_unit_and_the_dockerfile_serve(windrow_command, tmp_path):
    """With a certificate and a folder of the test's, on ports that are free; the health check is run beside."""
    (dockerfile,), (unit,) = examples("dockerfile"), examples("ini")
    instructions = dict(re.findall(r"^(ENTRYPOINT|CMD|HEALTHCHECK CMD) (\[.*\])$", dockerfile, re.MULTILINE))
    entry, arguments, health = (json.loads(instructions[name]) for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK CMD"))
    started = shlex.split(re.search(r"ExecStart=((?:.*\\\n)*.*)", unit)[1].replace("\\\n", " "))
    tls = make_certificate(tmp_path, 1)
    with windrow.open(tmp_path / "w") as wh:
        put_role(wh._store, "operator", ["read"])
        create_token(wh._store, "operator")
    places = {
        "/warehouse": tmp_path / "w", "/var/lib/windrow/traffic": tmp_path / "w", "0.0.0.0": "localhost",
        "/run/secrets/tls.pem": tls["certificate"], "/run/secrets/tls.key": tls["key"],
        "/etc/windrow/tls.pem": tls["certificate"], "/etc/windrow/tls.key": tls["key"],
        "/var/log/windrow/audit.jsonl": tmp_path / "audit.jsonl", "9464": "0", "9465": "0",
    }  # fmt: skip
    for command in (entry + arguments, started):
        assert command[1] == "-w" and command[3] == "serve"
        words = [str(places.get(word, word)) for word in command]
        with ServingProcess(windrow_command, words[2], *words[4:]) as server:
            assert server.http.startswith("https://") and server.flight.startswith("grpc+tls://")
            port = server.http.rpartition(":")[2]
            checked = [sys.executable, *health[1:-1], health[-1].replace("9464", port)]
            subprocess.run(checked, timeout=PATIENCE, check=True)
            assert server.stop() == 0


def test_prometheus_takes_the_scrape_and_the_alerts(tmp_path):
    scrape, alerts = examples("yaml")
    rules, token = tmp_path / "windrow.rules.yml", tmp_path / "windrow.token"
    rules.write_text(alerts)
    token.write_text("x")
    (tmp_path / "prometheus.yml").write_text(scrape.replace("/etc/prometheus", str(tmp_path)))
    run("promtool", "check", "config", str(tmp_path / "prometheus.yml"))


def test_alerts_and_dashboard_name_metrics_that_there_are(shared):
    (dashboard,) = examples("json")
    expressions = [target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]]
    expressions += re.findall(r"expr: (.*)", examples("yaml")[1])
    text = render_metrics(shared.wh._store, ServerCounters(0)).decode()
    metric_names = {family.name for family in text_string_to_metric_families(text)}
    used = {name.removesuffix("_total") for text in expressions for name in re.findall(r"\bwindrow_\w+", text)}
    assert used <= metric_names
