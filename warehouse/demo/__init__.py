"""The demo: plays its scenes in a new warehouse, one after the other. Each is a function of `scenes`, listed here."""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windrow.cli import terminal
from windrow.demo import scenes
from windrow.demo.scenes import DemoState, Facts
from windrow.errors import DefinitionError
from windrow.warehouse import Warehouse


@dataclass(frozen=True)
class Scene:
    """One part of the demo, which `--skip` names."""

    name: str
    title: str
    play: Callable[[DemoState], Facts]


SCENES = (
    Scene("streams", "Two streams", scenes.play_streams),
    Scene("lifetimes", "Every row has its own lifetime", scenes.play_lifetimes),
    Scene("silence", "A silent source", scenes.play_silence),
    Scene("asking", "Asking", scenes.play_asking),
    Scene("sql", "Asking in SQL", scenes.play_sql),
    Scene("views", "A join that is kept", scenes.play_views),
    Scene("periodic", "Asked again and again", scenes.play_periodic),
    Scene("layout", "Another layout, while it is in use", scenes.play_layout),
    Scene("rejected", "Rows that cannot be taken", scenes.play_rejected),
    Scene("twice", "The same batch twice", scenes.play_twice),
    Scene("spark", "Through Spark", scenes.play_spark),
    Scene("upkeep", "Looking after it", scenes.play_upkeep),
)


def run(
    folder: str | None,
    *,
    updates: int = 36,
    rows: int = 8000,
    seed: int = 1,
    as_json: bool = False,
    skip: Collection[str] = (),
) -> None:
    """Play the scenes in a new warehouse in `folder`, or in a temporary one."""
    names = [scene.name for scene in SCENES]
    for name in skip:
        if name not in names:
            raise DefinitionError(f"the demo has no scene {name!r}; it has {', '.join(names)}")
    facts: dict[str, Facts] = {}
    with _open_folder(folder) as path, Warehouse(path) as wh:
        demo = DemoState(wh, updates, rows, np.random.default_rng(seed), quiet=as_json)
        for number, scene in enumerate((scene for scene in SCENES if scene.name not in skip), 1):
            demo.say(f"{'' if number == 1 else chr(10)}{number}. {scene.title}\n")
            facts[scene.name] = scene.play(demo)
        if folder is not None:
            demo.say(f"\nThe warehouse is in {path}. Try: windrow -w {path} status")
        else:
            demo.say("\nThe warehouse was temporary and is gone; 'windrow demo --folder PATH' keeps it.")
    if as_json:
        terminal.write_json({"path": folder, "scenes": facts})


@contextlib.contextmanager
def _open_folder(folder: str | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="windrow-demo-") as temporary:
        yield Path(temporary) / "warehouse"
