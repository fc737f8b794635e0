"""The report of runs that go on, were stopped, failed or are damaged; where pages go; sweeps; the live view."""

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest
import yaml

from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts import report
from parallel_epochs.scripts.report import (
    __main__ as command,
    figures,
    runs as report_runs,
    watch as following,
)
from parallel_epochs.scripts.report.sweep import summary_of_sweep
from tests.helpers.report_runs import write_records, write_run
from tests.helpers.running import TOY, command as start_command, train
from tests.scripts.test_report import page_of, small_library  # noqa: F401 - a fixture


def run_report(monkeypatch, *arguments) -> None:
    monkeypatch.setattr("sys.argv", ["report", *map(str, arguments)])
    command.main()


@pytest.fixture
def lock():
    """Hold run directories as a training does."""
    held = []

    def hold(folder: Path):
        held.append(open(folder / ".lock", "w"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        return held[-1]

    yield hold
    for file in held:
        file.close()


def test_pages_do_not_overwrite_each_other(tmp_path, monkeypatch, capsys):
    folders = [write_run(tmp_path / name, [0.5]) for name in ("a", "x/b", "y/b", "c", "d")]
    chosen = [
        folders[:1],
        folders[:2],
        [folders[0], folders[2]],
        folders[1:2],
        folders[:4],
        folders,
    ]
    written = []
    for given in chosen:
        run_report(monkeypatch, *given)
        written.append(Path(capsys.readouterr().out.splitlines()[-1]))
    assert len(set(written)) == len(chosen) and all(path.is_file() for path in written)
    assert written[0] == folders[0] / "report.html" and written[3] == folders[1] / "report.html"
    assert written[1].name.startswith("report-with-b-") and "b-and-3-others" in written[5].name
    run_report(monkeypatch, *folders, "--output", tmp_path / "page.html")
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'page.html'}\n")
    with pytest.raises(SystemExit, match="error: .*nowhere"):
        run_report(monkeypatch, folders[0], "--output", tmp_path / "nowhere" / "page.html")


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", [0.5])
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(SystemExit, match=r"error: .*plotly.*pip install .* -e '.\[report\]'"):
        run_report(monkeypatch, folder)


def test_a_run_says_how_it_stands(tmp_path, lock):
    folder = write_run(tmp_path / "run", [0.5, 0.6], finished=False, epochs=10)
    log = folder / "train.log"
    stamp = "2026-01-01 00:00:00,000"
    log.write_text(f"{stamp} INFO epoch  2/10  loss 1\n")
    page = page_of(folder)
    assert "stopped Stopped after 2 of 10 epochs." in page.text and f"resume={folder}" in page.text
    log.write_text(
        f"{stamp} ERROR error: loss is nan in round 3, step 1\n{stamp} INFO epoch  2/10  loss 1\n"
    )
    assert report.read_run(folder).state.kind == "stopped"  # it went on after that
    with open(log, "a") as file:
        file.write(f"{stamp} ERROR error: loss is nan in round 3, step 1\n")
    assert (
        "diverged Diverged after 2 of 10 epochs: loss is nan in round 3, step 1."
        in page_of(folder).text
    )
    log.write_text(f"{stamp} ERROR error: {folder}: No space left\nTraceback\n")
    assert (
        f"failed Ended by an error after 2 of 10 epochs: {folder}: No space left."
        in page_of(folder).text
    )
    held = lock(folder)
    page = page_of(folder)
    assert (
        "running Still running: 2 of 10 epochs so far, about 8 s left." in page.text
        and "resume=" not in page.text
    )
    held.close()
    # Continued after it had finished: the summary is of before.
    finished = write_run(
        tmp_path / "more", [0.5, 0.6, 0.7], data_epochs=2, best_valid=0.6, epochs=9
    )
    state = report.read_run(finished).state
    assert (state.kind, state.text) == ("stopped", "stopped after 3 of 9 epochs")
    assert report.read_run(finished).result["best_valid"] == 0.7
    early = report.read_run(write_run(tmp_path / "early", [0.5, 0.6], epochs=9)).state
    assert (early.kind, early.text) == ("finished", "finished early, after 2 of 9 epochs")


def test_a_component_runs_while_its_run_does(tmp_path, lock):
    folder = write_run(tmp_path / "run" / "component_0", [0.5], finished=False, epochs=9)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0\n")
    lock(tmp_path / "run")
    assert report.read_run(folder).state.kind == "running"


def test_a_run_without_a_round_is_refused_unless_one_is_coming(tmp_path, lock):
    folder = write_run(tmp_path / "run", [0.5], finished=False)
    (folder / "metrics.jsonl").write_text("")
    (folder / "train.log").write_text(
        "2026-01-01 00:00:00,000 ERROR error: loss is nan in round 1\n"
    )
    for read in (report.read_run, lambda folder: report.find_runs([folder])):
        with pytest.raises(ValueError, match="is not a run directory: it has no config.yaml"):
            read(tmp_path / "nothing")
        with pytest.raises(ValueError, match="run has no round to show: loss is nan in round 1"):
            read(folder)
    # Beside another run it is left out, and named.
    other = write_run(tmp_path / "other", [0.5])
    assert (
        "left out: " in page_of(folder, other).text
        and "loss is nan in round 1" in page_of(folder, other).text
    )
    lock(folder)
    assert "No round has ended yet." in page_of(folder).text
    assert "1 running" in page_of(folder, other).text


@pytest.mark.slow
def test_records_in_part(tmp_path):
    """Whatever lacks in a record, the page has the rest: by turns that of the run alone, and beside another."""
    whole = write_run(tmp_path / "whole", [0.5, 0.6])
    folder = write_run(tmp_path / "run", [0.5, 0.6, 0.7])
    records, summary = (
        read_records(folder / "metrics.jsonl"),
        json.loads((folder / "summary.json").read_text()),
    )
    chosen = itertools.cycle([[folder], [whole, folder], [folder, whole]])
    for key in (
        "epochs",
        "step",
        "loss",
        "lr",
        "seconds",
        "wall_seconds",
        "valid",
        "test",
        "hidden",
        "draw_seconds",
    ):
        for value in (None, "x", float("nan"), float("inf"), [1], True):
            write_records(folder, [records[0], *({**r, key: value} for r in records[1:])])
            page_of(*next(chosen))
        write_records(
            folder, [records[0], *({k: v for k, v in r.items() if k != key} for r in records[1:])]
        )
        page_of(folder), page_of(whole, folder)
    write_records(folder, records)
    for key in summary:
        for value in (None, float("nan")):
            (folder / "summary.json").write_text(json.dumps({**summary, key: value}))
            page_of(*next(chosen))


@pytest.mark.parametrize(
    "name, content, problem",
    [
        ("summary.json", "[1]", "summary.json is damaged"),
        ("summary.json", '{"best_valid": "x"}', "best_valid is 'x'"),
        ("summary.json", '{"versions": [1]}', "versions is"),
        ("summary.json", '{"best', "summary.json"),
        ("summary.json", "", "summary.json"),
        ("components.json", "{}", "num_components is None"),
        (
            "components.json",
            '{"num_components": 2, "num_single_nodes": 1, "largest": [1]}',
            "largest is",
        ),
        ("components.json", "\0\0", "components.json"),
        ("metrics.jsonl", {"sizes": "x"}, "sizes is 'x'"),
        ("metrics.jsonl", {"cut": None}, "cut is None"),
        ("metrics.jsonl", {"sizes": [1, float("nan")]}, "sizes is"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(name, content, problem, tmp_path):
    folder = write_run(tmp_path / "run", [0.5, 0.6])
    if isinstance(content, dict):
        records = read_records(folder / name)
        write_records(folder, [{**records[0], **content}, *records[1:]])
    else:
        (folder / name).write_text(content)
    other = write_run(tmp_path / "other", [0.5])
    for page in (page_of(folder), page_of(other, folder)):
        assert problem in page.text
        assert "Accuracy" in page.titles() or "Validation accuracy" in page.titles()


def test_missing_rounds_are_counted(tmp_path):
    folder = write_run(tmp_path / "run", [0.5] * 6)
    records = read_records(folder / "metrics.jsonl")
    write_records(folder, [*records[:3], *records[5:]])
    assert "metrics.jsonl lacks 2 of 6 rounds; the first one is round 3" in page_of(folder).text


@pytest.mark.slow
def test_two_real_runs_overlaid_from_the_command_line(configure, tmp_path, monkeypatch, capsys):
    folders = [tmp_path / "lr0.005", tmp_path / "lr0.02"]
    train(configure(*TOY, "train.lr=0.005", "train.eval_every=2"), folders[0])
    shutil.copytree(*folders)
    config = (folders[1] / "config.yaml").read_text()
    (folders[1] / "config.yaml").write_text(config.replace("  lr: 0.005\n", "  lr: 0.02\n"))
    for figure in ("curves.svg", "curves.png"):
        run_report(
            monkeypatch,
            *folders,
            "--figure",
            tmp_path / figure,
            "--output",
            tmp_path / "page.html",
            "--against",
            "step",
            "epochs",
        )
        assert capsys.readouterr().out.endswith(f"{tmp_path / figure}\n{tmp_path / 'page.html'}\n")
    assert "lr 0.005" in (tmp_path / "page.html").read_text()
    # Letters in the SVG are outlines; matplotlib leaves what they spell as comments.
    alone = (tmp_path / "curves.svg").read_text()
    for words in ("lr 0.005", "lr 0.02", "steps of each rank", "validation ROC-AUC"):
        assert f"<!-- {words} -->" in alone
    assert "wall time" not in alone
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="error: .*tiff7"):
        run_report(monkeypatch, folders[0], "--figure", tmp_path / "curves.tiff7")


def test_the_figure_draws_the_records(tmp_path):
    one = report.read_run(write_run(tmp_path / "1", [0.5, None, 0.8]))
    eight = report.read_run(write_run(tmp_path / "8", [0.6, 0.7], num_ranks=8))
    figure, hidden = figures.overlay([one, eight])
    assert hidden == 0 and len(figure.axes) == 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 rank", "8 ranks"]
    loss, valid = figure.axes[1], figure.axes[3 + 1]
    assert loss.lines[1].get_xydata().tolist() == [[8, 1], [16, 0.5]]
    # A ring: both reached .7, the first run when it was evaluated next.
    valid = figure.axes[3]
    assert valid.lines[0].get_xydata().tolist() == [[2, 0.5], [6, 0.8]]
    assert [line.get_xydata().tolist() for line in valid.lines if line.get_marker() == "o"] == [
        [[6, 0.8]],
        [[4, 0.7]],
    ]
    assert figure.axes[5].get_xlabel() == "wall time (s), ranks share cores"
    many = [
        report.read_run(write_run(tmp_path / f"lr{i}", [0.5 + i / 100], lr=i + 1.0))
        for i in range(20)
    ]
    figure, hidden = figures.overlay(many)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert (
        hidden == 20 - figures.MAX_GROUPS == 20 - len(labels)
        and labels[0] == "lr 1"
        and labels[-1] == "lr 20"
    )
    other = report.read_run(write_run(tmp_path / "roc", [0.9], metric="rocauc"))
    figure, _ = figures.overlay([one, other], ["step"])
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "training loss (accuracy)",
        "validation accuracy",
        "training loss (ROC-AUC)",
        "validation ROC-AUC",
    ]
    assert (
        figure.axes[3].lines[0].get_xydata().tolist() == [[2, 0.9]]
        and len(figure.axes[3].lines) == 1
    )


def test_long_labels_stay_within_a_figure_of_one_column(tmp_path):
    runs = [
        report.read_run(
            write_run(tmp_path / str(i), [0.5, 0.6], data=f"{'a rather long name ' * 4}{i}")
        )
        for i in range(9)
    ]
    figure, _ = figures.overlay(runs, ["step"])
    figures.save(figure, tmp_path / "figure.png")
    legend, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= legend.x0 and legend.x1 <= whole.x1 and legend.y1 <= whole.y1
    assert (
        figure.axes[0].get_window_extent().y1 < legend.y0 + 5
        and figure.axes[0].get_window_extent().height > 150
    )
    words = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert words[8] == f"source {'a rather long name ' * 4}8"


def test_seeds_give_what_the_leaderboard_asks_for(tmp_path):
    best = [0.81, 0.84, 0.8]
    folders = [
        write_run(tmp_path / str(seed), [0.5, value], seed=seed) for seed, value in enumerate(best)
    ]
    write_run(tmp_path / "3", [0.5, 0.99], seed=3, finished=False)
    write_run(tmp_path / "4", [0.5, 0.99], seed=1)
    (tmp_path / "5").mkdir()
    runs, left_out = report.find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["0", "1", "2", "3", "4"]
    text, warnings = summary_of_sweep(runs, left_out)
    assert warnings == [
        f"left out: {tmp_path / '5'} is not a run directory: it has no config.yaml",
        f"left out of means: {tmp_path / '3'} stopped after 2 of 2 epochs",
        f"left out of means: {tmp_path / '4'} has the same settings and seed as {folders[1]}",
    ]
    spread = statistics.stdev(best)
    assert spread == pytest.approx(
        (sum((v - statistics.fmean(best)) ** 2 for v in best) / 2) ** 0.5
    )
    page = page_of(tmp_path)
    for line in (
        "3 seeds (0, 1, 2), mean ± unbiased standard deviation of acc",
        "validation  0.8167 ± 0.0208",
        "test        0.8067 ± 0.0208",
        "asks for 10 seeds: 7 are missing",
        "Test performance        0.8067 ± 0.0208 (3 seeds)",
        "#Params                 1,234",
        "OGB version             1.3.6",
        "Hardware                (fill in)",
        "Dataset                 none of OGB's: data=digits",
        "Versions                torch 2.13, ogb 1.3.6",
        "Command                 python -m pipeline.train -m seed=0,1,2",
        "Method                  DeeperGCN (fill in)",
    ):
        assert line in text, text
        assert " ".join(line.split()) in page.text
    assert all(line in page.text for line in warnings)


@pytest.mark.parametrize(
    "data, expected",
    [
        ({"source": "ogb", "name": "ogbn-proteins"}, "ogbn-proteins"),
        (
            {"source": "ogb", "name": "ogbn-proteins", "folder": "x"},
            "none of OGB's, unless data.folder=x holds ogbn-proteins",
        ),
    ],
)
def test_ten_seeds_of_a_dataset_of_ogb(tmp_path, data, expected):
    for first in (0, 1):
        sweep = tmp_path / str(first)
        for seed in range(first, first + 10):
            folder = write_run(sweep / str(seed), [0.5], seed=seed, hardware="Some GPU")
            config = yaml.safe_load((folder / "config.yaml").read_text())
            (folder / "config.yaml").write_text(yaml.safe_dump(config | {"data": data}))
        text, warnings = summary_of_sweep(*report.find_runs([sweep]))
        assert (
            f"Dataset                 {expected}\n" in text
            and "Hardware                Some GPU\n" in text
            and not warnings
        )
        assert ("either not fixed or 0 to 9" in text) == (first == 1) and "missing" not in text


def test_a_search_is_a_table_by_setting(tmp_path):
    number = 0
    for lr, quality in ((0.01, 0.7), (0.02, 0.8)):
        for num_ranks in (1, 8):
            for seed in range(2):
                write_run(
                    tmp_path / str(number),
                    [quality + num_ranks / 1000 + seed / 100],
                    seed=seed,
                    lr=lr,
                    num_ranks=num_ranks,
                )
                number += 1
    runs, left_out = report.find_runs([tmp_path])
    assert report_runs.differing(runs) == ["num_ranks", "train.lr"]
    assert [label for label, _ in report_runs.groups(runs)] == [
        "1 rank, lr 0.01",
        "8 ranks, lr 0.01",
        "1 rank, lr 0.02",
        "8 ranks, lr 0.02",
    ]
    text, warnings = summary_of_sweep(runs, left_out)
    lines = [line.split() for line in text.splitlines()]
    assert not warnings and "8 runs of 4 settings" in text and "OGB" not in text
    assert lines[1] == ["num_ranks", "lr", "seeds", "validation", "acc", "test", "wall", "s"]
    assert lines[2] == ["8", "0.02", "2", "0.8130", "±", "0.0071", "0.8030", "±", "0.0071", "1.0"]
    assert [line[:2] for line in lines[3:]] == [["1", "0.02"], ["8", "0.01"], ["1", "0.01"]]
    assert "8 ranks, lr 0.02 2 0.8130 ± 0.0071 0.8030 ± 0.0071 1.0" in page_of(tmp_path).text


def test_members_of_a_sweep_are_in_order_and_failures_are_named(tmp_path):
    for number in (10, 9, 0):
        write_run(tmp_path / str(number), [0.5], seed=number)
    (tmp_path / "9" / "metrics.jsonl").write_text("")
    runs, left_out = report.find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["0", "10"] and left_out == [
        f"{tmp_path / '9'} has no round to show"
    ]
    for number in (0, 10):
        (tmp_path / str(number) / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="nothing to show: .*0 has no round to show; .*9 has"):
        report.find_runs([tmp_path])
    (tmp_path / "0" / "config.yaml").write_text("a: [")
    (tmp_path / "0" / "metrics.jsonl").write_text('{"kind": "round"}\n')
    with pytest.raises(ValueError, match="config.yaml is not a configuration"):
        report.find_runs([tmp_path / "0"])


def test_a_live_page_follows_a_run_to_its_end(tmp_path, lock, capsys):
    folder, output = (
        write_run(tmp_path / "run", [0.5], finished=False, epochs=3),
        tmp_path / "page.html",
    )
    held = lock(folder)
    watcher = threading.Thread(target=following.watch, args=([folder], output, 0.05))
    watcher.start()
    wait_for(lambda: output.is_file())
    assert "data-live=0.05" in output.read_text()
    write_records(folder, [{"kind": "round", "round": i, "epochs": i + 1} for i in range(3)])
    wait_for(lambda: "3 of 3 epochs" in output.read_text())
    (folder / "summary.json").write_text('{"data_epochs": 3}')
    held.close()
    watcher.join(30)
    page = output.read_text()
    assert (
        not watcher.is_alive()
        and "data-live" not in page
        and "Finished after 3 of 3 epochs." in page
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{output}: open it in a browser. It is written again every 0.05 s until the run ends or you press Ctrl-C",
        f"{output}: this is the last page, as the run finished after 3 of 3 epochs",
    ]


def test_a_sweep_is_followed_from_one_run_to_the_next(tmp_path, lock, capsys):
    sweep, output = tmp_path / "sweep", tmp_path / "page.html"
    sweep.mkdir()
    watcher = threading.Thread(target=following.watch, args=([sweep], output, 0.2))
    watcher.start()
    wait_for(lambda: "waiting for a run" in capsys.readouterr().out)
    held = lock(write_run(sweep / "0", [0.5], finished=False))
    wait_for(output.is_file)
    held.close()
    time.sleep(0.3)  # the next run starts
    held = lock(write_run(sweep / "1", [0.5], seed=1, finished=False))
    wait_for(lambda: "seed 1" in output.read_text())
    assert watcher.is_alive() and "1 running" in output.read_text()
    held.close()
    watcher.join(30)
    assert not watcher.is_alive() and "data-live" not in output.read_text()


def test_ctrl_c_ends_the_live_view_and_its_page(tmp_path, lock):
    folder = write_run(tmp_path / "run", [0.5], finished=False)
    lock(folder)
    process = start_command("scripts.report", "run", "--watch", "--every", "1", cwd=tmp_path)
    wait_for((folder / "report.html").is_file)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert (
        output.splitlines()[-1]
        == "run/report.html: no longer updated, which does not stop the runs"
    )
    assert "data-live" not in (folder / "report.html").read_text()


def test_only_a_directory_can_be_waited_for(tmp_path, monkeypatch):
    with pytest.raises(
        SystemExit, match="error: .*nowhere is not a run directory: it does not exist"
    ):
        run_report(monkeypatch, tmp_path / "nowhere", "--watch")


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_page_lists_further_scores_by_metric_split_and_part(tmp_path):
    scores = {
        "valid_mr": 12.0,
        "valid_hits@10": 0.5,
        "mr": 14.5,
        "hits@3": 0.25,
        "mrr@heads": 0.125,
        "mrr@likes": 0.375,
        "mrr@valid": 0.0625,
    }
    text = report.page(
        [report.read_run(write_run(tmp_path / "toy", [0.5], metric="mrr", scores=scores))]
    )
    rows = [re.sub("<[^>]*>", "|", row).strip("|") for row in re.findall("<tr>(.*?)</tr>", text)]
    found = [[cell for cell in row.split("|") if cell] for row in rows]
    values = {f"{value:.4f}" for value in scores.values()}
    assert [row for row in found if len(row) == 4 and row[-1] in values] == [
        ["Mean rank", "Validation", "all", "12.0000"],
        ["Hits@10", "Validation", "all", "0.5000"],
        ["Mean rank", "Test", "all", "14.5000"],
        ["Hits@3", "Test", "all", "0.2500"],
        ["MRR", "Test", "heads", "0.1250"],
        ["MRR", "Validation", "all", "0.0625"],
        ["MRR", "Test", "likes", "0.3750"],
    ]
    assert "<h1>toy</h1>" in text


def test_runs_that_differ_by_seeds_alone_are_of_one_setting(tmp_path):
    runs = [
        report.read_run(write_run(tmp_path / f"run{seed}", [0.5], seed=seed)) for seed in range(3)
    ]
    assert "3 runs of one setting" in report.page(runs)
