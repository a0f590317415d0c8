"""Java libraries that tests use, as Maven gives them; kept in the user's cache."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "windrow"
FETCH_SECONDS = 150

_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def fetch(name: str, coordinates: list[str], *, alone: bool) -> Path | str:
    """Fetch jars into a folder, once for this user; gives the folder, or why they could not be had.

    Args:
        name: Of the folder.
        coordinates: Of the jars.
        alone: Without what they depend on.
    """
    folder = CACHE / name
    if folder.is_dir():
        return folder
    work = CACHE / f"{name}.{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    try:
        needed = "".join(_DEPENDENCY.format(*each.split(":"), _ALONE if alone else "") for each in coordinates)
        (work / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>windrow</groupId>'
            f"<artifactId>{name}</artifactId><version>1</version><dependencies>{needed}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "-f", str(work / "pom.xml"), COPY, f"-DoutputDirectory={work / 'jars'}"]
        try:
            done = subprocess.run(
                [*command, "-DincludeScope=runtime"], capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"Maven did not give {name} within {FETCH_SECONDS} s"
        if done.returncode:
            return f"Maven did not give {name}: " + (done.stdout.strip().splitlines() or ["no reason"])[0]
        try:
            (work / "jars").rename(folder)
        except OSError:  # another process was faster
            assert folder.is_dir()
        return folder
    finally:
        shutil.rmtree(work, ignore_errors=True)


def need_tools(*tools: str) -> None:
    """Skip a test where one of these programs is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
