"""`python -m scripts.architecture`: the tree of the code and who imports whom, as docs/architecture.md shows it.

`python -m scripts.architecture --numbers` counts what a test keeps from growing. Rooms are models/, scripts/, the
folders of pipeline/ and the files that lie in pipeline/ itself.
"""

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# The rooms, and who imports whom

`python -m scripts.architecture` draws this table from the code; a test compares them. Read the loop first,
[`pipeline/loop.py`](../pipeline/loop.py), then [`pipeline/gnn/trainer.py`](../pipeline/gnn/trainer.py) and
[`pipeline/gnn/build.py`](../pipeline/gnn/build.py). A room imports only rooms further down the table. Each product, a
value of `trainer=`, is one room; [`pipeline/products.py`](../pipeline/products.py) has a record for each.

| room | what it is | imports |
|---|---|---|
"""
# Written by hand, below the table.
MOVED = "## Where the files of version 0.2.0 went"
# Parts of a configuration whose member is chosen by name, and the key that chooses it.
CHOICES = {"data": "source", "task": "name", "loader": "name", "partition": "name", "model": "name", "features": "name",
           "trainer": "name", "parallel": "name", "evaluation": "method", "tracker": "name"}


def modules() -> dict[str, Path]:
    """Find every module of pipeline/, models/ and scripts/: its dotted name and its file."""
    files = sorted(path for package in ("pipeline", "models", "scripts") for path in (ROOT / package).rglob("*.py"))
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {name: path for name, path in names.items() if path.stat().st_size}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file, once."""
    return ast.parse(path.read_text())


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """Find the modules of ours that a file imports, at its top or within a function."""
    inner = {name for name in _names_imported(path) if name in known}
    return {name for name in inner if not any(other.startswith(f"{name}.") for other in inner)}


@functools.cache
def _names_imported(path: Path) -> frozenset[str]:
    """Find what a file imports of ours, modules and what they hold, by names within the package."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return frozenset(name.removeprefix("parallel_epochs.") for name in found
                     if name and name.startswith("parallel_epochs."))


def room_of(module: str) -> str:
    """Name the room of a module: models/, scripts/, pipeline/run/, or a file of pipeline/ by itself."""
    parts = module.split(".")
    if parts[0] != "pipeline" or len(parts) == 1:
        return f"{parts[0]}/"
    folder = ROOT / "pipeline" / parts[1]
    return f"pipeline/{parts[1]}/" if folder.is_dir() else f"pipeline/{parts[1]}.py"


def rooms() -> dict[str, set[str]]:
    """Return every room with those that it imports."""
    known, arrows = modules(), defaultdict(set)
    for name, path in known.items():
        arrows[room_of(name)] |= {room_of(other) for other in imports_of(path, known)} - {room_of(name)}
    arrows.pop("pipeline/", None)  # a docstring
    return arrows


def numbers() -> dict[str, int]:
    """Count what makes the code hard to change."""
    arrows, trees = rooms(), {name: tree_of(path) for name, path in modules().items()}
    return {"rooms": len(arrows), "imports between rooms": sum(map(len, arrows.values())),
            "modules that import a configuration dataclass": sum(
                _imports_configuration(tree) for name, tree in trees.items() if name.startswith("pipeline")),
            "comparisons of a component's name": sum(
                len(list(_comparisons(tree))) for name, tree in trees.items() if name.startswith("pipeline"))}


def _imports_configuration(tree: ast.Module) -> bool:
    return any(alias.name.endswith("Config") and node.module.startswith("parallel_epochs.")
               for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names)


def _comparisons(tree: ast.Module) -> Iterator[ast.Compare]:
    """Go through the places where the member of a part, such as config.loader.name, is compared with a text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        is_choice = any(isinstance(side, ast.Attribute) and isinstance(side.value, (ast.Attribute, ast.Name))
                        and CHOICES.get(getattr(side.value, "attr", getattr(side.value, "id", ""))) == side.attr
                        for side in sides)
        texts = [value for side in sides for value in ast.walk(side)
                 if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        if is_choice and texts:
            yield node


def draw() -> str:
    """Draw the table of the rooms, those that nobody imports first."""
    arrows, texts, files = rooms(), {}, defaultdict(list)
    for name, path in modules().items():
        room = room_of(name)
        files[room].append(path.stem)
        docstring = (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0].replace("\n", " ")
        if path.stem == "__init__" or room.endswith(".py"):
            texts.setdefault(room, docstring)
    rows = []
    for room in _sorted_downwards(arrows):
        members = ", ".join(file for file in files[room] if file not in ("__init__", "__main__"))
        members = "" if room.endswith(".py") else f": {members}"
        others = ", ".join(other.removeprefix("pipeline/") for other in sorted(arrows[room]))
        rows.append(f"| `{room}` | {texts.get(room, '').rstrip('.')}{members} | {others} |")
    # A shell that redirects our output to the page has emptied it before we read it.
    page = (ROOT / "docs" / "architecture.md").read_text() or subprocess.run(
        ["git", "show", "HEAD:docs/architecture.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return HEAD + "\n".join(rows) + "\n" + page[page.index(MOVED) - 1:]


def _sorted_downwards(arrows: dict[str, set[str]]) -> list[str]:
    """Sort rooms such that each comes before those that it imports.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    order: list[str] = []
    left = dict(arrows)
    while left:
        imported = set().union(*left.values())
        free = sorted(room for room in left if room not in imported)
        if not free:
            raise ValueError(f"a circle of imports among {', '.join(sorted(left))}")
        order += free
        left = {room: others for room, others in left.items() if room not in free}
    return order


if __name__ == "__main__":
    if "--numbers" in sys.argv[1:]:
        for what, number in numbers().items():
            print(f"{number:5,}  {what}")
    else:
        print(draw(), end="")
