"""The walk of a parameter through the code."""

import ast

import pytest

from tools.follow import Walk

MODULES = {
    "a.start": "from parallel_epochs.a.middle import open_graph\nfrom parallel_epochs.a.end import Table\n"
    "def begin(run, other):\n    config = run.config\n    graph = open_graph(config)\n    Table(graph)\n"
    "    open_graph(other)\n    unrelated(other)\n",
    "a.middle": "from parallel_epochs.a import end\ndef open_graph(config, name=None):\n"
    "    return end.read(config.path)\n",
    "a.end": "def read(path):\n    return read(path)\nclass Table:\n    def __init__(self, graph):\n"
    "        graph.close()\nclass Graph:\n    def close(self):\n        pass\n",
}


@pytest.mark.parametrize(
    ("parameter", "stops"),
    [
        # open_graph reads, and returns; the table closes the graph, and returns.
        ("run", ["start", "middle", "end", "middle", "start", "end", "start"]),
        ("other", ["start", "middle", "end", "middle", "start"]),
    ],
)
def test_a_file_that_gets_a_part_of_the_parameter_is_a_stop(parameter, stops):
    walk = Walk({name: ast.parse(text) for name, text in MODULES.items()}).follow(
        "a.start", "begin", parameter
    )
    assert walk.stops == [f"a.{name}" for name in stops]
