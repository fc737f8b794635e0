"""The rules of the house that a program can check."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.architecture import (
    arrows_between,
    draw,
    imports_of,
    modules,
    numbers,
    sort_downwards,
    tree_of,
)

MOST_IMPORTS = 25
# What `python -m tools.architecture --numbers` may count at most.
LIMITS = {
    "rooms": 36,
    "imports between rooms": 143,
    "comparisons of a component's name": 10,
    "lines of gnn/ that ask for the kind of graph": 23,
    "lines with : Any": 64,
    "imports inside gnn/": 91,
    "imports inside data/tables/": 50,
    "modules of data/tables/ in a circle": 0,
    "build_trainer from setup, stays": 42,
    "a typed table from config, stays": 134,
    "predict from run, stays": 249,
    "keys": 240,
    "messages that refuse a combination of keys": 91,
    "product tokens": 420_000,
    "test tokens": 380_000,
}
# They read the source of this or of an installed package, or what the system says of a process.
OWN_FILES = {"pipeline.api", "pipeline.gnn.config"}


def test_the_rooms_form_no_circle():
    assert "| `models/` |" in draw()


def test_the_numbers_stay_within_their_limits():
    found = numbers()
    assert found.keys() == LIMITS.keys()
    assert not {what: number for what, number in found.items() if number > LIMITS[what]}


def test_the_rooms_of_models_form_no_circle():
    assert sort_downwards(arrows_between(lambda name: ".".join(name.split(".")[:2]), "models."))


def test_modules_have_few_imports():
    known = modules()
    numbers_of = {name: len(imports_of(path, known)) for name, path in known.items()}
    assert not {name: number for name, number in numbers_of.items() if number > MOST_IMPORTS}


def test_files_of_users_are_opened_in_one_place():
    """``files.open_file`` refuses a pipe, which never ends; ``open`` would wait for it."""
    found = [
        f"{name}, line {node.lineno}"
        for name, path in modules().items()
        if name.startswith("pipeline.")
        and not name.startswith("pipeline.run.")
        and name not in OWN_FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and reads_a_file(node)
    ]
    assert not found


def test_docstrings_and_comments_are_sentences():
    """A text that begins with one of these words has no subject, or asks what it should say."""
    found = [
        f"{name}, line {line}: {text}"
        for name, path in modules().items()
        for line, text in texts_of(path)
        if re.match(r"(Of|What|Who|Which|Whether|Beside)\b", text)
    ]
    assert not found


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Go through the docstrings of a module, and its comments that fill a line, without the further lines of each."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text.partition("\n")[0]
    before = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.strip().startswith("# ") and not before.startswith("#"):
            yield number, line.strip()[2:]
        before = line.strip()


def reads_a_file(call: ast.Call) -> bool:
    """Tell whether a call opens a file for reading by Python's own functions."""
    if isinstance(call.func, ast.Name) and call.func.id == "open":
        mode = call.args[1] if len(call.args) > 1 else None
        return not (isinstance(mode, ast.Constant) and set(mode.value) & set("wax"))
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("read_text", "read_bytes", "open")
        and not (
            isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("files", "os", "tarfile")
        )
    )
