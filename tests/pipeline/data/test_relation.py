"""The relation that task.relation names, and what is no relation."""

import pytest

from parallel_epochs.pipeline.data.relation import (
    check_wanted,
    choose_relation,
    refuse_relation,
    reverses_of,
)

FORWARD = [
    ("user", "buys", "item"),
    ("user", "sees", "item"),
    ("user", "sees", "tag"),
    ("user", "2", "user"),
]
RELATIONS = [*FORWARD, *((target, f"rev_{name}", source) for source, name, target in FORWARD)]


@pytest.mark.parametrize(
    "wanted, number",
    [
        ("buys", 0),
        (["user", "buys", "item"], 0),
        (["user", "sees", "tag"], 2),
        (("user", "sees", "item"), 1),
        (2, 3),
        (["user", 2, "user"], 3),
    ],
)
def test_a_relation_is_named_by_its_name_or_with_its_types(wanted, number):
    check_wanted(wanted)
    assert choose_relation(RELATIONS, wanted, "graph") == number


def test_reverse_relations_are_told_by_name_wherever_they_stand():
    assert reverses_of(RELATIONS) == {4: 0, 5: 1, 6: 2, 7: 3}
    assert reverses_of(
        [("item", "rev_buys", "user"), ("user", "buys", "item"), ("user", "rev_sees", "item")]
    ) == {0: 1}


@pytest.mark.parametrize(
    "wanted, error",
    [
        (
            None,
            r"task=link learns the links of one relation, and graph has 4. Choose one by task.relation=buys; there are "
            r"\[user,buys,item\], \[user,sees,item\], \[user,sees,tag\], \[user,2,user\]$",
        ),
        (
            "bays",
            "task.relation=bays: graph has no such relation; did you mean task.relation=buys?",
        ),
        ("seas", r"did you mean task.relation=\[user,sees,item\]?"),
        (
            ["user", "buys", "tag"],
            r"task.relation=\[user,buys,tag\]: graph has no .* task.relation=\[user,buys,item\]",
        ),
        ("owns nothing", r"no such relation; there are \[user,buys,item\], "),
        (
            "rev_buys",
            "task.relation=rev_buys is a reverse relation in graph. Name .*: task.relation=buys",
        ),
        (
            ["tag", "rev_sees", "user"],
            r"reverse relation in graph. .*: task.relation=\[user,sees,tag\]",
        ),
        (
            "sees",
            r"2 relations of graph have this name. .*: task.relation=\[user,sees,item\] or task.relation=\[user,see",
        ),
    ],
)
def test_names_that_fit_no_relation_or_several_are_refused(wanted, error):
    with pytest.raises(ValueError, match=error):
        choose_relation(RELATIONS, wanted, "graph")


@pytest.mark.parametrize("wanted", [["user", "buys"], {"user": "buys"}, ["user", ["buys"], "item"]])
def test_what_is_no_name_is_refused(wanted):
    with pytest.raises(
        ValueError, match="is not a relation. Give its name, or the type of the source"
    ):
        check_wanted(wanted)


def test_a_graph_without_relations_has_none_to_name():
    refuse_relation(None, "graph")
    with pytest.raises(
        ValueError,
        match=r"task.relation=\[a,b,c\] is for graphs with several types .* graph has one",
    ):
        refuse_relation(["a", "b", "c"], "graph")
