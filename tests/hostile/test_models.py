"""Classes of model=custom that fail, end the program, or return something else than predictions."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.hostile import Case, check
from tests.helpers.running import TOY

pytestmark = pytest.mark.slow

TRAIN = f"pipeline.train {' '.join(TOY[:5])} train.epochs=2 cache_dir=cache model=custom model.path=mine.Net"
HEADER = """import os
import sys
import torch
"""
START = """
class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, out_channels)
"""
FORWARD = """
    def forward(self, x, edge_index):
        out = self.lin(x)
"""


def module(text: str) -> Callable[[Path], None]:
    """Write the module of the class."""
    return lambda folder: (folder / "mine.py").write_text(f"{HEADER}{text}") and None


def forward(line: str) -> Callable[[Path], None]:
    """Write a class whose forward ends with a line; `out` are right predictions."""
    return module(f"{START}{FORWARD}        {line}\n")


def init(line: str) -> Callable[[Path], None]:
    return module(f"{START}        {line}\n{FORWARD}        return out\n")


def method(name: str) -> Callable[[Path], None]:
    """Write a class one of whose methods ends the program."""
    return module(
        f"{START}{FORWARD}        return out\n\n    def {name}(self, *_, **__):\n        sys.exit(0)\n"
    )


def packages(*names: str) -> Callable[[Path], None]:
    """Write packages with names that this program's folders have in a checkout, and a class in each."""

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).mkdir()
            (folder / name / "__init__.py").touch()
            (folder / name / "config.yaml").write_text("name: mine\n")
            (folder / name / "mine.py").write_text(f"{HEADER}{START}{FORWARD}        return out\n")

    return write


MUST = "it must return a tensor [num_nodes, 3]"
FLOATS = "it must return floats of shape [num_nodes, 3], a column for each class or task"
CALLED = "mine.Net fails on x [11, 12], edge_index [2, 1009] and edge_attr [1009, 8]: "
LATER = "mine.Net fails on x [<*>, 12], edge_index [2, <*>] and edge_attr [<*>, 8]: "
HERE = " (<*>mine.py, line <*>)"
RETURNS = {
    "a tuple in evaluation": (
        "return out if self.training else (out, x)",
        f"mine.Net returns a tuple; {MUST}",
    ),
    "nothing in training": (
        "return None if self.training else out",
        f"mine.Net returns a NoneType in training; {MUST}",
    ),
    "a list": ("return [out]", f"mine.Net returns a list; {MUST}"),
    "a number in training": (
        "return out.sum() if self.training else out",
        f"mine.Net returns torch.float32 of shape [] for 11 nodes in training; {FLOATS}",
    ),
    "truth values": (
        "return out > 0",
        f"mine.Net returns torch.bool of shape [11, 3] for 11 nodes; {FLOATS}",
    ),
    "NaN": (
        "return out / 0 * 0",
        "mine.Net returns nan for x in [0, 1]; it must return finite numbers",
    ),
    "a tensor elsewhere": (
        "return out.to('meta') if self.training else out",
        "mine.Net returns a tensor on meta in training; it must be on cpu, where x is",
    ),
    "a tuple of a batch": (
        "return out if len(x) == 11 else (out,)",
        f"mine.Net returns a tuple in training; {MUST}",
    ),
    "no gradient of a batch": (
        "return out if len(x) == 11 else out.detach()",
        "mine.Net returns a tensor without a "
        "gradient in training: its parameters cannot learn. Leave out detach() and no_grad()",
    ),
    "NaN of the whole graph": (
        "return out * float('nan') if len(x) == 240 and not self.training else out",
        "the model's predictions are not finite; try a lower train.lr or train.clip_grad_norm<*>",
    ),
    "an error": (
        "return out @ x",
        f"{CALLED}RuntimeError: <*>mat1 and mat2 shapes cannot be multiplied (<*>){HERE}",
    ),
    "an error of a batch": ("assert len(x) == 11; return out", f"{LATER}AssertionError{HERE}"),
    "sys.exit() in training": (
        "sys.exit() if self.training else 0; return out",
        f"{CALLED}it calls sys.exit(){HERE}",
    ),
    "sys.exit('done') of the whole graph": (
        "len(x) == 240 and not self.training and sys.exit('done'); return out",
        f"{LATER}it calls sys.exit('done'){HERE}",
    ),
}
NO_RESULT = (
    "os._exit(0) was called before there was a result; does the class of model.path call it?"
)
NO_IMPORT = "model.path=mine.Net cannot be imported: "
REFUSED = "model.kwargs: mine.Net refuses them: "
MODULES = {
    "raise SystemExit at the import": (
        module("raise SystemExit\n"),
        f"{NO_IMPORT}it calls sys.exit()",
    ),
    "no Python": (
        module("class Net(:\n"),
        f"{NO_IMPORT}SyntaxError: invalid syntax (mine.py, line 4)",
    ),
    "sys.exit(0) in its constructor": (init("sys.exit(0)"), f"{REFUSED}it calls sys.exit(0)"),
    "no forward": (
        module(START),
        f'{CALLED}NotImplementedError: Module [Net] is missing the required "forward" function',
    ),
    "another object than a module": (
        module(
            f"{START}\n    def __new__(cls, *args, **kwargs):\n        return 3\n{FORWARD}        return out\n"
        ),
        "model.path=mine.Net returns a int; it must return a torch.nn.Module",
    ),
    "no parameters": (
        module(
            "class Net(torch.nn.Module):\n    def forward(self, x, edge_index):\n"
            "        return x[:, :3]\n"
        ),
        "mine.Net has no parameters: there is nothing to train",
    ),
    "sys.exit(0) when its weights are saved": (
        method("state_dict"),
        "sys.exit() was called before there was a result; does the class of model.path call it?",
    ),
}
CASES = [
    *(Case(name, TRAIN, message, forward(line)) for name, (line, message) in RETURNS.items()),
    *(Case(name, TRAIN, message, files) for name, (files, message) in MODULES.items()),
    Case(
        "sys.exit(0) in a rank when its weights are saved",
        f"{TRAIN} parallel.num_ranks=2",
        "rank <*> failed: sys.exit(0) was called; does the class of model.path call it?",
        method("state_dict"),
    ),
    Case("os._exit(0)", TRAIN, NO_RESULT, forward("len(x) == 11 or os._exit(0); return out")),
    Case("os._exit(0) at the import", TRAIN, NO_RESULT, module("os._exit(0)\n")),
    Case(
        "packages of the names that ours have",
        TRAIN.replace("mine.Net", "models.mine.Net"),
        None,
        packages("models", "scripts", "conf"),
    ),
    Case("float64", TRAIN, None, forward("return out.double()")),
    Case("bfloat16", TRAIN, None, forward("return out.bfloat16()")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)
