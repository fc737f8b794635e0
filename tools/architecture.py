"""`python -m tools.architecture`: the rooms of the code and who imports whom, as the site of the pages shows them.

`python -m tools.architecture --numbers` counts what a test keeps from growing. Rooms are models/, scripts/, tools/, the
folders of pipeline/ and the files that lie in pipeline/ itself.
"""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """## Rooms

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
# Values that a reader follows: the folder, the function there and its parameter. The first function that exists counts.
FOLLOWED = {
    "build_trainer from setup": (("pipeline.gnn.build",), "build_trainer", "setup"),
    "a typed table from config": (
        ("pipeline.data.tables.to_store", "pipeline.data.tables"),
        "write_store",
        "config",
    ),
    "predict from run": (
        ("pipeline.gnn.predict.export", "pipeline.gnn.predict.command"),
        "predict",
        "run",
    ),
}
# A method that more classes have is not followed: its name does not tell what is called.
MOST_METHODS = 5
# How a message names a key.
KEY = re.compile(
    r"\b(?:data|task|model|train|loader|partition|evaluation|features|parallel|trainer|tracker)\.[a-z_0-9.]+"
    r"|\b[a-z_]+(?==)"
)
PACKAGES = ("pipeline", "models", "scripts", "tools")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def modules() -> dict[str, Path]:
    """Find every module of the packages: its dotted name and its file."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
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


def room_of(module: str) -> str:
    """Name the room of a module: models/, scripts/, tools/, pipeline/run/, or a file of pipeline/ by itself."""
    package, *parts = module.split(".")
    if package != "pipeline" or not parts:
        return f"{package}/"
    return f"pipeline/{parts[0]}" + ("/" if (ROOT / package / parts[0]).is_dir() else ".py")


def arrows_between(group_of: Callable[[str], str], within: str = "") -> dict[str, set[str]]:
    """Return groups of modules with the other groups that they import.

    Args:
        within: how the names of the modules begin that count.
    """
    known, arrows = modules(), defaultdict[str, set[str]](set)
    for name, path in known.items():
        if name.startswith(within):
            others = (other for other in imports_of(path, known) if other.startswith(within))
            arrows[group_of(name)] |= {*map(group_of, others)} - {group_of(name)}
    return arrows


def rooms() -> dict[str, set[str]]:
    """Return every room with those that it imports."""
    arrows = arrows_between(room_of)
    arrows.pop("pipeline/", None)  # a docstring, and the names that it exports
    return arrows


def numbers() -> dict[str, int]:
    """Count what makes the code hard to change."""
    from tools.keys import write_page  # imports the whole configuration

    arrows = rooms()
    pipeline = {name: path for name, path in modules().items() if name.startswith("pipeline")}
    trees = {name: tree_of(path) for name, path in pipeline.items()}
    lines = [
        (name, line) for name, path in pipeline.items() for line in path.read_text().splitlines()
    ]
    gnn, tables = (
        arrows_between(lambda name, depth=depth: ".".join(name.split(".")[:depth]), folder)
        for folder, depth in (("pipeline.gnn.", 3), ("pipeline.data.tables.", 4))
    )
    keys = re.findall(r"^  ([a-z_.0-9]+)=", write_page(), re.MULTILINE)
    return {
        "rooms": len(arrows),
        "imports between rooms": sum(map(len, arrows.values())),
        "comparisons of a component's name": sum(
            len(list(_comparisons(tree))) for tree in trees.values()
        ),
        "lines of gnn/ that ask for the kind of graph": sum(
            bool(ASKS_FOR_KIND.search(line)) and not re.search(r"^ *(def|from|import) ", line)
            for name, line in lines
            if name.startswith("pipeline.gnn") and not name.startswith(OWN_KINDS)
        ),
        "lines with : Any": sum(bool(re.search(r": Any\b", line)) for _, line in lines),
        "imports inside gnn/": sum(map(len, gnn.values())),
        "imports inside data/tables/": sum(map(len, tables.values())),
        "modules of data/tables/ in a circle": len(find_circle(tables)),
        **{f"{what}, stays": len(stays(trees, *where)) for what, where in FOLLOWED.items()},
        "keys": len(set(keys)),
        "messages that refuse a combination of keys": sum(map(_refusals, trees.values())),
        "product tokens": _count_tokens(*PACKAGES, "parallel_epochs", "setup.py"),
        "test tokens": _count_tokens("tests"),
    }


def find_circle(arrows: dict[str, set[str]]) -> list[str]:
    """Find modules that import each other in a circle."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1][1:]
    return []


def stays(
    trees: dict[str, ast.Module], folders: tuple[str, ...], name: str, parameter: str
) -> list[str]:
    """Follow a parameter through the code; returns each function that it enters, once.

    The walk goes through calls that pass on the parameter, a part of it (``run.config``), or a variable that was
    computed from these. A method is followed in every class that has one of its name, and a function that a record
    holds, such as that of a product, in every module.
    """
    places: dict[str, list[tuple[str, ast.FunctionDef, bool]]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                places[node.name].append((module, node, False))
            for method in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(method, ast.FunctionDef):
                    # A class is called as its constructor is.
                    called = node.name if method.name == "__init__" else f".{method.name}"
                    places[called].append((module, method, True))
    start = next(
        (module, node)
        for folder in folders
        for module, node, _ in places[name]
        if module.startswith(folder)
    )
    found: dict[str, None] = {}
    waiting = [(*start, frozenset({parameter}))]
    while waiting:
        module, function, held = waiting.pop()
        where = f"{module}:{function.lineno} {function.name}"
        if where in found:
            continue
        found[where] = None
        values = _computed_from(function, held)
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            for other, callee, bound in _callees(places, trees, module, call.func):
                if passed := _passed(call, callee, bound, values):
                    waiting.append((other, callee, passed))
    return [*found]


def _callees(places, trees, module: str, called: ast.expr) -> list:
    """Find what a call may enter: a function of this module or that it imports, or methods of the name."""
    if isinstance(called, ast.Name):
        near = [place for place in places[called.id] if place[0] == module]
        imported = [
            place
            for node in ast.walk(trees[module])
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) == called.id
            for place in places[alias.name]
            if f"parallel_epochs.{place[0]}".startswith(node.module or "-")
        ]
        return near or imported
    if not isinstance(called, ast.Attribute):
        return []
    methods = places[f".{called.attr}"] or places[called.attr]
    return methods if len(methods) <= MOST_METHODS else []


def _root(value: ast.expr) -> ast.expr:
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred)):
        value = value.value
    return value


def _holds(value: ast.expr, held: set[str]) -> bool:
    """Tell whether an expression is a part of a variable, or a call that is given one."""
    value = _root(value)
    if isinstance(value, ast.Call):
        given = [*value.args, *(word.value for word in value.keywords), value.func]
        return any(_holds(each, held) for each in given)
    return isinstance(value, ast.Name) and value.id in held


def _computed_from(function: ast.FunctionDef, held: frozenset[str]) -> set[str]:
    """Find the variables of a function that hold a parameter, a part of it, or what a call made of these."""
    found = {*held}
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.NamedExpr, ast.withitem)):
            value = node.context_expr if isinstance(node, ast.withitem) else node.value
            if _holds(value, found):
                found |= {
                    name.id
                    for name in ast.walk(node)
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                }
    return found


def _passed(
    call: ast.Call, function: ast.FunctionDef, bound: bool, held: set[str]
) -> frozenset[str]:
    """Find the parameters of a function to which a call passes a variable or a part of it."""

    def passes(value: ast.expr) -> bool:
        root = _root(value)
        return isinstance(root, ast.Name) and root.id in held

    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    every = {*names, *(argument.arg for argument in function.args.kwonlyargs)}
    own = (
        {names[0]}
        if bound and names and passes(call.func) and _root(call.func) != call.func
        else set()
    )
    return frozenset(
        own
        | {name for name, value in zip(names[bound:], call.args, strict=False) if passes(value)}
        | {word.arg for word in call.keywords if word.arg in every and passes(word.value)}
    )


def _refusals(tree: ast.Module) -> int:
    """Count the rows of rules, and what is raised with a message that names two keys."""
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Rule":
            found += 1
        elif isinstance(node, ast.Raise):
            texts = [
                part.value
                for part in ast.walk(node)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            found += len({*KEY.findall(" ".join(texts))}) > 1
    return found


def _count_tokens(*packages: str) -> int:
    """Count the tokens of Python in the files that git knows, without comments and layout."""
    files = subprocess.run(
        ["git", "ls-files", *packages], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [ROOT / file for file in files.splitlines() if file.endswith(".py")]
    return sum(
        token.type not in LAYOUT
        for path in paths
        if path.exists()
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
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
    return HEAD + "\n".join(rows) + "\n"


def sort_downwards(arrows: dict[str, set[str]]) -> list[str]:
    """Sort rooms such that each comes before those that it imports.

    Raises:
        CycleError: rooms import each other in a circle.
    """
    sorter = TopologicalSorter(arrows)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), reverse=True)
        order += ready
        sorter.done(*ready)
    return order[::-1]


if __name__ == "__main__":
    if "--numbers" in sys.argv[1:]:
        for what, number in numbers().items():
            print(f"{number:5,}  {what}")
    else:
        print(draw(), end="")
