"""The examples of docs/service.md, checked by the programs that they are for, where those are installed."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

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
    known = {family.name for family in text_string_to_metric_families(text)}
    used = {name.removesuffix("_total") for text in expressions for name in re.findall(r"\bwindrow_\w+", text)}
    assert used <= known
