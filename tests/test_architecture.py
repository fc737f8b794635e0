"""The rules of the house that a program can check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_epochs.scripts.architecture import ROOT, draw, modules

LONGEST_FILE, LONGEST_FUNCTION = 400, 60
# Kernels in Triton's language cannot be cut into functions at will.
LONGER = {"models.aggregate.gpu_backward.backward", "models.aggregate.gpu_forward.forward"}


@pytest.mark.parametrize("command", [["lint-imports"], ["ruff", "check", "."]])
def test_imports_go_down_only_and_lines_are_tidy(command):
    # The tools' own commands, as a developer would run them.
    command[0] = str(Path(sys.executable).with_name(command[0]))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_rooms_are_those_of_the_document():
    assert (ROOT / "docs" / "architecture.md").read_text() == draw(), \
        "run `python -m scripts.architecture > docs/architecture.md`"


def test_files_and_functions_have_one_idea():
    too_long = {}
    for name, path in modules().items():
        lines = path.read_text().splitlines()
        if len(lines) > LONGEST_FILE:
            too_long[name] = len(lines)
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef) and code_lines(node) > LONGEST_FUNCTION:
                too_long[f"{name}.{node.name}"] = code_lines(node)
    assert too_long.keys() <= LONGER, too_long


def code_lines(function: ast.FunctionDef) -> int:
    """The lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    lines = function.end_lineno - function.lineno + 1
    return lines - (docstring.end_lineno - docstring.lineno + 1 if docstring is not None else 0)
