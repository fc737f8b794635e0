"""Follows a parameter through the code: how many files a reader opens to see what is done with it.

The walk reads the source and runs nothing. It starts in a function, at one of its parameters, and goes through every
call that passes on the parameter, a part of it (``run.config``), or a variable that was computed from these. Each
entry of another file, and each return to the file before, is a stop. A function is walked through once.

A method is followed where one class alone has a method of its name. What is chosen while the program runs, such as the
module of a product, is not followed.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

PACKAGE = "parallel_epochs."
Place = tuple[str, ast.FunctionDef]


class Walk:
    """A walk through the modules of a package.

    Args:
        trees: the parsed source of each module, by its dotted name within the package.

    Attributes:
        stops: the modules that were entered or returned to, in this order.
    """

    def __init__(self, trees: Mapping[str, ast.Module]):
        self._trees, self.stops, self._seen = trees, list[str](), set[tuple[str, int]]()
        self._names = {module: dict(_names_in(module, tree)) for module, tree in trees.items()}
        self._methods = defaultdict[str, list[Place]](list)
        for module, tree in trees.items():
            for function in (
                member
                for node in tree.body
                if isinstance(node, ast.ClassDef)
                for member in node.body
            ):
                if isinstance(function, ast.FunctionDef):
                    self._methods[function.name].append((module, function))

    def follow(self, module: str, name: str, parameter: str) -> "Walk":
        """Walk from a parameter of a function of a module, and return this walk."""
        (place,) = self._define(module, name)
        self._enter(place, {parameter})
        return self

    def _enter(self, place: Place, parameters: set[str], before: str = "") -> None:
        module, function = place
        if module != before:
            self.stops.append(module)
        if (module, function.lineno) not in self._seen:
            self._seen.add((module, function.lineno))
            found = _computed_from(function, parameters)
            for call in sorted(
                (node for node in ast.walk(function) if isinstance(node, ast.Call)),
                key=lambda call: (call.end_lineno, call.end_col_offset),
            ):
                for callee in self._callees(module, call.func):
                    if passed := _parameters_of(call, callee[1], found):
                        self._enter(callee, passed, module)
        if before and module != before:
            self.stops.append(before)

    def _callees(self, module: str, called: ast.expr) -> list[Place]:
        """Find the functions that a call may enter: at most one."""
        if isinstance(called, ast.Name):
            target = self._names[module].get(called.id)
            return self._define(*target) if target else []
        if not isinstance(called, ast.Attribute):
            return []
        if isinstance(called.value, ast.Name) and called.value.id in self._names[module]:
            owner = ".".join(self._names[module][called.value.id])
            if owner in self._trees:
                return self._define(owner, called.attr)
        methods = self._methods[called.attr]
        return methods if len(methods) == 1 else []

    def _define(self, module: str, name: str) -> list[Place]:
        """Find a function, or the constructor of a class, that a module defines or imports."""
        for node in self._trees[module].body if module in self._trees else []:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return [(module, node)]
            if isinstance(node, ast.ClassDef) and node.name == name:
                return [
                    (module, member)
                    for member in node.body
                    if isinstance(member, ast.FunctionDef) and member.name == "__init__"
                ]
        target = self._names.get(module, {}).get(name)
        return self._define(*target) if target and target != (module, name) else []


def _names_in(module: str, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Go through the names that a module defines or imports, each with the module and the name of its definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                yield alias.asname or alias.name, (node.module.removeprefix(PACKAGE), alias.name)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, (module, node.name)


def _computed_from(function: ast.FunctionDef, parameters: set[str]) -> set[str]:
    """Find the variables of a function that hold a parameter, a part of it, or what a call made of these."""
    found = set(parameters)
    for _ in range(2):  # a loop may use what a later line assigns
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _holds(node.value, found):
                found |= {
                    name.id
                    for target in node.targets
                    for name in ast.walk(target)
                    if _is_stored(name)
                }
            elif isinstance(node, ast.NamedExpr) and _holds(node.value, found):
                found.add(node.target.id)
            elif (
                isinstance(node, ast.withitem)
                and node.optional_vars
                and _holds(node.context_expr, found)
            ):
                found |= {name.id for name in ast.walk(node.optional_vars) if _is_stored(name)}
    return found


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _holds(value: ast.expr, found: set[str]) -> bool:
    """Tell whether an expression is a part of a variable, or a call that is given one."""
    value = _root(value)
    if isinstance(value, ast.Call):
        return (
            any(
                _holds(argument, found)
                for argument in [*value.args, *(word.value for word in value.keywords)]
            )
            or isinstance(value.func, ast.Attribute)
            and _holds(value.func, found)
        )
    return isinstance(value, ast.Name) and value.id in found


def _root(value: ast.expr) -> ast.expr:
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred)):
        value = value.value
    return value


def _parameters_of(call: ast.Call, function: ast.FunctionDef, found: set[str]) -> set[str]:
    """Find the parameters of a function to which a call passes a variable or a part of it."""
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    bound = names[:1] if names[:1] in (["self"], ["cls"]) else []
    positional, keywords = (
        names[len(bound) :],
        {*names, *(argument.arg for argument in function.args.kwonlyargs)},
    )

    def passes(value: ast.expr) -> bool:
        root = _root(value)
        return isinstance(root, ast.Name) and root.id in found

    own = set(bound) if isinstance(call.func, ast.Attribute) and passes(call.func.value) else set()
    return (
        own
        | {name for name, value in zip(positional, call.args, strict=False) if passes(value)}
        | {word.arg for word in call.keywords if word.arg in keywords and passes(word.value)}
    )
