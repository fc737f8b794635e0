import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects
import pytest
import yaml

from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.pipeline.training import run
from parallel_epochs.scripts import report
from parallel_epochs.scripts.report import charts, runs as report_runs
from parallel_epochs.scripts.report.label_scores import rates, read_scores
from tests.helpers.report_runs import components, partition, write_records, write_run, write_scores
from tests.helpers.running import TOY, train

VOID = ("meta", "br", "input")
LOCAL = ("href", "src", "srcset", "data", "action", "poster", "background")


class Page(HTMLParser):
    """What a page holds; every tag that is opened is closed, in order.

    Attributes:
        elements: a name and attributes each.
        text: what a reader sees, without scripts.
        spec: the charts and what they share.
    """

    def __init__(self, document: str):
        super().__init__()
        self.document, self.elements, self.words, self._open, self.spec = document, [], [], [], {}
        self.feed(document)
        assert not self._open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script" and self.elements[-1][1].get("id") == "charts":
            self.spec = json.loads(data)
        elif not self._open or self._open[-1] not in ("script", "style"):
            self.words.append(data)

    def chart(self, title: str) -> dict:
        names = re.findall(r'<h3 id="(chart-\d+)-title">(.*?)</h3>', self.document)
        (name,) = (name for name, found in names if found == title)
        return next(chart for chart in self.spec["charts"] if chart["id"] == name)

    def titles(self) -> list[str]:
        return re.findall(r'<h3 id="chart-\d+-title">(.*?)</h3>', self.document)


def page_of(*folders: Path) -> Page:
    return Page(report.page(*report.find_runs(list(folders))))


@pytest.fixture(autouse=True)
def small_library(request, monkeypatch):
    """Most pages do without the library, which is five megabytes to parse."""
    if "whole_pages" not in request.fixturenames:
        monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* Plotly */")


@pytest.fixture
def whole_pages():
    pass


@pytest.fixture(scope="module")
def folder_of_runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def two_runs(configure, folder_of_runs):
    """Two real runs, for tests that only read them; the first of these trains them."""
    folders = [folder_of_runs / name for name in ("a", "b<b>")]
    for seed, folder in enumerate(folders):
        if not folder.exists():
            folder.mkdir()
            run(
                configure(*TOY, f"seed={seed}", "train.eval_every=2"),
                folder,
                "python -m pipeline.train <toy>",
            )
    return folders


def test_a_page_stands_alone_and_shows_everything(two_runs, whole_pages):
    one = page_of(two_runs[0])
    summary = json.loads((two_runs[0] / "summary.json").read_text())
    for text in (
        "python -m pipeline.train <toy>",
        f"{summary['test']:.4f}",
        summary["weights_sha256"][:16],
        "directed edges kept",
        "The graph is connected: 240 nodes",
        "Validation ROC-AUC",
        summary["hardware"],
        f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB",
        "Finished after 4 of 4 epochs.",
        "train.lr",
    ):
        assert text in one.text
    assert one.titles() == [
        "ROC-AUC",
        "Training loss",
        "Gradient norm",
        "ROC curve",
        "Precision-recall curve",
        "Calibration",
        "Seconds of each round",
        "Nodes of each cluster",
        "Edges kept within each cluster",
    ]
    both = page_of(*two_runs)
    assert (
        "b&lt;b&gt;" in both.document
        and "2 seeds (0, 1)" in both.text
        and "Speed-up" not in both.text
    )
    for page in (one, both):
        assert len(page.document.encode()) < 6_000_000
        for tag, attributes in page.elements:
            assert tag not in ("link", "img", "iframe", "b")
            assert all((attributes.get(name) or "#").startswith("#") for name in LOCAL)
            assert not any(name.startswith("on") for name in attributes)
        (policy,) = (
            a["content"]
            for _, a in page.elements
            if a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and "http" not in policy
        for chart in page.spec["charts"]:  # Plotly itself knows every property and its values
            plotly.graph_objects.Figure(chart["data"], chart["layout"])


def test_smoothed_scores_stand_beside_those_of_the_model(tmp_path):
    smoothed = {
        "method": "correct_and_smooth",
        "smoothing_alpha": 0.8,
        "valid": 0.8765,
        "test": 0.8642,
    }
    text = page_of(write_run(tmp_path / "1", [0.5, 0.8], smoothed=smoothed)).text
    assert "; 0.8765 smoothed" in text and "at the best validation; 0.8642 smoothed" in text
    assert (
        " smoothed"
        not in page_of(write_run(tmp_path / "2", [0.5, 0.8], smoothed={"test": "0.9"})).text
    )


def test_equal_runs_give_equal_pages(two_runs):
    for folders in (two_runs[:1], two_runs):
        assert len({page_of(*folders).document for _ in range(2)}) == 1


def test_curves_draw_the_records(tmp_path):
    page = page_of(write_run(tmp_path / "1", [0.5, None, 0.8], lrs=[0.1, 0.2, 0.2]))
    valid, test, _train = page.chart("Accuracy")["data"]
    assert (valid["name"], valid["y"], test["name"], test["y"]) == (
        "Validation",
        [0.5, None, 0.8],
        "Test",
        [0.49, None, 0.79],
    )
    assert page.spec["xs"][valid["meta"]["x"]] == {
        "step": [2, 4, 6],
        "epochs": [1, 2, 3],
        "wall_seconds": [1, 2, 3],
    }
    assert page.chart("Accuracy")["marks"] == [
        {"x": {"step": 6, "epochs": 3, "wall_seconds": 3.0}, "text": "best: epoch 3"}
    ]
    assert page.chart("Learning rate")["data"][0]["y"] == [0.1, 0.2, 0.2]
    phases = {trace["name"]: trace["y"] for trace in page.chart("Seconds of each round")["data"]}
    assert phases == {
        "Training": [0.3] * 3,
        "Waiting for batches": [0.1] * 3,
        "Synchronising ranks": [0.1] * 3,
        "Evaluating and saving": [0.5] * 3,
    }
    assert "Training 0.90 0.3000 30.0%" in page.text


def test_runs_that_differ_in_their_seeds_are_one_curve_with_a_band(tmp_path):
    folders = [
        write_run(tmp_path / str(seed), [value, value + 0.1], seed=seed)
        for seed, value in enumerate((0.5, 0.6, 0.7))
    ]
    folders.append(write_run(tmp_path / "other", [0.4, 0.5], lr=0.2))
    page = page_of(*folders)
    traces = page.chart("Validation accuracy")["data"]
    roles = [(trace["meta"]["role"], trace["meta"]["key"]) for trace in traces]
    assert roles == [
        ("band", "line-0"),
        ("mean", "line-0"),
        *[("seed", "line-0")] * 3,
        ("best", "line-0"),
        ("mean", "line-1"),
        ("best", "line-1"),
    ]
    band, mean = traces[:2]
    assert mean["y"] == [0.6, 0.7] and mean["customdata"] == [[0.1, 3], [0.1, 3]]
    assert band["meta"]["low"] == [0.5, 0.6] and band["meta"]["high"] == [0.7, 0.8]
    assert [trace["y"] for trace in traces[2:5]] == [[0.5, 0.6], [0.6, 0.7], [0.7, 0.8]]
    assert traces[5]["text"][2] == "lr 0.01, seed 2: best epoch 2, 0.8000"
    assert "lr 0.01 3 0.7000 ± 0.1000" in page.text
    legend = [
        attributes
        for tag, attributes in page.elements
        if tag == "button" and "data-key" in attributes
    ]
    assert [item["class"] for item in legend[:3]] == ["key", "seeds", "key"]
    # A seed that was stopped: the mean goes on over those that more than half of the runs are.
    write_run(tmp_path / "short", [0.1], seed=9, finished=False, epochs=2)
    mean = page_of(*folders[:3], tmp_path / "short").chart("Validation accuracy")["data"][1]
    assert mean["y"] == [0.475, 0.7] and [n for _, n in mean["customdata"]] == [4, 3]


def test_two_metrics_have_no_axis_in_common(tmp_path):
    folders = [
        write_run(tmp_path / "acc", [0.5, 0.6]),
        write_run(tmp_path / "roc", [0.9, 0.8], metric="rocauc"),
    ]
    page = page_of(*folders)
    assert page.titles()[:6] == [
        "Validation accuracy",
        "Test accuracy",
        "Training loss",
        "Validation ROC-AUC",
        "Test ROC-AUC",
        "Training loss",
    ]
    assert [
        t["y"] for t in page.chart("Validation accuracy")["data"] if t["meta"]["role"] == "mean"
    ] == [[0.5, 0.6]]
    assert (
        "0.6000 accuracy" in page.text
        and "0.9000 ROC-AUC" in page.text
        and "different data or metrics" in page.text
    )


def test_what_differs_is_told_and_nothing_else(tmp_path):
    page = page_of(
        write_run(tmp_path / "a", [0.5], lr=0.1), write_run(tmp_path / "b", [0.6], lr=0.2)
    )
    (differing,) = re.findall(r'<section id="differences">.*?</section>', page.document)
    assert re.findall(r'data-value="([^"]*)"', differing) == ["lr 0.1", "0.1", "lr 0.2", "0.2"]
    assert ">train.lr<" in differing and "data.source" not in differing
    many = page_of(
        write_run(tmp_path / "c", [0.5], num_ranks=4, lr=0.1, lr_scaling="sqrt"), tmp_path / "a"
    )
    (differing,) = re.findall(r'<section id="differences">.*?</section>', many.document)
    assert "processes that train together" in differing  # each key in a row, with its meaning


def test_one_component_is_a_sentence_and_one_cluster_too(tmp_path):
    folder = write_run(tmp_path / "1", [0.5, 0.6])
    assert (
        "Connected components The graph is connected: 20 nodes and 40 directed edges."
        in page_of(folder).text
    )
    (folder / "components.json").write_text(json.dumps(components([20, 3, 1])))
    page = page_of(folder)
    assert "The graph has 3 components, including 1 single node." in page.text
    assert page.chart("Nodes of each component")["data"][0]["y"] == [20, 3, 1]
    records = read_records(folder / "metrics.jsonl")
    write_records(folder, [partition(0, (20,)), *records[1:]])
    assert "1 cluster, 20 of 100 directed edges kept" in page_of(folder).text
    assert "Nodes of each cluster" not in page_of(folder).titles()
    sizes = tuple(range(1, 400))
    write_records(folder, [partition(0, sizes), *records[1:]])
    assert page_of(folder).chart("Nodes of each cluster")["data"][0]["type"] == "histogram"


@pytest.mark.slow
def test_the_partition_is_the_first_of_the_run_also_after_a_resume(configure, tmp_path):
    for epochs in (2, 4):
        train(configure(*TOY, f"train.epochs={epochs}", "train.eval_every=1"), tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [(r["kind"], r["round"]) for r in records] == [
        ("partition", 0),
        ("round", 0),
        ("round", 1),
        ("partition", 2),
        ("round", 2),
        ("round", 3),
    ]
    assert "as drawn for round 1:" in page_of(tmp_path / "run").text


def test_keys_that_differ_begin_with_the_model_and_the_data(tmp_path):
    folders = [
        write_run(tmp_path / name, [0.5], lr=lr, num_ranks=ranks, data=data)
        for name, lr, ranks, data in (("a", 0.1, 1, "file"), ("b", 0.2, 2, "store"))
    ]
    for number, folder in enumerate(folders):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config |= {
            "name": f"run {number}",
            "device": f"cuda:{number}",
            "evaluation": {"num_views": number},
            "kernel": f"k{number}",
        }
        config["model"] |= {"width": number, **({"norm": number} if number else {"hidden": number})}
        config["train"]["eval_every"] = number
        config["model"]["name"] = config["model"].pop("name") + str(number)  # behind the others
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    keys = report_runs.differing(report.find_runs(folders)[0])
    assert keys == [
        "model.name",
        "model.width",
        "model.hidden",
        "model.norm",
        "data.source",
        "num_ranks",
        "train.lr",
        "train.eval_every",
        "evaluation.num_views",
        "kernel",
        "name",
        "device",
    ]
    config["trainer"] = {f"key_{number}": number for number in range(5)}
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    document = page_of(*folders).document
    assert (
        "<summary>5 more keys</summary>" in document
        and document.count('data-value="model.norm"') == 1
    )


def test_scores_of_each_class_and_what_was_confused(tmp_path):
    folder = write_scores(write_run(tmp_path / "run", [0.5]), "classes", names=["a", "<i>", "c"])
    page = page_of(folder)
    assert (
        page.text.count("Classes") == page.text.count("Confusion matrix") == 2
    )  # with the list of sections
    assert "Training: 1,200 nodes. Validation: 1,200 nodes. Test: 1,200 nodes." in page.text
    assert [found["precision"] for found in rates([[2, 1], [0, 1]])] == [1.0, 0.5] and rates([[0]])[
        0
    ]["f1"] is None
    assert (
        "<i> 0.6667 0.6667 0.6667 0.6667 3 3 3" in page.text
        and "Scores after epoch 2." in page.text
    )
    assert (
        "Test a <i> c a 2 1 0 <i> 0 2 1 c 1 0 2 Scroll sideways to see all columns. Validation a <i>"
        in page.text
    )
    assert 'title="1 of 3 nodes of &lt;i&gt; were predicted as c"' in page.document
    page = page_of(write_scores(folder, "classes", 31))
    assert (
        "All 31 classes" in page.text
        and "most frequent wrong predictions among 31 classes" in page.text
    )
    assert page.text.count("0 1 1 33.3%") == 2 and "matrix" not in page.document.partition(
        "<main>"
    )[2].partition("<script")[0].replace("Confusion matrix", "")
    page = page_of(write_scores(folder, "classes", 2, labels=[0, 0], confusion=[[0, 0], [0, 0]]))
    assert "0 – – – – 0 0 0" in page.text and "Confusion matrix" not in page.text
    assert (
        "1,000 classes: the run recorded no scores of each."
        in page_of(write_scores(folder, "classes", 1000)).text
    )
    (folder / "scores.json").unlink()
    assert "Classes" not in page_of(folder).text


def test_scores_of_each_task_target_and_the_pairs(tmp_path):
    folder = write_scores(write_run(tmp_path / "run", [0.5]), "binary tasks")
    text = page_of(folder).text
    assert (
        "Test ROC-AUC of a task: from 0.5001 (task 1) to 0.5002 (task 2), median 0.5001. It is undefined for 1 task"
        in text
        or "median 0.5002. It is undefined for 1 task" in text
    )
    assert "0 – – 25.0% 40 40 40 1 0.5001 0.5001 25.0% 40 40 40" in text
    assert "Targets" in page_of(write_scores(folder, "real values")).text
    text = page_of(write_scores(folder, "links")).text
    assert (
        "Pairs Training: 1,200 pairs and 50 that are not linked." in text
        and "Scores after" not in text
    )
    assert "Ranking: not computed: " in text and "Curves: not computed: " in text


CURVE = {
    "positive": [0, 1, 9],
    "negative": [70, 19, 1],
    "probability": [0.01, 0.2, 0.9],
    "rocauc": 0.875,
    "ap": 0.75,
}


def test_binary_labels_and_links_have_curves(tmp_path):
    folder = write_scores(write_run(tmp_path / "run", [0.5]), "binary tasks", curve=CURVE)
    page = page_of(folder)
    assert (
        "Test 0.8750 0.7500 10.0% 0.0370" in page.text
        and "The labels of all 3 tasks are taken" in page.text
    )
    drawn = {
        name: page.chart(name)["data"][1]
        for name in ("ROC curve", "Precision-recall curve", "Calibration")
    }
    assert drawn["ROC curve"]["x"] == [0, 0.0111111, 0.222222, 1] and drawn["ROC curve"]["y"] == [
        0,
        0.9,
        1,
        1,
    ]
    assert drawn["Precision-recall curve"]["y"] == [0.9, 0.333333, 0.1]
    assert drawn["Calibration"]["x"] == [0.01, 0.2, 0.9] and drawn["Calibration"]["customdata"] == [
        70,
        20,
        10,
    ]
    two = page_of(write_scores(folder, "classes", 2, names=["no", "yes"], curve=CURVE))
    assert "Class yes counts as positive." in two.text and "Calibration error" in two.text
    assert "ROC" not in page_of(write_scores(folder, "classes", 3)).text
    ranking = {"mrr": 0.25, "hits@1": 0.125}
    text = page_of(write_scores(folder, "links", curve=CURVE, ranking=ranking, each=None)).text
    assert (
        "MRR 0.2500 0.2500 Hits@1 0.1250 0.1250" in text and "among all pairs of its split" in text
    )
    assert "Precision-recall curve" in text and "Calibration" not in text
    assert (
        "its own 7 pairs"
        in page_of(write_scores(folder, "links", curve=CURVE, ranking=ranking, each=7)).text
    )


@pytest.mark.parametrize(
    "field, value",
    [
        ("curve", 3),
        ("curve", CURVE | {"positive": [1]}),
        ("curve", CURVE | {"probability": [0.1, 0.2, 7]}),
        ("curve", CURVE | {"positive": [0, 0, 0]}),
        ("curve", CURVE | {"rocauc": None}),
        ("ranking", [1]),
        ("ranking", {"mrr": "x"}),
        ("each", -1),
    ],
)
def test_a_damaged_curve_is_named(field, value, tmp_path):
    fields = {"curve": CURVE, "ranking": {"mrr": 0.5}, "each": None} | {field: value}
    with pytest.raises(ValueError, match=f"scores.json is damaged: {field} is"):
        read_scores(write_scores(write_run(tmp_path / "run", [0.5]), "links", **fields))


def test_speed_up_at_equal_quality(tmp_path):
    first = write_run(tmp_path / "first", [0.5, 0.7, 0.8, 0.8], hardware="2 x Some CPU, 4 GiB")
    fast = write_run(tmp_path / "fast", [0.6, 0.9], num_ranks=4, hardware="2 x Some CPU, 4 GiB")
    page = page_of(first, fast)
    assert (
        "Validation accuracy 0.8000, the best value of the first run: Run Steps Epochs Wall time (s) "
        "1 rank 6 (1.00×) 3 (1.00×) 3 (1.00×) 4 ranks 4 (1.50×) 8 (0.38×) 2 (1.50×)"
    ) in page.text
    assert "Ranks shared the cores" in page.text and "highest that all" not in page.text
    slow = write_run(tmp_path / "slow", [0.5, None, 0.75, 0.7], num_ranks=2, lr_scaling="linear")
    page = page_of(first, fast, slow)
    assert (
        "4 ranks, unscaled 4 (1.50×) 8 (0.38×) 2 (1.50×) 2 ranks, linear not reached" in page.text
    )
    assert (
        "Validation accuracy 0.7500, the highest value that all runs reached:" in page.text
        and "2 ranks, linear 6 (1.00×) 6 (0.50×)" in page.text
    )
    other = write_run(tmp_path / "other", [0.9], data="file")
    assert "There is none, as the runs have different data" in page_of(first, other).text


@pytest.mark.slow
def test_a_large_sweep_stays_below_six_megabytes(tmp_path, whole_pages):
    (one,), _ = report.find_runs(
        [write_run(tmp_path / "run", [0.5 + i / 10_007 for i in range(700)])]
    )
    runs = []
    for lr in range(20):
        for seed in range(8):
            rounds = [{**r, "loss": r["loss"] / (lr + seed + 3)} for r in one.rounds]
            runs.append(
                dataclasses.replace(
                    one, seed=seed, rounds=rounds, settings=one.settings | {"train.lr": lr + 1.0}
                )
            )
    page = Page(report.page(runs))
    assert len(page.document.encode()) < 6_000_000
    assert (
        "160 runs of 20 settings" in page.text
        and "6 settings with a lower validation metric are not" in page.text
    )
    best = [t for t in page.chart("Validation accuracy")["data"] if t["meta"]["role"] == "mean"]
    assert len(best) == charts.MAX_LINES and best[0]["y"][-1] == charts._short(0.5 + 699 / 10_007)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&%{y}"


def test_names_and_texts_are_never_html(tmp_path):
    name = HOSTILE.replace("/", "∕")
    folders = [
        write_run(
            tmp_path / f"{i}{name}",
            [0.5, 0.6],
            lr=i + 1,
            command=HOSTILE,
            metric=HOSTILE,
            hardware=HOSTILE,
            kernel=HOSTILE,
            experiment=HOSTILE,
            versions={HOSTILE: HOSTILE},
        )
        for i in range(2)
    ]
    for folder in folders:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["train"]["optimizer"] = f"{folder.name}{HOSTILE}"
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {HOSTILE: HOSTILE}))
        records = read_records(folder / "metrics.jsonl")
        write_records(folder, [{**records[0], "name": HOSTILE, "metric": HOSTILE}, *records[1:]])
        (folder / "train.log").write_text(f"2026-01-01 00:00:00,000 ERROR error: {HOSTILE}\n")
    (folders[1] / "summary.json").unlink()
    for chosen in (folders[:1], folders[1:], folders):
        page = page_of(*chosen)
        assert [attributes for tag, attributes in page.elements if tag == "script"] == [
            {"type": "application/json", "id": "charts"},
            {},
            {},
            {},
        ]
        assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.elements)
        assert HOSTILE in page.text
        # Plotly reads a few tags in names.
        names = [trace["name"] for chart in page.spec["charts"] for trace in chart["data"]]
        assert not any("<" in written for written in names)


def test_labels_say_what_differs(tmp_path):
    def labels(*runs: dict) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = [
            report.read_run(write_run(folder / name, [0.5], **run))
            for name, run in zip("abc", runs)
        ]
        return [label for label, _ in report_runs.groups(made)]

    four = dict(num_ranks=4)
    assert labels({}, four, {**four, "lr_scaling": "sqrt"}) == [
        "1 rank",
        "4 ranks, unscaled",
        "4 ranks, sqrt",
    ]
    assert labels(four, {**four, "parallel": "split"}) == ["parallel epochs", "split"]
    assert labels({}, {**four, "parallel": "split"}) == ["1 rank", "4 ranks, split"]
    assert labels({}, dict(lr_scaling="sqrt")) == ["unscaled", "sqrt"]
    assert labels({}, {}) == ["toy a", "toy b"]
    assert labels(dict(seed=0), dict(seed=1)) == [""]
    assert labels(dict(lr=0.1), dict(lr=0.1), {}) == ["lr 0.1, toy a", "lr 0.1, toy b", "lr 0.01"]
    assert labels({}) == ["toy a"]
