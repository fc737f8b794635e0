"""The section of the report about types of nodes and relations, and the picture of the schema."""

import json
import re
from xml.etree import ElementTree

import pytest

from parallel_epochs.scripts import report
from parallel_epochs.scripts.report.label_scores import read_scores
from parallel_epochs.scripts.report.schema_picture import MAX_COLUMN, MAX_TYPES, place, schema_picture
from parallel_epochs.scripts.report.typed_section import typed_section
from tests.helpers.report_runs import partition, typed_record, write_run, write_scores

RECORD = {"metric": "acc", "typed": typed_record()}


def cells(html: str, label: str) -> list[list[str]]:
    """Return the texts of the rows of the table with a label."""
    table = re.search(f'aria-label="{label}">(.*?)</table>', html)[1]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]


def test_types_relations_and_scores_are_listed():
    edges = [10, 20, 30, 40] * 2
    part = partition(0) | {"relations": {"edges": edges, "kept": [10, 5, 30, 0] * 2}}
    html = typed_section(RECORD, part)
    assert cells(html, "Types of nodes")[:2] == [["paper (labelled)", "10", "0"], ["author", "100", "1"]]
    assert cells(html, "Relations") == [
        ["to_paper", "paper", "paper", "10", "0.0%"], ["to_author", "paper", "author", "20", "75.0%"],
        ["to_field", "paper", "field", "30", "0.0%"], ["to_institution", "paper", "institution", "40", "100.0%"]]
    assert cells(html, "Test score by neighbours")[:2] == [
        ["paper", "to_paper", "0.7500", "3", "–", "0"], ["paper", "rev_to_paper", "0.7500", "3", "–", "0"]]


@pytest.mark.parametrize("part", [None, partition(0), partition(0, (20,)) | {"relations": {"edges": [1] * 8, "kept": [
    1] * 8}}, partition(0) | {"relations": {"edges": [1], "kept": [1]}}, partition(0) | {"relations": 3}])
def test_without_clusters_nothing_is_said_of_cuts(part):
    assert [len(row) for row in cells(typed_section(RECORD, part), "Relations")] == [4] * 4


def test_the_picture_has_a_circle_for_each_type_and_an_arrow_for_each_pair():
    typed = typed_record()
    forward = [relation for relation in typed["relations"] if not relation["is_reverse"]]
    more = [*forward, {"source": "author", "name": "<b>", "target": "paper", "edges": 1234}]
    root = ElementTree.fromstring(schema_picture(typed["types"], more, "a & b"))
    assert len(root.findall("circle")) == 4 and len(root.findall("path")) == 5
    texts = [element.text for element in root.findall("text")]
    assert {"paper", "1,000", "to_paper 10", "<b> 1,234"} <= set(texts)
    radii = [float(circle.get("r")) for circle in root.findall("circle")]
    assert radii == sorted(radii) and radii[0] < radii[-1]
    left, top, width, height = map(float, root.get("viewBox").split())
    for circle in root.findall("circle"):
        x, y, r = (float(circle.get(key)) for key in ("cx", "cy", "r"))
        assert left <= x - r and x + r <= left + width and top <= y - r and y + r <= top + height


def test_many_relations_between_two_types_share_a_label():
    types = [{"name": "a", "nodes": 5}, {"name": "b", "nodes": 0}]
    several = [{"source": "a", "name": f"r{number}", "target": "b", "edges": number} for number in range(9)]
    root = ElementTree.fromstring(schema_picture(types, several, ""))
    assert [element.text for element in root.findall("text")][-5:] == ["r8 8", "r7 7", "r6 6", "r5 5", "5 more 10"]


@pytest.mark.parametrize("size", range(1, MAX_TYPES + 1))
@pytest.mark.parametrize("is_star", [False, True])
def test_circles_lie_apart(size, is_star):
    types = [{"name": str(number), "nodes": 7} for number in range(size)]
    circles = place(types, [{"source": "0", "target": kind["name"]} for kind in types] if is_star else [
        {"source": kind["name"], "target": kind["name"]} for kind in types])
    for number, one in enumerate(circles):
        for other in circles[:number]:
            far = ((one.x - other.x)**2 + (one.y - other.y)**2)**0.5
            assert far > one.radius + other.radius
    assert (len({circle.x for circle in circles}) == 2) == (is_star and 2 <= size <= MAX_COLUMN + 1 or size == 2)


def test_the_page_shows_it_and_tells_of_a_damaged_record(tmp_path):
    run = write_scores(write_run(tmp_path / "run", [0.5, 0.6]), "classes", typed=typed_record())
    html = report.page(*report.find_runs([run]))
    assert 'href="#types"' in html and '<svg class="schema"' in html
    many = typed_record(tuple(f"type{number}" for number in range(MAX_TYPES + 1)))
    assert "<svg" not in typed_section({"metric": "acc", "typed": many}, None)
    for key, value in (("types", []), ("labelled", 3), ("neighbours", [{"relation": 99}]),
                       ("relations", [{"name": "a"}]), ("types", [{"name": "a", "nodes": -1, "columns": 0}])):
        record = json.loads((run / "scores.json").read_text())
        write_scores(run, "classes", typed={**record["typed"], key: value})
        with pytest.raises(ValueError, match="scores.json is damaged: typed is"):
            read_scores(run)
        write_scores(run, "classes", typed=typed_record())
