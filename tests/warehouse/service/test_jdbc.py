"""The JDBC driver of Arrow Flight SQL, as Maven gives it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ARTIFACT = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
JAR = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "windrow" / "flight-sql-jdbc-driver-18.3.0.jar"
PROGRAM = Path(__file__).with_name("FlightSqlClient.java")


@pytest.fixture(scope="module")
def driver() -> Path:
    """The driver's jar, fetched once for this user."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
    if not JAR.exists():
        if shutil.which("mvn") is None:
            pytest.skip("there is no mvn on this machine to fetch the driver")
        command = ["mvn", "-q", "-B", COPY, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={JAR.parent}"]
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        if fetched.returncode or not JAR.exists():
            pytest.skip("Maven did not give the driver: " + (fetched.stdout.strip().splitlines() or ["no reason"])[0])
    return JAR


def test_the_jdbc_driver_asks_and_lists(shared, driver):
    address = (
        f"jdbc:arrow-flight-sql://127.0.0.1:{shared.server.flight_port}/?useEncryption=false"
        f"&token={shared.tokens['operator']}"
    )
    command = ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    said = subprocess.run(
        [*command, "-cp", str(driver), str(PROGRAM), address], capture_output=True, text=True, timeout=150, check=False
    )
    lines = said.stdout.splitlines()
    assert lines[:4] == ["row 0 s0", "row 1 s1", "row 2 s2", "count 10"], said.stdout + said.stderr
    assert {"table seen STREAM", "table hidden STREAM", "table names TABLE", "table counted RESULT"} <= set(lines)
    assert {"column k BIGINT", "catalogs 1", "schemas 2", "kinds 5", "product windrow", "bound 2"} <= set(lines)
    assert lines[-1] == "error true"
