"""Tables on a terminal: laid out as Rich would where they fit; wide ones are folded, but numbers stay whole."""

import io
import random

import pytest
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from windrow.cli import terminal

SEED = random.randrange(1 << 32)


def lay_out_by_rich(columns: list[str], rows: list[list[str]], right: list[str]) -> list[str]:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    written = io.StringIO()
    Console(file=written, width=4000, highlight=False).print(table)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_tables_that_fit_look_as_rich_lays_them_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rng = random.Random(SEED)
    for _ in range(20):
        names = [f"column {n}" for n in range(rng.randrange(1, 5))]
        rows = [
            ["".join(rng.choices("ab 漢é.", k=rng.randrange(9))).strip() for _ in names]
            for _ in range(rng.randrange(4))
        ]
        right = [name for name in names if rng.random() < 0.5]
        terminal.print_table(names, rows, right=right)
        shown = capsys.readouterr().out.splitlines()
        assert shown == lay_out_by_rich(names, rows, right), f"seed {SEED}"


def test_wide_tables_fold_text_and_keep_numbers_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the width: no line is wider than that, every number is on one line, and no text is lost."""
    rng = random.Random(SEED)
    for _ in range(30):
        width = rng.randrange(40, 100)
        monkeypatch.setenv("COLUMNS", str(width))
        texts = [["".join(rng.choices("abc漢", k=rng.randrange(1, 80))) for _ in range(2)] for _ in range(3)]
        rows = [(first, str(rng.randrange(10**15)), second) for first, second in texts]
        terminal.print_table(("first", "number", "second"), rows, right=("number",))
        shown = capsys.readouterr().out.splitlines()
        assert max(terminal._measure(line) for line in shown) <= width, f"seed {SEED}"
        for row in rows:
            assert sum(row[1] in line for line in shown) == 1, f"seed {SEED}"
        printed = "".join("".join(shown).split())
        assert sorted(printed.replace("─", "")) == sorted("firstnumbersecond" + "".join(map("".join, rows)))


def test_tables_without_room_are_printed_row_by_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal.print_table(("a", "longer"), [(123456789012, 123456789012), (1, 2)], right=("a", "longer"))
    assert capsys.readouterr().out.splitlines() == [
        "─ row 1", "a       123456789012", "longer  123456789012", "─ row 2", "a       1", "longer  2"
    ]  # fmt: skip


def test_long_tables_measure_every_cell_a_bounded_number_of_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 rows took 13.5 seconds: every line was laid out by a library for pages."""
    monkeypatch.setenv("COLUMNS", "40")
    calls = 0
    measure = terminal._measure

    def counting(text: str) -> int:
        nonlocal calls
        calls += 1
        return measure(text)

    monkeypatch.setattr(terminal, "_measure", counting)
    terminal.print_table(("n", "text"), [(n, "x" * 60) for n in range(2000)], right=("n",))
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * 2000
    assert calls < 10 * 2 * 2002
