"""The editor of the prompt: several lines, highlighting, completion as one types, a history of whole statements.

It needs the extra ``windrow[prompt]``; without it the prompt reads plain lines.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer
from pygments.token import Keyword, Name

from windrow.errors import WindrowError

_WORD = re.compile(r"[\w.]+")
_WINDOW_WORDS = frozenset((
    "WINDOW", "SLIDE", "SINCE", "ROWS", "RANGE", "MICROSECONDS", "MILLISECONDS", "SECOND", "SECONDS", "MINUTE",
    "MINUTES", "HOUR", "HOURS", "DAY", "DAYS", "WEEK", "WEEKS", "ASOF", "QUALIFY", "PIVOT", "UNPIVOT",
))  # fmt: skip


class WindowLexer(SqlLexer):
    """SQL with the words of windows."""

    def get_tokens_unprocessed(self, text: str) -> Iterator[Any]:
        """The tokens."""
        for place, kind, value in super().get_tokens_unprocessed(text):
            yield place, Keyword if kind in Name and value.upper() in _WINDOW_WORDS else kind, value


class _NameCompleter(Completer):
    def __init__(self, complete: Callable[[str, str], Iterable[str]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = document.get_word_before_cursor(pattern=_WORD)
        if not word and not complete_event.completion_requested:
            return
        try:
            names = list(self._complete(word, document.text))
        except WindrowError:  # it is told when the statement is run
            return
        for name in names:
            if name != word:
                yield Completion(name, start_position=-len(word))


class LineEditor:
    """Reads one statement or command; use it like `input`.

    Args:
        complete: Gives completions of a word in a text.
        is_finished: Whether a text can be run, so that Enter ends it.
        history: A file with what was typed before; only its owner may read it.
        continuation: What stands before the second line and all that follow.
    """

    def __init__(
        self,
        complete: Callable[[str, str], Iterable[str]],
        is_finished: Callable[[str], bool],
        history: Path,
        continuation: str,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history),
            lexer=PygmentsLexer(WindowLexer),
            completer=_NameCompleter(complete),
            complete_while_typing=True,
            multiline=True,
            prompt_continuation=continuation,
            key_bindings=_bind_keys(is_finished),
            enable_history_search=False,
        )

    def __call__(self, prompt: str) -> str:
        """Read it; Ctrl-C raises KeyboardInterrupt, Ctrl-D on an empty line EOFError."""
        return self._session.prompt(prompt)


def _open_history(file: Path) -> History:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _bind_keys(is_finished: Callable[[str], bool]) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=completion_is_selected)
    def take_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("enter", filter=~completion_is_selected)
    def end_or_go_on(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    return keys
