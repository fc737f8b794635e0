"""Pages of runs: what they show of the records, that they stand alone, and that a damaged folder is told of."""

import base64
import fcntl
import hashlib
import json
import os
import re
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from parallel_epochs.scripts.report import comparison, document
from parallel_epochs.scripts.report.__main__ import choose_output
from parallel_epochs.scripts.report.labels import rates
from parallel_epochs.scripts.report.layout import read_layout
from parallel_epochs.scripts.report.runs import find_runs, read_run
from tests.helpers.report_runs import (
    components,
    many_points,
    typed_record,
    write_layout,
    write_records,
    write_run,
    write_scores,
)
from tests.helpers.running import shell

HTML = "</script><img src=x onerror=alert(1)>\"'&"
# Three classes of which each is once taken for the next, as write_scores writes them.
CURVE = {
    "positive": [1, 3],
    "negative": [3, 1],
    "probability": [0.2, 0.8],
    "rocauc": 0.75,
    "ap": 0.8,
}


def page(*folders: Path) -> str:
    return document.page(*find_runs([*folders]))


def figures(text: str) -> dict[str, dict]:
    """The data and the layout of each chart of a page, by its title."""
    titles = re.findall(r'class="card" aria-label="([^"]*)".*?id="(chart-\w+)"', text, re.DOTALL)
    decode, found = json.JSONDecoder(object_hook=unpack).raw_decode, {}
    for title, name in titles:
        rest = text[text.index("Plotly.newPlot(") :].partition(f'"{name}",')[2].lstrip()
        data, end = decode(rest)
        found[title] = {"data": data, "layout": decode(rest[end:].lstrip(", \n"))[0]}
    return found


def unpack(value: dict) -> object:
    """Read the arrays that Plotly writes as base64."""
    if "bdata" not in value:
        return value
    array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return array.reshape(*map(int, value.get("shape", "-1").split(","))).tolist()


def cells(text: str, heading: str) -> list[list[str]]:
    """The rows of the tables of a section, without their marks."""
    section = re.search(rf"<h2>{heading}</h2>(.*?)</section>", text, re.DOTALL)[1]
    return [
        [
            re.sub(r"<[^>]*>", "", cell).strip()
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)
    ]


def tiles(text: str) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r"<div><dt>([^<]*)</dt><dd>([^<]*)</dd><dd class=\"note\">([^<]*)</dd>", text
    )
    return {name: (value, note) for name, value, note in found}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", [0.5, 0.75, 0.625])


@pytest.fixture
def lock():
    """Hold the lock of a run, as the process that trains it does."""
    held = []

    def take(folder: Path) -> int:
        held.append(fd := os.open(folder / ".lock", os.O_RDWR | os.O_CREAT))
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    yield take
    for fd in held:
        os.close(fd)


def test_a_page_stands_alone_and_equal_runs_give_equal_pages(run, tmp_path):
    write_scores(run, "classes")
    other = write_run(tmp_path / "other", [0.5, 0.5], seed=1)
    for folders in ([run], [run, other]):
        text = page(*folders)
        assert text == page(*folders) and len(text) < 6e6
        assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', text.replace("data:", "", 0)[-200_000:])
        allowed = set(re.findall(r"'sha256-([^']+)'", text[:10_000]))
        scripts = re.findall(
            r"<script[^>]*>(.*?)</script>", text[text.index("</head>") :], re.DOTALL
        )
        digests = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
        assert digests == allowed and "unsafe-eval" not in text[:10_000]
        links = re.findall(r'<li><a href="#(\w+)">', text)
        assert len(links) > 5 and all(f'<section id="{name}">' in text for name in links)
    names = ("Curves", "Labels", "Confusion matrix", "Time of each phase", "Partition")
    assert all(f"<h2>{name}</h2>" in page(run) for name in names)


def test_curves_and_phases_draw_the_records(run):
    found = figures(page(run))
    accuracy = found["Accuracy"]
    assert [trace["name"] for trace in accuracy["data"][::2]] == ["Validation", "Test"]
    assert accuracy["data"][0]["y"] == [0.5, 0.75, 0.625] and accuracy["data"][0]["x"] == [1, 2, 3]
    assert accuracy["data"][1]["y"] == [0.75]  # the ring at the best epoch
    choices = accuracy["layout"]["updatemenus"][0]["buttons"]
    assert [each["label"] for each in choices] == ["Epochs", "Steps", "Time", "Log", "Linear"]
    assert choices[1]["args"][0]["x"][0] == [2, 4, 6] and choices[2]["args"][0]["x"][1] == [2.0]
    phases = found["Seconds of each round"]["data"]
    assert [trace["y"][1] for trace in phases] == pytest.approx([0.3, 0.1, 0.1, 0.5])
    assert found["Nodes of each cluster"]["data"][0]["y"] == [11, 9]
    assert cells(page(run), "Time of each phase")[1][1:] == ["0.90", "0.3000", "30.0%"]


def test_seeds_are_one_curve_with_a_band_and_two_metrics_have_no_axis_in_common(tmp_path):
    for seed, values in enumerate(([0.5, 0.7], [0.6, 0.9])):
        write_run(tmp_path / "sweep" / str(seed), values, seed=seed)
    text = page(tmp_path / "sweep")
    band, mean, *_ = figures(text)["Validation accuracy"]["data"]
    assert mean["y"] == pytest.approx([0.55, 0.8]) and mean["name"].endswith("(2 seeds)")
    spread = [statistics.stdev(pair) for pair in ((0.5, 0.6), (0.7, 0.9))]
    assert band["y"][:2] == pytest.approx([0.55 - spread[0], 0.8 - spread[1]])
    assert cells(text, "Settings")[1][2] == "0.8000 ± 0.1414"
    other = write_run(tmp_path / "mae", [3.0], metric="mae")
    found = figures(page(tmp_path / "sweep", other))
    assert {"Validation accuracy", "Validation MAE"} <= found.keys()
    # Many runs stay a page of less than 6 MB.
    many = [write_run(tmp_path / "many" / str(i), [0.1] * 2000, lr=i + 1.0) for i in range(30)]
    assert len(page(*many)) < 6e6


def test_the_answer_and_the_network_are_two_numbers_with_two_names(tmp_path):
    network = {"valid": 0.75, "test": 0.74, "train": 0.75}
    answer = {"text": "3 parts of trees"}
    base = {"title": "trees", "valid": 0.9, "test": 0.85}
    text = page(
        write_run(
            tmp_path / "run",
            [0.5, 0.75],
            network=network,
            answer=answer,
            base=base,
            best_valid=0.95,
        )
    )
    found = tiles(text)
    assert found["Validation accuracy"] == ("0.9500", "the answer: 3 parts of trees")
    assert found["Validation accuracy of the network"] == ("0.7500", "best value, after epoch 1")
    assert found["Test accuracy of a simple method"][1] == "trees; 0.9000 in validation"
    assert "Accuracy of the network" in figures(text)
    assert max(figures(text)["Accuracy of the network"]["data"][0]["y"]) == 0.75


def test_a_comparison_tells_what_differs_and_how_much_sooner_a_quality_is_reached(tmp_path):
    one = write_run(tmp_path / "one", [0.5, 0.6, 0.7, 0.8])
    two = write_run(tmp_path / "two", [0.6, 0.8], num_ranks=2, lr=0.02)
    text = page(one, two)
    found = {row[0]: row[1:3] for row in cells(text, "Differences of configuration")[1:]}
    assert found["parallel.num_ranks"] == ["1", "2"] and found["train.lr"] == ["0.01", "0.02"]
    assert {*found} == {"parallel.num_ranks", "train.lr", "train.epochs"}
    reached = cells(text, "Speed-up at equal quality")
    assert reached[2][1:] == ["4 (2.00×)", "4 (1.00×)", "2 (2.00×)"]
    runs = cells(text, "Runs")
    assert [row[0] for row in runs[1:]] == ["1 rank, lr 0.01", "2 ranks, lr 0.02"]


def test_a_sweep_is_a_table_of_means_and_what_does_not_count_is_named(tmp_path, capsys):
    for i, (lr, value) in enumerate(((0.1, 0.5), (0.1, 0.7), (0.2, 0.9), (0.2, 0.9))):
        write_run(tmp_path / "sweep" / str(i), [value], seed=i % 2, lr=lr, finished=i < 3)
    (tmp_path / "sweep" / "4").mkdir()
    (tmp_path / "sweep" / "4" / "config.yaml").write_text("seed: 3")
    several = comparison.compare(*find_runs([tmp_path / "sweep"]))
    head, _, *rows = several.summary().splitlines()
    assert head.startswith("3 runs of 2 settings")
    assert rows[0].split()[:3] == ["0.2", "1", "0.9000"] and "0.6000 ± 0.1414" in rows[1]
    assert "has no round to show" in several.problems[0] and "stopped" in several.problems[1]
    assert [run.folder.name for run in several.runs] == ["0", "1", "2", "3"]
    for i in range(2):
        write_run(tmp_path / "ogb" / str(i), [0.5], seed=i, data="ogb")
    text = page(tmp_path / "ogb")
    assert "For OGB&#39;s leaderboard" in text and "8 are missing" in text
    assert "0.4900 ± 0.0000 (2 seeds)" in text


def test_labels_tasks_targets_and_pairs_have_their_scores(run):
    found = rates([[2, 1], [0, 3]])
    assert found[0] == {"precision": 1.0, "recall": pytest.approx(2 / 3), "f1": 0.8}
    text = page(write_scores(run, "classes", names=["a", "b", "c"]))
    assert cells(text, "Labels")[1][:2] == ["a", "0.6667"]
    assert figures(text)["Test"]["data"][0]["z"][0] == pytest.approx([2 / 3, 1 / 3, 0])
    text = page(write_scores(run, "classes", 40))
    assert cells(text, "Confusion matrix")[1][2:] == ["1", "33.3%"]
    text = page(write_scores(run, "binary tasks", curve=CURVE))
    assert cells(text, "Labels")[2][1] == "0.5001" and "It is undefined for 1 task" in text
    assert figures(text)["ROC curve"]["data"][0]["y"] == [0, 0.75, 1]
    assert cells(text, "ROC and precision-recall")[1][1:] == ["0.7500", "0.8000", "50.0%", "0.0500"]
    text = page(write_scores(run, "links", ranking={"mrr": 0.5, "hits@10": 0.75}, each=100))
    assert ["Hits@10", "0.7500", "0.7500"] in cells(text, "Labels") and "its own 100 pairs" in text
    assert "Test: 1,200 nodes" in page(write_scores(run, "real values"))
    text = page(write_scores(run, "classes", typed=typed_record(("user", "tag"))))
    assert ["to_tag", "user", "tag", "20"] in cells(text, "Types and relations")


@pytest.mark.parametrize(
    "epochs, log, takes_lock, finished, expected",
    [
        (3, "", True, False, "Still running: 3 of 3 epochs so far, about 0 ms left."),
        (3, "", False, True, "Finished after 3 of 3 epochs."),
        (9, "", False, True, "Finished early, after 3 of 9 epochs."),
        (9, "", False, False, "Stopped after 3 of 9 epochs."),
        (9, "loss is nan", False, False, "Diverged after 3 of 9 epochs: loss is nan."),
        (9, "no space", False, False, "Ended by an error after 3 of 9 epochs: no space."),
    ],
)
def test_a_run_says_how_it_stands(epochs, log, takes_lock, finished, expected, tmp_path, lock):
    run = write_run(tmp_path / "run", [0.5, 0.6, 0.7], epochs=epochs, finished=finished)
    if takes_lock:
        lock(run)
    if log:
        (run / "train.log").write_text(f"2026-01-01 00:00:00 ERROR error: {log}\n")
    assert re.sub(r" +", " ", expected) in re.sub(r"<[^>]*>|\n", "", page(run))


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("summary.json", '{"best_valid": "high"}', "best_valid is 'high'"),
        ("summary.json", "{", "it is not JSON"),
        ("components.json", "[]", "it does not hold a JSON object"),
        ("components.json", '{"num_components": 3}', "components.json is damaged"),
        ("scores.json", '{"kind": "classes"}', "scores.json is damaged"),
        ("scores.json", "\0", "it is not JSON"),
        ("layout.npz", "PK", "is damaged or not a layout"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(name, content, said, run):
    (run / name).write_text(content)
    text, problems = document.build([read_run(run)])
    assert len(problems) == 1 and name in problems[0] and said in problems[0], problems
    assert "<h2>Curves</h2>" in text and 'class="warning"' in text


def test_damaged_and_missing_records_of_rounds(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_records(run, [{**records[0], "sizes": "many"}, records[1], records[3]])
    text, problems = document.build([read_run(run)])
    assert "lacks 1 of 3 rounds; the first one is round 2" in problems[0]
    assert "metrics.jsonl is damaged" in problems[1] and "<h2>Partition</h2>" not in text
    write_records(run, [])
    with pytest.raises(ValueError, match="has no round to show"):
        read_run(run)


def test_names_and_texts_are_never_html(run, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, HTML: HTML, "name": HTML}))
    write_scores(run, "classes", names=[HTML] * 3, typed=typed_record((HTML, "b")), unit=HTML)
    (run / "components.json").write_text(json.dumps(components([9, 1])))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records[0]["name"] = records[0]["metric"] = HTML
    write_records(run, records)
    other = write_run(
        tmp_path / "other", [0.5], lr=3.0, hardware=HTML, command=HTML, experiment=HTML
    )
    parts = {
        "names": np.array([HTML] * 4),
        "label_names": np.array([HTML] * 2),
        "title": np.array(HTML),
    }
    layout = write_layout(tmp_path / "layout", **parts)
    for folders in ([run], [other], [layout], [run, other], [other, run]):
        text = page(*folders)
        text = text[text.index("</head>") :]
        assert "<img" not in text.replace("<image", "") or "<img src=x" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text and "onerror=alert(1)>" not in text


def test_a_layout_is_a_map_of_all_its_points(tmp_path):
    run = write_layout(tmp_path / "flat")
    (found,) = [fig for name, fig in figures(page(run)).items() if name.startswith("toy: 4 points")]
    assert [trace["name"] for trace in found["data"]] == ["no class (1)", "right (2)", "left (1)"]
    assert {trace["type"] for trace in found["data"]} == {"scattergl"}
    assert "'unsafe-eval'" in page(run)[:10_000]
    solid = write_layout(tmp_path / "solid", **many_points(500, 3, dimensions=3))
    assert "scatter3d" in page(solid) and "'unsafe-eval'" not in page(solid)[:10_000]
    large = write_layout(tmp_path / "large", **many_points(63_000, 40))
    assert len(page(large)) < 10e6
    for part, wrong in (
        ("position", np.zeros((4, 4), np.float32)),
        ("position", np.full((4, 2), np.nan, np.float32)),
        ("labels", np.array([0, 1, 2, 9])),
        ("names", np.array(["a"])),
        ("title", None),
    ):
        folder = write_layout(
            tmp_path / f"wrong {part} {wrong is None} {np.size(wrong)}{time.time()}",
            **{part: wrong},
        )
        with pytest.raises(ValueError, match=r"layout\.npz"):
            read_layout(folder)


def test_the_command_writes_pages_and_replaces_nothing_else(run, tmp_path):
    write_layout(tmp_path / "layout")
    done = shell("scripts.report", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "run/report.html\n"), done.stderr
    done = shell("scripts.report", "run", "layout", cwd=tmp_path)
    assert done.returncode == 0 and "report-with-layout" in done.stdout, done.stderr
    (tmp_path / "mine.html").write_text("mine")
    for arguments, said in (
        (["run", "--output", "mine.html"], "error: --output=mine.html .*--overwrite"),
        (["run", "--output", "run/summary.json"], "error: .*no command replaces such a file"),
        (["none"], "error: none is not a run directory: it does not exist"),
    ):
        done = shell("scripts.report", *arguments, cwd=tmp_path)
        assert done.returncode and re.fullmatch(f"{said}.*\n", done.stderr), done.stderr
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert choose_output([run]) == run / "report.html"


@pytest.mark.system
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_chart_and_runs_no_planted_script(dark, run, browser, tmp_path):
    planted = "<script>document.title = 'planted'</script>"
    write_scores(run, "classes", 20, names=[f"class {i}{planted}" for i in range(20)])
    layout = write_layout(tmp_path / "layout", title=np.array(planted))
    for folder in (run, layout):
        output = tmp_path / "page.html"
        output.write_text(page(folder))
        browser.open(output, width=1300, dark=dark)
        number = page(folder).count('class="card"')
        browser.wait_for(f"document.querySelectorAll('.main-svg').length >= 2 * {number}")
        assert browser.run("document.title") != "planted"
    output.write_text(page(run))
    browser.open(output, width=1300, dark=dark)
    search = "const f = document.querySelector('#labels input'); f.value = 'class 7'; "
    browser.run(f"{search} f.dispatchEvent(new Event('input', {{bubbles: true}}))")
    shown = "[...document.querySelectorAll('#labels tbody tr')].filter(r => !r.hidden).length"
    assert browser.run(shown) == 1
