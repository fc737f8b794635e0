"""The section of the report about types of nodes and relations."""

import json
import re

import pytest

from parallel_epochs.scripts import report
from parallel_epochs.scripts.report.label_scores import read_scores
from parallel_epochs.scripts.report.typed_section import typed_section
from tests.helpers.report_runs import partition, typed_record, write_run, write_scores

RECORD = {"metric": "acc", "typed": typed_record()}


def cells(html: str, label: str) -> list[list[str]]:
    """Return the texts of the rows of the table with a label."""
    table = re.search(f'aria-label="{label}">(.*?)</table>', html)[1]
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]
    ]


def test_types_relations_and_scores_are_listed():
    edges = [10, 20, 30, 40] * 2
    part = partition(0) | {"relations": {"edges": edges, "kept": [10, 5, 30, 0] * 2}}
    html = typed_section(RECORD, part)
    assert cells(html, "Types of nodes")[:2] == [
        ["paper (labelled)", "10", "0"],
        ["author", "100", "1"],
    ]
    assert cells(html, "Relations") == [
        ["to_paper", "paper", "paper", "10", "0.0%"],
        ["to_author", "paper", "author", "20", "75.0%"],
        ["to_field", "paper", "field", "30", "0.0%"],
        ["to_institution", "paper", "institution", "40", "100.0%"],
    ]
    assert cells(html, "Test score by neighbours")[:2] == [
        ["paper", "to_paper", "0.7500", "3", "–", "0"],
        ["paper", "rev_to_paper", "0.7500", "3", "–", "0"],
    ]


@pytest.mark.parametrize(
    "part",
    [
        None,
        partition(0),
        partition(0, (20,)) | {"relations": {"edges": [1] * 8, "kept": [1] * 8}},
        partition(0) | {"relations": {"edges": [1], "kept": [1]}},
        partition(0) | {"relations": 3},
    ],
)
def test_without_clusters_nothing_is_said_of_cuts(part):
    assert [len(row) for row in cells(typed_section(RECORD, part), "Relations")] == [4] * 4


def test_the_page_shows_it_and_tells_of_a_damaged_record(tmp_path):
    run = write_scores(write_run(tmp_path / "run", [0.5, 0.6]), "classes", typed=typed_record())
    html = report.page(*report.find_runs([run]))
    assert 'href="#types"' in html and 'aria-label="Relations"' in html
    for key, value in (
        ("types", []),
        ("labelled", 3),
        ("neighbours", [{"relation": 99}]),
        ("relations", [{"name": "a"}]),
        ("types", [{"name": "a", "nodes": -1, "columns": 0}]),
    ):
        record = json.loads((run / "scores.json").read_text())
        write_scores(run, "classes", typed={**record["typed"], key: value})
        with pytest.raises(ValueError, match="scores.json is damaged: typed is"):
            read_scores(run)
        write_scores(run, "classes", typed=typed_record())
