"""What is said while something takes long: bars on a terminal, a line a minute elsewhere, the time left, the inputs."""

import io
import json
import logging
import sys

import pytest
import torch

from parallel_epochs.models.networks.deepgcn import DeeperGCN
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.predict import inference
from parallel_epochs.pipeline.graph import metis
from parallel_epochs.pipeline.run import progress
from parallel_epochs.pipeline.run.allocations import Allocations
from parallel_epochs.pipeline.run.contract import RoundNumbers
from parallel_epochs.pipeline.run.log import RunLog, read_records
from parallel_epochs.pipeline.run.progress import Bar, Pace, TerminalHandler, format_seconds
from tests.helpers.graphs import random_graph
from tests.helpers.running import TOY, train


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by hand."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_without_a_terminal_a_phase_says_a_line_a_minute_at_most(clock, caplog):
    with caplog.at_level(logging.INFO), Bar("evaluating", 300, "clusters") as bar:
        for _ in range(300):
            clock.now += 2
            bar.advance()
    assert len(caplog.messages) == 10
    assert caplog.messages[0] == "evaluating: 30 of 300 clusters, 9 min left"
    caplog.clear()
    with caplog.at_level(logging.INFO), Bar("evaluating", 29, "clusters") as bar:
        for _ in range(29):  # less than a minute
            clock.now += 2
            bar.advance()
    assert not caplog.messages


def test_only_who_may_speak_does(clock, caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with caplog.at_level(logging.INFO), Bar("evaluating", 2, "clusters", show=False) as bar:
        clock.now += 100
        bar.advance()
    assert not caplog.messages and not sys.stderr.getvalue()


def test_on_a_terminal_it_is_a_bar_and_messages_stand_above_it(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", sys.stderr)
    handler = TerminalHandler(sys.stdout)
    with Bar("reading", 2, "stages", note=lambda: "run 3 min") as bar:
        assert "reading:   0%" in sys.stderr.getvalue()
        bar._tqdm.mininterval = 0
        bar.advance("checking")
        handler.emit(logging.makeLogRecord({"msg": "a message"}))
    text = sys.stderr.getvalue()
    assert (
        "checking:  50%" in text
        and "1/2 stages" in text
        and "run 3 min" in text
        and not caplog.messages
    )
    # The line of the bar was wiped before the message, and at the end.
    assert text.split("a message")[0].endswith("\r") and text.endswith("\r")


def test_the_time_left_is_that_of_the_whole_run_without_its_first_round(clock):
    pace = Pace(epochs=10)
    clock.now += 50  # compiles
    assert pace.seconds_left(12, 30) == pytest.approx(50 / 2 * 18)
    clock.now += 4
    assert pace.seconds_left(14, 30) == pytest.approx(4 / 2 * 16)
    clock.now += 8
    assert pace.seconds_left(16, 30) == pytest.approx(12 / 4 * 14)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.2, "0 s"),
        (99, "99 s"),
        (180, "3 min"),
        (3599, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_durations_are_short(seconds, text):
    assert format_seconds(seconds) == text


def test_the_epoch_line_tells_seconds_of_both_phases_and_the_time_left(tmp_path, caplog):
    log = RunLog(tmp_path, metric="acc")
    log.start_bar(4, initial=0, epoch=0, num_epochs=20)
    line = dict(num_epochs=20, syncs=False, is_best=True)
    late, soon = (
        RoundNumbers(loss=0.5, lr=1, seconds=1.234, hidden=0, draw_seconds=delayed, sync_seconds=0)
        for delayed in (0.9, 0.2)
    )
    with caplog.at_level(logging.INFO):
        log.epoch_line(
            epoch=1, numbers=late, evaluation_seconds=0.5, scores={"valid": 0.25}, **line
        )
        log.epoch_line(epoch=20, numbers=soon, evaluation_seconds=None, scores=None, **line)
        log.close()
    assert caplog.messages == [
        "epoch  1/20  loss  0.50000  valid 0.2500  best     1.23 s + 0.50 s evaluation  0 s left",
        "epoch 20/20  loss  0.50000     1.23 s",
        "training waited 1.1 s of 2.5 s for batches to be drawn",
    ]


@pytest.mark.parametrize("name", ["loss", "epochs", "wall_seconds", "valid"])
def test_a_record_with_text_in_place_of_a_number_is_left_out(tmp_path, caplog, name):
    whole = {
        "kind": "round",
        "round": 0,
        "epochs": 1,
        "loss": 0.5,
        "valid": None,
        "wall_seconds": 1.0,
    }
    (tmp_path / "metrics.jsonl").write_text(
        f"{json.dumps(whole)}\n{json.dumps(whole | {'round': 1, name: 'low'})}\n"
    )
    assert read_records(tmp_path / "metrics.jsonl") == [whole]
    assert caplog.messages == [f"{tmp_path / 'metrics.jsonl'} is damaged: line 2 is left out"]


@pytest.mark.parametrize(
    "num_mlp_layers", [1, 2]
)  # with one, encoders of edges have as many weights as convolutions
def test_the_exact_evaluation_counts_every_layer_and_leaves_no_hook(monkeypatch, num_mlp_layers):
    counts = []
    monkeypatch.setattr(Bar, "advance", lambda self, text=None: counts.append(self._text))
    graph = random_graph(30, 2000, 0)
    model = DeeperGCN(5, 8, 2, 3, edge_dim=3, aggr="mean", num_mlp_layers=num_mlp_layers).eval()

    def predict(batch: Graph):
        return batch.n_id, model(batch.x, batch.edge_index, batch.edge_attr)

    layers = inference.stack_of_layers(model)
    assert layers == list(model.convs)
    with Allocations() as held:
        inference.predict_exact(
            predict, graph, num_rows=30, out_channels=2, device=torch.device("cpu"), layers=layers
        )
    assert (
        held.peak < 4 * 8 * graph.num_edges
    )  # hooks on encoders of edges would make tensors of edges x channels
    assert counts == ["evaluating"] * 3
    assert not any(module._forward_hooks for module in model.modules())
    assert inference.stack_of_layers(torch.nn.Linear(1, 1)) == []


def test_slow_phases_are_announced_before_they_begin(configure, tmp_path, caplog, monkeypatch):
    said_before = []
    run_metis = metis._run_metis

    def listen(*args):
        said_before.append(caplog.messages[-1])
        return run_metis(*args)

    monkeypatch.setattr(metis, "_run_metis", listen)
    with caplog.at_level(logging.INFO):
        train(configure(*TOY, "partition=metis", "train.epochs=1"), tmp_path / "run")
    cache = tmp_path / "cache" / "partitions"
    assert said_before == [
        f"METIS: cutting 240 nodes into 4 clusters, kept in {cache} for later runs"
    ]
    assert caplog.messages[0] == "data: preparing synthetic_proteins"
    assert "x: features of its edges (8), species (4); 8 features of each edge" in caplog.messages
