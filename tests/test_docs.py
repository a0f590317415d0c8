"""The documents are true: every snippet runs and shows what it gives, and every command is explained."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import markdown_snippets

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def pages_with_snippets() -> Iterator[object]:
    for page in PAGES:
        blocks = [
            block
            for block in markdown_snippets.read_blocks(page)
            if block.language in markdown_snippets.RUN and block.skipped is None
        ]
        uses_spark = any("spark" in block.text for block in blocks)
        if blocks:
            yield pytest.param(page, id=page.name, marks=[pytest.mark.spark] if uses_spark else [])


# A page is many commands, each a process that starts anew, and docs/cli.md runs the whole demo with Spark.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", list(pages_with_snippets()))
def test_snippets_do_what_the_page_says(page, tmp_path):
    """In a process and a directory of its own, as a reader would."""
    done = subprocess.run(
        [sys.executable, markdown_snippets.__file__, page],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


class Test_reading_a_page:
    def read(self, tmp_path: Path, text: str) -> list[markdown_snippets.Block]:
        page = tmp_path / "page.md"
        page.write_text(text)
        return markdown_snippets.read_blocks(page)

    def run(self, tmp_path: Path, text: str) -> None:
        session = markdown_snippets.Session()
        for block in self.read(tmp_path, text):
            session.run(block)

    def test_python_blocks_share_names_and_show_their_output(self, tmp_path):
        hidden = "<!-- run:\nx += 1\n-->\n"
        printing = "```python\nprint(x, 'a b c')\n```\n\n```text\n2 a ... c\n```\n"
        self.run(tmp_path, "```python\nx = 1\n```\ntext\n" + hidden + printing)

    def test_wrong_output_is_found(self, tmp_path):
        with pytest.raises(markdown_snippets.DocumentError, match=r"page.md:2: .*shows"):
            self.run(tmp_path, "```python\nprint(1)\n```\n```text\n2\n```\n")

    def test_console_blocks_are_run_and_compared(self, tmp_path):
        self.run(tmp_path, "```console\n$ echo one \\\n    two\none two\n$ true\n$ echo 3\n3\n```\n")
        with pytest.raises(markdown_snippets.DocumentError, match="but gives"):
            self.run(tmp_path, "```console\n$ echo one\ntwo\n```\n")

    def test_exit_codes_are_checked(self, tmp_path):
        self.run(tmp_path, "<!-- exit 1 -->\n```console\n$ true\n$ false\n```\n")
        with pytest.raises(markdown_snippets.DocumentError, match="exit code 1, not 0"):
            self.run(tmp_path, "```bash\nfalse\ntrue\n```\n")

    def test_a_block_that_is_not_run_says_why(self, tmp_path):
        self.run(tmp_path, "<!-- not run: needs a cluster -->\n```bash\nfalse\n```\n")
        with pytest.raises(markdown_snippets.DocumentError, match="without a reason"):
            self.run(tmp_path, "<!-- not run: -->\n```bash\nfalse\n```\n")

    def test_nothing_hides_behind_an_unknown_language_or_an_open_fence(self, tmp_path):
        with pytest.raises(markdown_snippets.DocumentError, match="neither run"):
            self.read(tmp_path, "```sh\nfalse\n```\n")
        with pytest.raises(markdown_snippets.DocumentError, match="never closed"):
            self.read(tmp_path, "```python\n")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of the command line, groups left out, with its full name."""
    from windrow import cli

    groups = [value for value in vars(cli).values() if isinstance(value, click.Group)]
    inner = [command for group in groups for command in group.commands.values()]
    (top,) = {group.name: group for group in groups if group not in inner}.values()

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for child in command.list_commands(context):
                    yield from walk(f"{name} {child}", command.get_command(context, child))
        else:
            yield name, command

    yield from walk("windrow", top)


def test_every_command_has_help():
    nameless = [name for name, command in commands() if not (command.help or "").strip()]
    assert nameless == []


def test_every_option_has_help():
    unexplained = [
        f"{name} {parameter.opts[0]}"
        for name, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and not (parameter.help or "").strip()
    ]
    assert unexplained == []


def test_every_command_is_documented():
    text = " ".join("\n".join(page.read_text() for page in PAGES).split())
    undocumented = [name for name, _ in commands() if name not in text]
    assert undocumented == []


def test_every_documented_command_exists():
    """`windrow x` in backticks is a command, or a group that has one."""
    names = {" ".join(name.split()[:words]) for name, _ in commands() for words in (2, 3)}
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(windrow [a-z]+(?: [a-z]+)?)`", page.read_text())
        if not any(name == command or name.startswith(f"{command} ") for command in names)
    }
    assert named == set()


def test_every_module_is_named_once():
    """docs/modules.md names each module of the product exactly once, and none that is not there."""
    folders = ("warehouse", "indexes", "native", "ingest", "queries")
    modules = [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyx", ".pxi")
        and (path.name != "__init__.py" or path.parent.name in ("warehouse", "cli", "demo"))
    ]
    named = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "modules.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(modules)


def test_every_database_of_the_catalog_is_described():
    from windrow.catalog import environment

    named = re.findall(r"^\| (\w+) \|", (ROOT / "docs" / "catalog.md").read_text(), re.MULTILINE)
    assert sorted(set(named) & set(environment.DATABASES)) == sorted(environment.DATABASES)


def test_paths_in_the_pages_exist():
    """A path of a source file in backticks is one that is there."""
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    missing = [
        f"{page.name}: {path}"
        for page in pages
        for path in re.findall(
            r"`((?:warehouse|indexes|native|ingest|queries|tests|bench)/[\w/]+\.\w+)`", page.read_text()
        )
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_links_between_pages_lead_somewhere_and_the_index_names_every_page():
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
    links = {page: re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()) for page in pages}
    broken = [
        f"{page.name}: {link}"
        for page, actual in links.items()
        for link in actual
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []
    named = {(ROOT / "docs" / link).resolve() for link in links[ROOT / "docs/index.md"]}
    assert [page.name for page in PAGES if page.resolve() not in named and page.name != "index.md"] == []
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
