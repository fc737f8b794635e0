"""Tables of runs, and figures of few bytes."""

import re
import statistics
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from parallel_epochs.scripts.report import figures, find_runs
from parallel_epochs.scripts.report.runs import groups
from parallel_epochs.scripts.report.thin import keep, thin_svg
from tests.helpers.running import ROOT

HEAD = "run,metric,seed,num_ranks,lr_scaling,train.epochs,round,epochs,step,loss,lr,valid,test\n"


def test_the_table_of_the_results_tells_what_the_page_says():
    runs, _ = find_runs([ROOT / "docs" / "runs.csv"])
    page = (ROOT / "docs" / "results.md").read_text()
    assert len(runs) == 18
    for _, members in groups(runs):
        assert sorted(run.seed for run in members) == [0, 1, 2]
        ranks, scaling = members[0].settings["num_ranks"], members[0].settings["lr_scaling"]
        (row,) = re.findall(rf"^\| {ranks} \| {'' if ranks == 1 else scaling + ' '}\|.*", page, re.MULTILINE)
        for key in ("best_valid", "test"):
            values = [run.result[key] for run in members]
            told = f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}".replace("0.", ".")
            assert told in row, f"{ranks} ranks, {scaling}: {key} is {told}"


def test_a_table_is_grouped_and_drawn_as_its_runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "a,rocauc,0,1,none,4,0,2,10,.5,.1,.6,.7\na,,,,,,1,4,20,.4,.1,.8,.75\n"
                    "b,rocauc,0,2,none,4,0,4,10,.5,.1,.7,.7\n")
    runs, left_out = find_runs([path])
    assert not left_out and [run.name for run in runs] == ["a", "b"]
    assert runs[0].result["best_epoch"] == 4 and runs[0].result["test"] == 0.75 and runs[1].best() == 0.7
    assert [label for label, _ in groups(runs)] == ["1 rank", "2 ranks"]
    assert runs[0].state.kind == "finished" and runs[0].reached(0.7)["step"] == 20
    figure, _ = figures.overlay(runs, ["step"])
    figures.save(figure, tmp_path / "figure.svg")
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(("text", "error"), [
    (HEAD, "it has no rows"), ("run,epochs\na,1\n", "it lacks the columns metric, seed"),
    (HEAD + "a,rocauc,0,1,none,4,0,2,ten,.5,.1,.6,.7\n", "step of a is 'ten', which is not a number")])
def test_a_table_that_is_none_is_refused(tmp_path, text, error):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        find_runs([path])


@settings(max_examples=50, deadline=None)
@given(strategies.lists(strategies.tuples(*[strategies.floats(0, 100)] * 2), min_size=2, max_size=60),
       strategies.floats(0.01, 5))
def test_every_point_that_is_left_out_lies_near_the_line_that_replaces_it(points, tolerance):
    points = np.array(points)
    kept = np.flatnonzero(keep(points, tolerance))
    assert kept[0] == 0 and kept[-1] == len(points) - 1
    for first, last in zip(kept, kept[1:]):
        along = points[last] - points[first]
        for point in points[first + 1:last]:
            share = np.clip((point - points[first]) @ along / max(along @ along, 1e-300), 0, 1)
            assert np.linalg.norm(point - points[first] - share * along) <= tolerance + 1e-6


def test_curves_are_thinned_and_nothing_else_moves():
    line = "\nL ".join(f"{x}.123456 {0 if x != 5 else 9}" for x in range(11))
    text = (f'<svg>\n <path d="M {line}\n" clip-path="url(#p)"/>\n <path id="glyph" d="M 2906 2969\nL 3 4.5 \n"/>\n'
            '  <g transform="scale(0.015625)"><use x="1.23456" y="2.000000"/></g></svg>')
    thin = thin_svg(text)
    assert re.findall(r"[ML] \S+ \S+", thin) == ["M 0.1 0", "L 4.1 0", "L 5.1 9", "L 6.1 0", "L 10.1 0",
                                                 "M 2906 2969", "L 3 4.5"]
    assert 'scale(0.015625)"><use x="1.23" y="2"' in thin
