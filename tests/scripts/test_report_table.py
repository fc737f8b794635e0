"""Tables of runs, and figures of few bytes."""

import re
import statistics
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from parallel_epochs.scripts.report import figures, find_runs
from parallel_epochs.scripts.report.runs import groups
from tests.helpers.running import ROOT

HEAD = "run,metric,seed,num_ranks,lr_scaling,train.epochs,round,epochs,step,loss,lr,valid,test\n"


def test_the_table_of_the_results_tells_what_the_page_says():
    runs, _ = find_runs([ROOT / "docs" / "runs.csv"])
    page = (ROOT / "docs" / "evidence" / "results.md").read_text()
    assert len(runs) == 18
    for _, members in groups(runs):
        assert sorted(run.seed for run in members) == [0, 1, 2]
        ranks, scaling = members[0].settings["num_ranks"], members[0].settings["lr_scaling"]
        (row,) = re.findall(
            rf"^\| {ranks} \| {'' if ranks == 1 else scaling + ' '}\|.*", page, re.MULTILINE
        )
        for key in ("best_valid", "test"):
            values = [run.result[key] for run in members]
            told = f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}".replace(
                "0.", "."
            )
            assert told in row, f"{ranks} ranks, {scaling}: {key} is {told}"


def test_a_table_is_grouped_and_drawn_as_its_runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        HEAD + "a,rocauc,0,1,none,4,0,2,10,.5,.1,.6,.7\na,,,,,,1,4,20,.4,.1,.8,.75\n"
        "b,rocauc,0,2,none,4,0,4,10,.5,.1,.7,.7\n"
    )
    runs, left_out = find_runs([path])
    assert not left_out and [run.name for run in runs] == ["a", "b"]
    assert (
        runs[0].result["best_epoch"] == 4
        and runs[0].result["test"] == 0.75
        and runs[1].best() == 0.7
    )
    assert [label for label, _ in groups(runs)] == ["1 rank", "2 ranks"]
    assert runs[0].state.kind == "finished" and runs[0].reached(0.7)["step"] == 20
    figure, _ = figures.overlay(runs, ["step"])
    figures.save(figure, tmp_path / "figure.svg")
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD, "it has no rows"),
        ("run,epochs\na,1\n", "it lacks the columns metric, seed"),
        (
            HEAD + "a,rocauc,0,1,none,4,0,2,ten,.5,.1,.6,.7\n",
            "step of a is 'ten', which is not a number",
        ),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, error):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        find_runs([path])


def test_curves_are_thinned_and_digits_that_nobody_sees_are_left_out(tmp_path):
    figure = Figure()
    steps = np.arange(3000)
    figure.subplots().plot(
        steps, np.where(steps == 1500, 9, 0.012 * np.random.default_rng(0).normal(size=3000))
    )
    figures.save(figure, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    (curve,) = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #1f77b4', text
    )
    points = np.array(re.findall(r"[ML] (\S+) (\S+)", curve), float)
    assert 4 < len(points) < 1200 and np.ptp(points[:, 1]) > 200 and np.ptp(points[:, 0]) > 300
    thin = figures.shorten(
        '<svg>\n <path id="glyph" d="M 2906 2969\nL 3 4.5 \n"/>\n'
        '  <g transform="scale(0.015625)"><use x="1.23456" y="2.000000"/></g></svg>'
    )
    assert thin == (
        '<svg>\n<path id="glyph" d="M 2906 2969\nL 3 4.5\n"/>\n'
        '<g transform="scale(0.015625)"><use x="1.23" y="2"/></g></svg>'
    )
