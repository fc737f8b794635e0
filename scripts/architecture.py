"""`python -m scripts.architecture`: the tree of the code and who imports whom, as docs/architecture.md shows it.

Rooms are the folders of pipeline/ and models/, and the files that lie in pipeline/ itself.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# The rooms, and who imports whom

Drawn by `python -m scripts.architecture` from the code itself; a test compares. The loop to read first is
[`pipeline/loop.py`](../pipeline/loop.py), then [`pipeline/trainers/gnn.py`](../pipeline/trainers/gnn.py) and
[`pipeline/build.py`](../pipeline/build.py). A room imports only from those further down the table.

| room | what it is | imports |
|---|---|---|
"""


def modules() -> dict[str, Path]:
    """Find every module of pipeline/, models/ and scripts/: its dotted name and its file."""
    files = sorted(path for package in ("pipeline", "models", "scripts") for path in (ROOT / package).rglob("*.py"))
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {name: path for name, path in names.items() if path.stat().st_size}


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Find the modules of ours that a file imports, at its top or within a function."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names}
    return {module for module in found if module in known}


def room_of(module: str) -> str:
    """Name the room of a module: models, scripts, pipeline/run, or a file of pipeline/ by itself."""
    parts = module.split(".")
    if parts[0] != "pipeline" or len(parts) == 1:
        return f"{parts[0]}/"
    folder = ROOT / "pipeline" / parts[1]
    return f"pipeline/{parts[1]}/" if folder.is_dir() else f"pipeline/{parts[1]}.py"


def draw() -> str:
    """Draw the table of the rooms, those that nobody imports first."""
    known = modules()
    arrows, texts, files = defaultdict(set), {}, defaultdict(list)
    for name, path in known.items():
        room = room_of(name)
        arrows[room] |= {room_of(other) for other in imports_of(name, path, known)} - {room}
        files[room].append(path.stem)
        docstring = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
        if path.stem == "__init__" or room.endswith(".py"):
            texts.setdefault(room, docstring)
    rows = []
    for room in _sorted_downwards(arrows):
        members = ", ".join(f for f in files[room] if f not in ("__init__", "__main__"))
        members = "" if room.endswith(".py") else f": {members}"
        others = ", ".join(other.removeprefix("pipeline/") for other in sorted(arrows[room]) if other != "pipeline/")
        rows.append(f"| `{room}` | {texts.get(room, '').rstrip('.')}{members} | {others} |")
    return HEAD + "\n".join(rows) + "\n"


def _sorted_downwards(arrows: dict[str, set[str]]) -> list[str]:
    """Sort rooms such that each comes before those that it imports.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    order: list[str] = []
    package = "pipeline/"  # which sets one variable of the environment, and is imported with everything
    left = {room: others - {package} for room, others in arrows.items() if room != package}
    while left:
        imported = set().union(*left.values())
        free = sorted(room for room in left if room not in imported)
        if not free:
            raise ValueError(f"a circle of imports among {', '.join(sorted(left))}")
        order += free
        left = {room: others for room, others in left.items() if room not in free}
    return order


if __name__ == "__main__":
    print(draw(), end="")
