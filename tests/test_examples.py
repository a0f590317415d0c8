"""The examples run, and what they find is what plain Python finds in the rows that they make."""

import datetime as dt
import importlib.util
import math
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_web_logs(tmp_path):
    example = load("web_logs")
    actual = example.main(tmp_path)
    lines = example.make_logs()
    assert actual["rejected"] == sum(line[4] == "-" for line in lines) > 0
    assert actual["left"] == 0
    assert actual["pages"] == sorted(Counter(line[2] for line in lines).items())
    requests, errors = Counter(), Counter()
    for ts, _, _, status, _ in lines:
        instant = dt.datetime.fromisoformat(ts)
        bucket = instant.replace(hour=instant.hour // 6 * 6, minute=0, second=0, microsecond=0)
        requests[bucket] += 1
        errors[bucket] += int(status) >= 500
    assert actual["errors"] == [(bucket, n, errors[bucket]) for bucket, n in sorted(requests.items())]
    drawn = (tmp_path / "errors.svg").read_text()
    assert "<svg" in drawn and "errors" in drawn
    again = example.main(tmp_path)
    assert {name: again[name] for name in ("pages", "errors", "left")} == {
        name: actual[name] for name in ("pages", "errors", "left")
    }


def test_leases(tmp_path):
    example = load("leases")
    actual = example.main(tmp_path)
    now = example.NOON + example.MINUTES * example.MINUTE
    made = [example.make_minute(number) for number in range(example.MINUTES)]
    live = [lease for leases, _ in made for lease in leases if lease["exp"] > now]
    recent = [login for _, logins in made for login in logins if login["ts"] > now - 10 * example.MINUTE]
    assert actual["leases"] == sorted((lease["host"], lease["address"]) for lease in live)
    assert actual["online"] == sorted(
        (lease["host"], lease["address"], login["person"], login["ts"])
        for lease in live
        for login in recent
        if lease["host"] == login["host"]
    )
    assert example.main(tmp_path) == actual, "run twice"


def test_iot_sensors(tmp_path):
    example = load("iot_sensors")
    actual = example.main(tmp_path)
    rows = [row for hall in example.HALLS for minute in range(12) for row in example.measure(hall, minute)]
    assert actual["rejected"] == sum(row["celsius"] < -100 for row in rows) > 0
    good = [row for row in rows if row["celsius"] > -100]
    # Every window is known in the end: what the silent hall had kept has come, and its windows were delivered anew.
    for end, complete, n, celsius in actual["results"]:
        window = [row["celsius"] for row in good if end - 5 * example.MINUTE < row["ts"] <= end]
        assert (n, celsius) == (len(window), pytest.approx(sum(window) / len(window), abs=0.001)), end
        assert complete == (end - 5 * example.MINUTE >= example.EIGHT)
    assert [end for end, *_ in actual["results"]] == [example.EIGHT + m * example.MINUTE for m in range(1, 13)]
    _, complete, kinds = actual["during"]
    assert not complete and "failed" in kinds
    assert actual["revisions"] > 0


def test_quotes(tmp_path):
    example = load("quotes")
    actual = example.main(tmp_path)
    end = example.OPEN + dt.timedelta(minutes=example.MINUTES)
    bids = [
        tick
        for minute in range(example.MINUTES)
        for tick in example.make_minute(minute)
        if (tick["sid"], tick["type"]) == ("ACME", "bid") and tick["ts"] > end - dt.timedelta(minutes=30)
    ]
    times = Counter()
    for index, bid in enumerate(bids):
        recent = [b["price"] for b in bids[: index + 1] if bid["ts"] - b["ts"] <= dt.timedelta(seconds=example.SECONDS)]
        times[bid["mmid"]] += bid["price"] == max(recent)
    assert actual["hammer"] == sorted((mmid, n) for mmid, n in times.items() if n)
    assert len(actual["files"]) >= 4 and all(name.endswith(".csv") for name in actual["files"])


def test_dashboard(tmp_path):
    example = load("dashboard")
    actual = example.main(tmp_path)
    newest = (example.START + dt.timedelta(minutes=example.MINUTES - 5)).isoformat()
    took = defaultdict(list)
    for minute in range(example.MINUTES):
        for row in example.make_minute(minute):
            if row["ts"] > newest:
                took[row["host"]].append(row["ms"])
    assert [tile[:2] for tile in actual["tile"]] == [(host, len(ms)) for host, ms in sorted(took.items())]
    for host, number, p90 in actual["tile"]:
        assert sorted(took[host])[math.ceil(0.9 * number) - 1] == p90


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_network_packets(spark, tmp_path):
    example = load("network_packets")
    actual = example.main(tmp_path, spark)
    end = example.START + dt.timedelta(minutes=6)
    rows = [row for minute in range(6) for row in example.make_minute(minute)]
    talkers = defaultdict(list)
    for row in rows:
        if row["ts"] > end - dt.timedelta(minutes=3):
            talkers[row["src"]].append(row["len"])
    assert actual["talkers"] == [(src, len(lens), sum(lens)) for src, lens in sorted(talkers.items())]
    recent = Counter(row["dst"] for row in rows if row["ts"] > end - dt.timedelta(minutes=2))
    assert actual["destinations"] == sorted(recent.items())
    report = Path(actual["report"]).read_text()
    assert all(str(sum(lens)) in report.replace(",", "") for lens in talkers.values())


@pytest.mark.parametrize("name", ["leases"])
def test_an_example_is_a_program(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_example_is_named():
    page = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.iterdir() if f"`{path.name}" not in page and path.name != "README.md"] == []
