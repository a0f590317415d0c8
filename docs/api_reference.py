"""Builds the reference of the Python interface out of its docstrings: HTML pages with search, and checks their links.

``make reference`` writes it into build/reference/.
"""

import importlib
import inspect
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

MODULES = ("windrow", "windrow.spark", "windrow.backup", "windrow.ingest.adapters")
_EXTERNAL = re.compile(r"[a-z]+:")


def build(folder: Path) -> None:
    """Write the pages."""
    import pdoc
    import pdoc.render

    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            setattr(module, public, value)  # names are imported when they are first used
            if inspect.isclass(value):
                _adopt_methods(value)
    pdoc.render.configure(docformat="google", show_source=False, footer_text=f"windrow {_version()}")
    pdoc.pdoc(*MODULES, output_directory=folder)


def _adopt_methods(public: type) -> None:
    """Show what a class has from a base of ours that has no public name as its own; pdoc would leave it out."""
    for base in public.__mro__[1:]:
        if base.__module__.startswith("windrow.") and base.__name__ not in importlib.import_module("windrow").__all__:
            for name, member in vars(base).items():
                if inspect.isfunction(member) and not name.startswith("_") and name not in vars(public):
                    member.__qualname__, member.__module__ = f"{public.__qualname__}.{name}", public.__module__
                    setattr(public, name, member)


def _version() -> str:
    import windrow

    return windrow.__version__


class _Page(HTMLParser):
    """The anchors of a page, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Note what leads here, and where this leads."""
        attributes = dict(attrs)
        if attributes.get("id"):
            self.anchors.add(str(attributes["id"]))
        target = attributes.get("href") or attributes.get("src") or ""
        if target and not _EXTERNAL.match(target):
            self.links.append(target)


def find_broken_links(folder: Path) -> list[str]:
    """Links of the pages that lead nowhere."""
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path.resolve()
            anchors = pages.get(target)
            if not target.exists() or (anchor and anchors is not None and anchor not in anchors.anchors):
                broken.append(f"{path.relative_to(folder)}: {link}")
    return broken


def main() -> None:
    """Build into the folder that is named, and fail if a link is broken."""
    folder = Path(sys.argv[1])
    build(folder.resolve())
    if broken := find_broken_links(folder.resolve()):
        sys.exit("\n".join(broken))
    print(f"{folder / 'index.html'}")


if __name__ == "__main__":
    main()
