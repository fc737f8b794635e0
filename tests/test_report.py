import json
import re
import shutil
import statistics
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from running import TOY

from pipeline.training import run
from scripts import report
from scripts.report import __main__ as command, figures, runs as report_runs
from scripts.report.sweep import summary_of_sweep


@pytest.fixture
def two_runs(configure, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b<b>"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        run(configure(*TOY, f"seed={seed}", "train.eval_every=2"), folder, "python -m pipeline.train <toy>")
    return folders


def write_run(folder: Path, valid: list[float | None], *, seed: int = 0, num_ranks: int = 1, lr: float = 0.01,
              finished: bool = True, data: str = "digits", **summary) -> Path:
    """A run directory by hand: two steps and a second an epoch, the test metric .01 below that of validation."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "cache_dir": str(folder), "data": {"source": data}, "model": {"name": "deepergcn"},
              "train": {"lr": lr, "epochs": len(valid)}, "parallel": {"num_ranks": num_ranks}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records = [{"kind": "round", "round": i, "epochs": num_ranks * (i + 1), "step": 2 * (i + 1), "loss": 1 / (i + 1),
                "wall_seconds": i + 1.0, **({} if value is None else {"valid": value, "test": value - 0.01})}
               for i, value in enumerate(valid)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        best = max(value for value in valid if value is not None)
        (folder / "summary.json").write_text(json.dumps({
            "experiment": "toy", "metric": "acc", "best_epoch": 1, "best_valid": best, "test": best - 0.01,
            "seed": seed, "data_epochs": len(valid) * num_ranks, "wall_seconds": float(len(valid)),
            "num_ranks": num_ranks,
            "num_parameters": 1234, "kernel": "fused-cpu (avx2)", "versions": {"torch": "2.13", "ogb": "1.3.6"},
            "command": "python -m pipeline.train -m seed=0,1,2", **summary}))
    return folder


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_a_page_stands_alone_and_shows_everything(two_runs):
    one = report.page([report.read_run(two_runs[0])])
    Balanced().feed(one)
    # Only names of XML vocabularies may look like addresses.
    assert not re.search(r'(src|href)="http', one) and "<script" not in one
    assert one.count("<svg") == 4
    summary = json.loads((two_runs[0] / "summary.json").read_text())
    for text in (f"{summary['test']:.4f}", summary["weights_sha256"][:16], "&lt;toy&gt;", "directed edges kept",
                 "1 components, of which 0 are single nodes", "Metric: rocauc"):
        assert text in one
    both = report.page([report.read_run(folder) for folder in two_runs])
    Balanced().feed(both)
    assert "b&lt;b&gt;" in both and "<b>" not in both and both.count("<svg") == 3
    assert "2 seeds (0, 1)" in both and "Speed-up" not in both


def test_equal_runs_give_equal_pages_and_an_unfinished_run_is_shown(two_runs):
    assert len({report.page([report.read_run(two_runs[0])]) for _ in range(2)}) == 1
    both = [report.page([report.read_run(folder) for folder in two_runs]) for _ in range(2)]
    assert both[0] == both[1]
    (two_runs[0] / "summary.json").unlink()
    page = report.page([report.read_run(two_runs[0])])
    assert "–" in page and page.count("<svg") == 4
    both = text_of(report.page([report.read_run(folder) for folder in two_runs]))
    assert f"left out: {two_runs[0]} did not finish" in both and "2 seeds" not in both


def test_what_is_no_run_is_refused(tmp_path, two_runs):
    for read in (report.read_run, lambda folder: report.find_runs([folder])):
        with pytest.raises(ValueError, match="is not a run directory: it has no config.yaml"):
            read(tmp_path / "nothing")
        (two_runs[0] / "metrics.jsonl").write_text("")
        with pytest.raises(ValueError, match="has no round to show"):
            read(two_runs[0])


def test_two_real_runs_overlaid_from_the_command_line(configure, two_runs, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other"
    other.mkdir()
    run(configure(*TOY, "train.lr=0.02", "train.eval_every=2"), other, "test")
    for figure in ("curves.svg", "curves.png"):
        monkeypatch.setattr("sys.argv", ["report", str(two_runs[0]), str(other), "--figure", str(tmp_path / figure),
                                         "--out", str(tmp_path / "page.html"), "--against", "step", "epochs"])
        command.main()
        assert capsys.readouterr().out.endswith(f"{tmp_path / figure}\n{tmp_path / 'page.html'}\n")
    page = (tmp_path / "page.html").read_text()
    Balanced().feed(page)
    # Letters in the SVG are outlines; matplotlib leaves what they spell as comments.
    assert "<!-- lr 0.005 -->" in page and "<!-- lr 0.02 -->" in page and "<!-- wall time [s] -->" in page
    alone = (tmp_path / "curves.svg").read_text()
    assert "<!-- steps of each rank -->" in alone and "<!-- wall time [s] -->" not in alone
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("sys.argv", ["report", str(other), "--figure", str(tmp_path / "curves.tiff7")])
    with pytest.raises(SystemExit, match="error: .*tiff7"):
        command.main()


def test_the_figure_draws_the_records(tmp_path):
    one = report.read_run(write_run(tmp_path / "1", [0.5, None, 0.8]))
    eight = report.read_run(write_run(tmp_path / "8", [0.6, 0.7], num_ranks=8))
    figure, hidden = figures.overlay([one, eight])
    assert hidden == 0 and len(figure.axes) == 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 rank", "8 ranks"]
    loss, valid = figure.axes[1], figure.axes[3]
    assert loss.lines[1].get_xydata().tolist() == [[8, 1], [16, 0.5]]
    # The third line is a ring: both reached .7, the first run when it was evaluated next.
    assert valid.lines[0].get_xydata().tolist() == [[2, 0.5], [6, 0.8]]
    assert [line.get_xydata().tolist() for line in valid.lines if line.get_marker() == "o"] == [[[6, 0.8]], [[4, 0.7]]]
    assert figure.axes[5].get_xlabel() == "wall time [s], ranks share cores"
    many = [report.read_run(write_run(tmp_path / f"lr{i}", [0.5 + i / 100], lr=i + 1.0)) for i in range(20)]
    figure, hidden = figures.overlay(many)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert hidden == 20 - figures.MAX_GROUPS == 20 - len(labels) and labels[0] == "lr 1" and labels[-1] == "lr 20"


def test_speed_up_at_equal_quality(tmp_path):
    first = report.read_run(write_run(tmp_path / "first", [0.5, 0.7, 0.8, 0.8], hardware="2 x Some CPU, 4 GiB"))
    fast = report.read_run(write_run(tmp_path / "fast", [0.6, 0.9], num_ranks=4, hardware="2 x Some CPU, 4 GiB"))
    page = text_of(report.page([first, fast]))
    assert ("Validation acc 0.8000, the best of the first run: run steps epochs wall seconds "
            "1 rank 6 (1.00×) 3 (1.00×) 3 (1.00×) 4 ranks 4 (1.50×) 8 (0.38×) 2 (1.50×)") in page
    assert "Ranks shared the cores" in page and "highest that all" not in page
    slow = report.read_run(write_run(tmp_path / "slow", [0.5, None, 0.75], num_ranks=2, lr_scaling="linear"))
    page = text_of(report.page([first, fast, slow]))
    assert "4 ranks, unscaled 4 (1.50×) 8 (0.38×) 2 (1.50×) 2 ranks, linear not reached" in page
    assert "Validation acc 0.7500, the highest that all runs reached:" in page \
        and "2 ranks, linear 6 (1.00×) 6 (0.50×)" in page
    other = report.read_run(write_run(tmp_path / "other", [0.9], data="file"))
    assert "None: the runs are of different data" in text_of(report.page([first, other]))


def test_seeds_give_what_the_leaderboard_asks_for(tmp_path):
    best = [0.81, 0.84, 0.8]
    folders = [write_run(tmp_path / str(seed), [0.5, value], seed=seed) for seed, value in enumerate(best)]
    write_run(tmp_path / "3", [0.5, 0.99], seed=3, finished=False)
    write_run(tmp_path / "4", [0.5, 0.99], seed=1)
    (tmp_path / "5").mkdir()
    runs, left_out = report.find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["0", "1", "2", "3", "4"]
    text, warnings = summary_of_sweep(runs, left_out)
    assert warnings == [f"left out: {tmp_path / '5'} is not a run directory: it has no config.yaml",
                        f"left out: {tmp_path / '3'} did not finish: it has no summary.json, only curves",
                        f"left out: {tmp_path / '4'} repeats {folders[1]}: the same settings and seed"]
    spread = statistics.stdev(best)
    assert spread == pytest.approx((sum((v - statistics.fmean(best)) ** 2 for v in best) / 2) ** 0.5)
    for line in ("3 seeds (0, 1, 2), mean ± unbiased standard deviation of acc", "validation  0.8167 ± 0.0208",
                 "test        0.8067 ± 0.0208", "asks for 10 seeds: 7 are missing",
                 "Test performance        0.8067 ± 0.0208 (3 seeds)",
                 "#Params                 1,234", "OGB version             1.3.6", "Hardware                (fill in)",
                 "Dataset                 none of OGB's: data=digits", "Versions                torch 2.13, ogb 1.3.6",
                 "Command                 python -m pipeline.train -m seed=0,1,2",
                 "Method                  DeeperGCN (fill in)"):
        assert line in text, text
    page = report.page(runs, left_out)
    Balanced().feed(page)
    assert all(line in text_of(page) for line in warnings)


@pytest.mark.parametrize("data, expected", [
    ({"source": "ogb", "name": "ogbn-proteins"}, "ogbn-proteins"),
    ({"source": "ogb", "name": "ogbn-proteins", "folder": "x"},
     "none of OGB's, unless data.folder=x holds ogbn-proteins")])
def test_ten_seeds_of_a_dataset_of_ogb(tmp_path, data, expected):
    for first in (0, 1):
        sweep = tmp_path / str(first)
        for seed in range(first, first + 10):
            folder = write_run(sweep / str(seed), [0.5], seed=seed, hardware="Some GPU")
            config = yaml.safe_load((folder / "config.yaml").read_text())
            (folder / "config.yaml").write_text(yaml.safe_dump(config | {"data": data}))
        text, warnings = summary_of_sweep(*report.find_runs([sweep]))
        assert f"Dataset                 {expected}\n" in text and "Hardware                Some GPU\n" in text \
            and not warnings
        assert ("either not fixed or 0 to 9" in text) == (first == 1) and "missing" not in text


def test_a_search_is_a_table_by_setting(tmp_path):
    number = 0
    for lr, quality in ((0.01, 0.7), (0.02, 0.8)):
        for num_ranks in (1, 8):
            for seed in range(2):
                write_run(tmp_path / str(number), [quality + num_ranks / 1000 + seed / 100], seed=seed, lr=lr,
                          num_ranks=num_ranks)
                number += 1
    runs, left_out = report.find_runs([tmp_path])
    assert report_runs.differing(runs) == ["num_ranks", "train.lr"]
    assert [label for label, _ in report_runs.groups(runs)] == [
        "1 rank, lr 0.01", "8 ranks, lr 0.01", "1 rank, lr 0.02", "8 ranks, lr 0.02"]
    text, warnings = summary_of_sweep(runs, left_out)
    lines = [line.split() for line in text.splitlines()]
    assert not warnings and "8 runs of 4 settings" in text and "OGB" not in text
    assert lines[1] == ["num_ranks", "lr", "seeds", "validation", "acc", "test", "wall", "s"]
    assert lines[2] == ["8", "0.02", "2", "0.8130", "±", "0.0071", "0.8030", "±", "0.0071", "1.0"]
    assert [line[:2] for line in lines[3:]] == [["1", "0.02"], ["8", "0.01"], ["1", "0.01"]]


def test_labels_say_what_differs(tmp_path):
    def labels(*runs: dict) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = [report.read_run(write_run(folder / name, [0.5], **run)) for name, run in zip("abc", runs)]
        return [label for label, _ in report_runs.groups(made)]

    four = dict(num_ranks=4)
    assert labels({}, four, {**four, "lr_scaling": "sqrt"}) == ["1 rank", "4 ranks, unscaled", "4 ranks, sqrt"]
    assert labels(four, {**four, "parallel": "split"}) == ["parallel epochs", "split"]
    assert labels({}, {**four, "parallel": "split"}) == ["1 rank", "4 ranks, split"]
    assert labels({}, dict(lr_scaling="sqrt")) == ["unscaled", "sqrt"]
    assert labels({}, {}) == ["toy a", "toy b"]
    assert labels(dict(seed=0), dict(seed=1)) == [""]
    assert labels(dict(lr=0.1), dict(lr=0.1), {}) == ["lr 0.1, toy a", "lr 0.1, toy b", "lr 0.01"]
    assert labels({}) == ["toy a"]


def test_members_of_a_sweep_are_in_order_and_failures_are_named(tmp_path):
    for number in (10, 9, 0):
        write_run(tmp_path / str(number), [0.5], seed=number)
    (tmp_path / "9" / "metrics.jsonl").write_text("")
    runs, left_out = report.find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["0", "10"] and left_out == [f"{tmp_path / '9'} has no round to show"]
    for number in (0, 10):
        (tmp_path / str(number) / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="nothing to show: .*0 has no round to show; .*9 has"):
        report.find_runs([tmp_path])
    (tmp_path / "0" / "config.yaml").write_text("a: [")
    (tmp_path / "0" / "metrics.jsonl").write_text('{"kind": "round"}\n')
    with pytest.raises(ValueError, match="config.yaml is not a configuration"):
        report.find_runs([tmp_path / "0"])


@pytest.mark.system
def test_a_browser_draws_the_page(two_runs, tmp_path):
    chromium = shutil.which("chromium")
    assert chromium, "make test-all installs chromium"
    page = two_runs[0] / "report.html"
    page.write_text(report.page([report.read_run(folder) for folder in two_runs]))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-sync", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}",
             "--virtual-time-budget=2000"]
    dom = subprocess.run([chromium, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True,
                         timeout=120).stdout
    assert dom.count("<svg") == 3 and "Connected components" in dom
    shot = tmp_path / "shot.png"
    subprocess.run([chromium, *flags, "--window-size=1100,2600", f"--screenshot={shot}", page.as_uri()],
                   capture_output=True, timeout=120, check=True)
    from matplotlib.image import imread

    pixels = imread(shot)[..., :3]
    # A page with curves is neither blank nor a single colour: the bars' blue covers a part of it.
    blue = (abs(pixels - [0x00 / 255, 0x72 / 255, 0xB2 / 255]) < 0.04).all(-1)
    assert pixels.shape[:2] == (2600, 1100) and blue.mean() > 0.01
