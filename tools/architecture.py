"""`python -m tools.architecture`: the tree of the code and who imports whom, as docs/architecture.md shows it.

`python -m tools.architecture --numbers` counts what a test keeps from growing, `--numbers FOLDER` the same in another
checkout. Rooms are models/, scripts/, tools/, the folders of pipeline/ and the files that lie in pipeline/ itself.
"""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.follow import Walk

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# The rooms, and who imports whom

`python -m tools.architecture` draws this table from the code; a test compares them. Read the loop first,
[`pipeline/loop.py`](../pipeline/loop.py), then [`pipeline/gnn/trainer.py`](../pipeline/gnn/trainer.py) and
[`pipeline/gnn/build.py`](../pipeline/gnn/build.py). A room imports only rooms further down the table. Each product, a
value of `trainer=`, is one room; [`pipeline/products/`](../pipeline/products/) has a file for each.

| room | what it is | imports |
|---|---|---|
"""
# Parts of a configuration whose member is chosen by name, and the key that chooses it.
CHOICES = {
    "data": "source",
    "task": "name",
    "loader": "name",
    "partition": "name",
    "model": "name",
    "features": "name",
    "trainer": "name",
    "parallel": "name",
    "evaluation": "method",
    "tracker": "name",
}
# A line of gnn/ that asks for the kind of graph, or of what is learned.
ASKS_FOR_KIND = re.compile(
    r"data_kind\(|DataKind\.|schema_of\(|listed_schema\(|link_relation_of\(|predicts_links|\"store\" (not )?in"
    r"|is_stored|isinstance\([^()]*(Node|Link|Graph)(Task|Kind)|task\.name|\.(types|store|schema) is (not )?None"
    r"|\bis_typed\b|\bkind ?=="
)
# Files that define a kind of graph, or the keys by which a user chooses one.
OWN_KINDS = ("pipeline.gnn.kinds", "pipeline.gnn.config")
# Functions and parameters that a reader follows: the first module that exists counts.
FOLLOWED = {
    "predict from run": (
        ("pipeline.gnn.export", "pipeline.gnn.predict", "pipeline.gnn.predictions"),
        "predict",
        "run",
    ),
    "open_data from config": (("pipeline.gnn.build",), "open_data", "config"),
}
PACKAGES = ("pipeline", "models", "scripts", "tools")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Find every module of the packages: its dotted name and its file."""
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    names = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }
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
    return frozenset(
        name.removeprefix("parallel_epochs.")
        for name in found
        if name and name.startswith(("parallel_epochs.", "tools."))
    )


def room_of(module: str, package: str = "pipeline", root: Path = ROOT) -> str:
    """Name the room of a module: models/, scripts/, tools/, pipeline/run/, or a file of pipeline/ by itself.

    Args:
        package: whose folders and files are rooms; any other package is one room.
    """
    parts = module.split(".")
    if parts[0] != package or len(parts) == 1:
        return f"{parts[0]}/"
    return (
        f"{package}/{parts[1]}/"
        if (root / package / parts[1]).is_dir()
        else f"{package}/{parts[1]}.py"
    )


def rooms(package: str = "pipeline", root: Path = ROOT) -> dict[str, set[str]]:
    """Return every room with those that it imports."""
    known, arrows = modules(root), defaultdict(set)
    for name, path in known.items():
        room = room_of(name, package, root)
        arrows[room] |= {room_of(other, package, root) for other in imports_of(path, known)} - {
            room
        }
    arrows.pop(f"{package}/", None)  # a docstring, and the names that it exports
    return arrows


def numbers(root: Path = ROOT) -> dict[str, int]:
    """Count what makes the code hard to change."""
    arrows, known = rooms(root=root), modules(root)
    models = {
        room: others & rooms("models", root).keys()
        for room, others in rooms("models", root).items()
        if room.startswith("models/")
    }
    pipeline = {name: path for name, path in known.items() if name.startswith("pipeline")}
    trees = {name: tree_of(path) for name, path in pipeline.items()}
    lines = [
        (name, line) for name, path in pipeline.items() for line in path.read_text().splitlines()
    ]
    walks = {
        what: Walk(trees)
        .follow(next(module for module in places if module in trees), function, parameter)
        .stops
        for what, (places, function, parameter) in FOLLOWED.items()
    }
    return {
        "rooms": len(arrows),
        "imports between rooms": sum(map(len, arrows.values())),
        "rooms in models/": len(models),
        "imports between rooms of models/": sum(map(len, models.values())),
        "modules that import a configuration dataclass": sum(
            map(_imports_configuration, trees.values())
        ),
        "comparisons of a component's name": sum(
            len(list(_comparisons(tree))) for tree in trees.values()
        ),
        "lines of gnn/ that ask for the kind of graph": sum(
            bool(ASKS_FOR_KIND.search(line)) and not re.search(r"^ *(def|from|import) ", line)
            for name, line in lines
            if name.startswith("pipeline.gnn") and not name.startswith(OWN_KINDS)
        ),
        "lines with config: Any": sum(
            bool(re.search(r"\bconfig: Any\b", line)) for _, line in lines
        ),
        "lines with : Any": sum(bool(re.search(r": Any\b", line)) for _, line in lines),
        **{
            f"{what}, {unit}": len(stops)
            for what, walk in walks.items()
            for unit, stops in (("stops", walk), ("files", set(walk)))
        },
        "product tokens": _count_tokens(root, (*PACKAGES, "parallel_epochs", "setup.py")),
        "test tokens": _count_tokens(root, ("tests",)),
    }


def _count_tokens(root: Path, packages: tuple[str, ...]) -> int:
    """Count the tokens of Python in the files that git knows, without comments and layout."""
    files = subprocess.run(
        ["git", "ls-files", *packages], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    paths = [root / file for file in files.splitlines() if file.endswith(".py")]
    return sum(
        token.type not in LAYOUT
        for path in paths
        if path.exists()
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    )


def _imports_configuration(tree: ast.Module) -> bool:
    return any(
        alias.name.endswith("Config") and node.module.startswith("parallel_epochs.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def _comparisons(tree: ast.Module) -> Iterator[ast.Compare]:
    """Go through the places where the member of a part, such as config.loader.name, is compared with a text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        is_choice = any(
            isinstance(side, ast.Attribute)
            and isinstance(side.value, (ast.Attribute, ast.Name))
            and CHOICES.get(getattr(side.value, "attr", getattr(side.value, "id", ""))) == side.attr
            for side in sides
        )
        texts = [
            value
            for side in sides
            for value in ast.walk(side)
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        ]
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
    for room in sort_downwards(arrows):
        members = ", ".join(file for file in files[room] if file not in ("__init__", "__main__"))
        members = "" if room.endswith(".py") else f": {members}"
        others = ", ".join(other.removeprefix("pipeline/") for other in sorted(arrows[room]))
        rows.append(f"| `{room}` | {texts.get(room, '').rstrip('.')}{members} | {others} |")
    # A shell that redirects our output to the page has emptied it before we read it.
    page = (ROOT / "docs" / "architecture.md").read_text() or subprocess.run(
        ["git", "show", "HEAD:docs/architecture.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    _, heading, by_hand = page.partition("\n## ")  # the sections below the table, if there are any
    return HEAD + "\n".join(rows) + "\n" + heading + by_hand


def sort_downwards(arrows: dict[str, set[str]]) -> list[str]:
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
        for what, number in numbers(*map(Path, sys.argv[2:3])).items():
            print(f"{number:5,}  {what}")
    else:
        print(draw(), end="")
