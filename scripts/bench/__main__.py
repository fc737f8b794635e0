"""Benchmarks. Nothing is timed before our output was compared with that of PyG.

Each measurement is one CSV row on standard output. Progress is reported on standard error.
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Callable

from parallel_epochs.pipeline.command.arguments import Parser, positive
from parallel_epochs.pipeline.run.errors import one_line

# The modules whose functions bench_NAME are the benchmarks. The signature of one gives its options.
MODULES = ("loaders", "aggregate", "convs", "step", "ranks", "gpu", "serve")
# Texts of options that several benchmarks have, where their docstrings do not say more.
TEXTS = {
    "num_nodes": "number of nodes",
    "num_edges": "number of directed edges",
    "layers": "number of layers",
    "num_parts": "number of clusters of a partition",
    "num_ranks": "number of ranks",
    "batch_size": "number of nodes of a batch",
    "channels": "number of channels of a layer",
    "steps": "number of training steps",
    "repeat": "number of rounds",
    "device": "cpu, cuda or auto",
}


def build_parser() -> Parser:
    """Build the parser of the command line, with one subcommand for each benchmark."""
    parser = Parser(
        prog="python -m scripts.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benches = parser.add_subparsers(dest="bench", required=True)
    for module in MODULES:
        for name, function in vars(
            importlib.import_module(f"parallel_epochs.scripts.bench.{module}")
        ).items():
            if name.startswith("bench_") and function.__module__.endswith(f".{module}"):
                about = function.__doc__.partition("\n")[0]
                bench = benches.add_parser(
                    name.removeprefix("bench_"), help=about, description=about
                )
                bench.set_defaults(function=function)
                _add_options(bench, function)
    return parser


def _add_options(bench: argparse.ArgumentParser, function: Callable) -> None:
    """Add the options of a benchmark: one for each parameter of its function, by the parameter's type."""
    texts = TEXTS | {
        name: " ".join(text.split()).rstrip(".")
        for name, text in re.findall(
            r"^    (\w+): (.*(?:\n {5,}.*)*)", inspect.cleandoc(function.__doc__), re.MULTILINE
        )
    }
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default, text = parameter.annotation, parameter.default, texts[name]
        flag = f"--{name.replace('_', '-')}"
        if parameter.kind is parameter.VAR_POSITIONAL:
            bench.add_argument(name, nargs="*", help=text)
        elif kind is bool:
            bench.add_argument(flag, action="store_true", help=text)
        elif default is parameter.empty:
            bench.add_argument(flag, type=kind, required=True, help=text)
        elif isinstance(default, tuple):
            shown = f" (default: {' '.join(map(str, default))})" if default else ""
            is_text = kind == tuple[str, ...]
            bench.add_argument(
                flag,
                type=str if is_text else positive,
                nargs="*" if is_text and default else "+",
                default=default,
                choices=default or None if is_text else None,
                help=text + shown,
            )
        else:
            shown = (
                f" (default: {default:,})" if isinstance(default, int) else f" (default: {default})"
            )
            bench.add_argument(
                flag,
                type=kind if kind in (str, float) else positive,
                default=default,
                help=text + (shown if default else ""),
            )


def main() -> None:
    options = vars(build_parser().parse_args())
    del options["bench"]
    try:
        options.pop("function")(*options.pop("overrides", ()), **options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
