"""Run directories with names, numbers and files that no run writes: a page is written, or one line says why not."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.helpers.hostile import Case, check
from tests.helpers.report_runs import write_run, write_scores

pytestmark = pytest.mark.slow

REPORT = "scripts.report run"
HTML = "</script><img src=x onerror=alert(1)>\"'&%{y}"
OF_SCORES = "run/scores.json is damaged: "


@dataclasses.dataclass(frozen=True)
class Shown:
    """A hostile run whose page is written none the less.

    Args:
        name: what is wrong; the test's id
        files: writes more into the folder, which has a whole run called ``run``
        texts: texts of the page
        problem: the line of standard error, and a problem on the page; "" for none
        absent: texts that the page must not have
    """

    name: str
    files: Callable[[Path], object]
    texts: tuple[str, ...] = ()
    problem: str = ""
    absent: tuple[str, ...] = ("onerror=alert(1)>", "Scores after")
    typed: str = REPORT


def scores(kind: str, num_labels: int = 3, /, **fields) -> Callable[[Path], object]:
    return lambda folder: write_scores(folder / "run", kind, num_labels, **fields)


def text(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "run" / "scores.json").write_text(content)


def configured(**values) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        path = folder / "run" / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))

    return write


def another(**values) -> Callable[[Path], object]:
    """Write a second run whose configuration differs by these values."""

    def write(folder: Path) -> None:
        run = write_run(folder / "other", [0.5])
        config = yaml.safe_load((run / "config.yaml").read_text()) | values
        (run / "config.yaml").write_text(yaml.safe_dump(config))

    return write


def why(**fields) -> Callable[[Path], object]:
    """Write an explanation of a right prediction, and none of a wrong one."""
    one = {
        "id": "a",
        "label": HTML,
        "unit": "log odds",
        "truth": HTML,
        "prediction": 0.5,
        "columns": [{HTML: HTML, "share": 0.5}],
        "neighbours": [],
        "edges": [],
        "atoms": [],
        "notes": [HTML],
        **fields,
    }
    return lambda folder: (folder / "run" / "why.json").write_text(
        json.dumps({"right": [one], "wrong": []})
    )


ESCAPED = "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;%{y}"
KEPT = ("onerror=alert(1)>",)  # scores are shown, and no name is HTML
PAGES = [
    Shown(
        "names of classes are HTML",
        scores("classes", names=[HTML, "", "\u202eevil\x1b[2J"]),
        (ESCAPED,),
        absent=KEPT,
    ),
    Shown(
        "names of tasks are HTML", scores("binary tasks", names=[HTML] * 3), (ESCAPED,), absent=KEPT
    ),
    Shown(
        "a name of a megabyte",
        scores("classes", names=["a" * 10**6, "b", "c"]),
        ("a" * 59 + "…",),
        absent=("a" * 10**6 + "</",),
    ),
    Shown(
        "a unit and a metric are HTML",
        scores("real values", unit=HTML, metric=HTML),
        (ESCAPED,),
        absent=KEPT,
    ),
    Shown(
        "1,000 classes",
        scores("classes", 1000),
        ("1,000 classes: the run recorded no scores of each.",),
    ),
    Shown(
        "200 classes",
        scores("classes", 200),
        ("All 200 classes", "most frequent wrong predictions"),
        absent=KEPT,
    ),
    Shown("no class", scores("classes", 0), ("0 classes: the run recorded no scores of each.",)),
    Shown("one class", scores("classes", 1, confusion=[[3]]), ("Confusion matrix",), absent=KEPT),
    Shown(
        "empty splits",
        scores("classes", rows=0, labels=[0] * 3, confusion=[[0] * 3] * 3),
        ("Test: 0 nodes",),
        absent=(*KEPT, "Confusion matrix", "nan"),
    ),
    Shown(
        "tasks without a score",
        scores("binary tasks", score=[None] * 3),
        ("25.0%",),
        absent=(*KEPT, "median"),
    ),
    Shown(
        "pairs of an empty split",
        scores("links", rows=0, negatives=0),
        ("Test: 0 pairs and 0 that are not linked",),
    ),
    Shown("keys that nobody knows", scores("links", more={"a": [HTML]}), ("Test: 1,200 pairs",)),
    Shown(
        "NaN for a score",
        scores("real values", 1, score=[float("nan")]),
        problem=OF_SCORES + "score is [nan]",
    ),
    Shown(
        "numbers as text",
        scores("classes", labels=["3", 3, 3]),
        problem=OF_SCORES + "labels is ['3', 3, 3]",
    ),
    Shown("true for a number", scores("classes", rows=True), problem=OF_SCORES + "rows is True"),
    Shown(
        "a number below 0",
        scores("classes", labels=[-1, 3, 3]),
        problem=OF_SCORES + "labels is [-1, 3, 3]",
    ),
    Shown(
        "a number of 30 digits",
        scores("links", negatives=10**30),
        problem=f"{OF_SCORES}negatives is {10**30}",
    ),
    Shown(
        "a number of 5,000 digits", text('{"kind": ' + "9" * 5000 + "}"), problem=OF_SCORES + "<*>"
    ),
    Shown(
        "a matrix that is no square",
        scores("classes", confusion=[[1, 2], [1]] * 2),
        problem=OF_SCORES + "confusion is [[1, 2], [1], [1, 2], [1]]",
    ),
    Shown(
        "fewer names than classes",
        scores("classes", names=["a"]),
        problem=OF_SCORES + "names is ['a']",
    ),
    Shown(
        "a kind that nobody knows",
        scores("classes", kind=[HTML]),
        problem=OF_SCORES + "kind is <*>",
    ),
    Shown(
        "no splits",
        scores("classes", splits={"train": 1}),
        problem=OF_SCORES + "splits is {'train': 1}",
    ),
    Shown("a file of zeros", text("\0" * 100), problem=OF_SCORES + "it is not JSON <*>"),
    Shown(
        "half a file", text('{"epoch": 3, "kind": "cla'), problem=OF_SCORES + "it is not JSON <*>"
    ),
    Shown("an empty file", text(""), problem=OF_SCORES + "it is empty"),
    Shown(
        "a list in place of an object",
        text("[1]"),
        problem=OF_SCORES + "it does not hold a JSON object",
    ),
    Shown("brackets without an end", text("[" * 10**5), problem=OF_SCORES + "it is not JSON <*>"),
    Shown(
        "a folder",
        lambda folder: (folder / "run" / "scores.json").mkdir(),
        problem="run/scores.json is a directory, not a file",
    ),
    Shown("a foreign run with a key that is HTML", configured(**{HTML: HTML}), (ESCAPED,)),
    Shown(
        "explanations with HTML",
        why(),
        (f"a: predicted {ESCAPED} (0.5), truth {ESCAPED}",),
        absent=KEPT,
    ),
    Shown(
        "an explanation without its id",
        why(id=3),
        problem="run/why.json is damaged: one of the right <*>",
    ),
    Shown(
        "an explanation of HTML as a molecule",
        why(id=HTML, atoms=[0.5]),
        ("The molecule is not drawn, since RDKit reads another one in its SMILES.",),
        absent=KEPT,
    ),
    Shown(
        "runs that differ in a key that is HTML",
        another(**{HTML: 1}),
        (ESCAPED,),
        typed="scripts.report run other",
    ),
    Shown(
        "runs that differ in 300 keys",
        another(trainer={f"key_{i}": i for i in range(300)}),
        ("289 more keys",),
        typed="scripts.report run other",
    ),
    Shown(
        "runs that differ in the kind of a value",
        another(train={"lr": [{"a": 1}], "epochs": 1}),
        ("train.lr",),
        typed="scripts.report run other",
    ),
]


@pytest.mark.parametrize("case", PAGES, ids=lambda case: case.name)
def test_a_page_is_written(case, tmp_path):
    def write(folder: Path) -> None:
        write_run(folder / "run", [0.5, 0.6])
        case.files(folder)

    result = check(Case(case.name, case.typed, None, write), tmp_path)
    page = Path(tmp_path, result.stdout.splitlines()[-1]).read_text()
    body = (
        page.partition("<main>")[2].partition("</main>")[0]
        + page.partition("<header>")[2].partition("</header>")[0]
    )
    assert "\x1b" not in result.stdout + result.stderr
    for shown in case.texts:
        assert shown in body, case.name
    for absent in case.absent:
        assert absent not in body, case.name
    if case.problem:
        before, _, after = case.problem.partition("<*>")
        assert result.stderr.startswith(before) and result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.endswith(f"{after}\n") and 'class="warning"' in body
    else:
        assert not result.stderr and 'class="warning"' not in body


ERRORS = [
    Case(
        "a page onto the scores of a run",
        f"{REPORT} --output run/scores.json",
        "--output=run/scores.json belongs to the run <*>/run, and no command replaces such a file. Give another name",
        lambda folder: write_scores(write_run(folder / "run", [0.5]), "classes"),
    ),
    Case(
        "a folder with scores alone",
        REPORT,
        "run is not a run directory: it has no config.yaml",
        lambda folder: (folder / "run").mkdir() or write_scores(folder / "run", "classes"),
    ),
    Case(
        "a configuration that is a list",
        REPORT,
        "run/config.yaml is not a configuration: it holds no keys",
        lambda folder: (write_run(folder / "run", [0.5]) / "config.yaml").write_text(
            json.dumps([HTML])
        ),
    ),
]


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)
