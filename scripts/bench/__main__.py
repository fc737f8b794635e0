"""Benchmarks. Nothing is timed before our output was compared with that of PyG.

Each measurement is one CSV row on standard output. Progress is reported on standard error.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable

from parallel_epochs.pipeline.command.arguments import Parser, positive
from parallel_epochs.pipeline.run.errors import one_line

# The modules whose functions bench_NAME are the benchmarks. The signature of one gives its options.
MODULES = ("loaders", "aggregate", "convs", "step", "ranks", "gpu", "serve")


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
                about = inspect.cleandoc(function.__doc__)
                bench = benches.add_parser(
                    name.removeprefix("bench_"),
                    help=about.partition("\n")[0],
                    description=about,
                    formatter_class=argparse.RawDescriptionHelpFormatter,
                )
                bench.set_defaults(function=function)
                _add_options(bench, function)
    return parser


def _add_options(bench: argparse.ArgumentParser, function: Callable) -> None:
    """Add the options of a benchmark: one for each parameter of its function, by the parameter's type."""
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = parameter.annotation, parameter.default
        flag, text = f"--{name.replace('_', '-')}", f"default: {default}"
        if kind is bool:
            bench.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            of = str if kind == tuple[str, ...] else positive
            bench.add_argument(flag, type=of, nargs="+", default=default, help=text)
        else:
            of = positive if kind is int else kind
            bench.add_argument(flag, type=of, default=default, help=text)


def main() -> None:
    options = vars(build_parser().parse_args())
    del options["bench"]
    try:
        options.pop("function")(**options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
