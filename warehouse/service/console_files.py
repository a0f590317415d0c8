"""The files of the console, and the library that draws its charts: anybody gets them, they hold nothing of a warehouse.

The policy lets pages run these files only, speak to this server only, and put no text into a page as HTML.
"""

import functools
import gzip
import importlib.metadata
from importlib import resources
from typing import Any

from starlette.responses import Response

from windrow.errors import UnknownStreamError
from windrow.service.responses import HEADERS

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
CONSOLE_HEADERS = HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types default"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
}
CHARTS = "vega.js"
_CHARTS_MODULE = "export {vegaEmbed};"


def console_file(name: str) -> Response:
    """One of the files."""
    if name == CHARTS:
        content = _charts_library()
        if content is None:
            raise UnknownStreamError("charts need vl-convert-python: pip install 'windrow[plot]'")
        headers = CONSOLE_HEADERS | {"Content-Encoding": "gzip", "Cache-Control": "private, max-age=31536000"}
        return Response(content, media_type="text/javascript; charset=utf-8", headers=headers)
    folder = resources.files("windrow.service").joinpath("console")
    kind = _TYPES.get("." + name.rpartition(".")[2])
    file = folder.joinpath(name)
    if kind is None or "/" in name or not file.is_file():
        raise UnknownStreamError("there is no such page; / is the console")
    return Response(file.read_bytes(), media_type=f"{kind}; charset=utf-8", headers=CONSOLE_HEADERS)


def charts_version() -> str | None:
    """The version of the library that draws charts, under which browsers keep it; None if it is not installed."""
    try:
        return importlib.metadata.version("vl-convert-python")
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _charts_library() -> bytes | None:
    """Vega, Vega-Lite and Vega-Embed as one module, compressed; made once, in about a second."""
    try:
        import vl_convert
    except ImportError:
        return None
    bundle: Any = vl_convert.javascript_bundle(_CHARTS_MODULE)
    return gzip.compress(bundle.encode(), 6)
