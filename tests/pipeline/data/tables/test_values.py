"""Columns of numbers and dates of nodes and edges, and ids that are there twice."""

import dataclasses
import logging

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns, NodeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import unpack
from tests.helpers.typed_tables import SCHEMA, write_tables

NODES = (
    "id,a,joined,sales,split\n"
    "x,1,2024-05-31,10,train\n"
    "y,2,2024-06-01T23:00-02:00,0,train\n"  # 2024-06-02 in UTC, a Sunday
    "z,3,,100,valid\n"
    "w,4,2024-06-08 12:00,7,test\n"
)
EDGES = "source,target,p,w,met\nx,y,0,1,2024-01-01\ny,z,3,2,2024-01-11\nz,w,,3,\nw,x,8,4,2023-12-31 12:00\n"


def config_of(
    folder,
    nodes: dict | None = None,
    edges: dict | None = None,
    *,
    node_rows: str = NODES,
    edge_rows: str = EDGES,
    **options,
) -> TablesConfig:
    (folder / "nodes.csv").write_text(node_rows)
    (folder / "edges.csv").write_text(edge_rows)
    return TablesConfig(
        folder=str(folder),
        nodes=NodeColumns(
            **{"path": "nodes.csv", "label": "sales", "split_column": "split", **(nodes or {})}
        ),
        edges=EdgeColumns(path="edges.csv", **(edges or {})),
        **options,
    )


def load(tmp_path, *args, **options):
    return cache.load(config_of(tmp_path, *args, **options), tmp_path / "cache")


def cycles(day: int, month: int) -> list[float]:
    """Place a day of the week, from Monday, and a month, from January, on circles."""
    return [
        wave(2 * np.pi * place)
        for place in (day / 7, (month - 1) / 12)
        for wave in (np.sin, np.cos)
    ]


def rows_of(data) -> dict[tuple, list[float]]:
    return dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_attr.double().tolist()))


@pytest.mark.parametrize("standardize", [False, True])
def test_dates_of_nodes_become_days_and_places_in_week_and_year(tmp_path, caplog, standardize):
    """The latest time is that of the training nodes: a test node may be younger."""
    caplog.set_level(logging.INFO)
    nodes = {"features": ["a"], "dates": ["left", "joined"], "standardize": standardize}
    rows = (
        "\n".join(
            line.replace(",", f",{'left' if line.startswith('id') else '2024-06-01'},", 1)
            for line in NODES.splitlines()
        )
        + "\n"
    )
    data = load(tmp_path, nodes, node_rows=rows)
    days = np.array([49 / 24, 0, np.nan, -(6 + 11 / 24)])
    if standardize:
        days = (days - np.nanmean(days)) / np.nanstd(days)
    places = [cycles(4, 5), cycles(6, 6), [0] * 4, cycles(5, 6)]
    expected = np.column_stack([np.nan_to_num(days), places])
    np.testing.assert_allclose(data.x[:, 6:].numpy(), expected, atol=1e-6)
    assert (
        "joined becomes the days before 2024-06-02 01:00:00 UTC, the latest time in training"
        in caplog.text
    )
    filled = "the mean" if standardize else "zeros"
    assert f"1 empty cell in joined, taken for {filled}" in caplog.text


@pytest.mark.parametrize("what", ["nodes", "edges"])
def test_a_column_without_dates_and_marks_for_no_date_are_told(tmp_path, caplog, what):
    """The latest of the training counts: a row for the test may have any date."""
    caplog.set_level(logging.INFO)
    rows = {
        name: "\n".join(
            f"{line},{'none,end' if number == 0 else f',{end}'}"
            for number, (line, end) in enumerate(
                zip(
                    text.splitlines(),
                    ["", "2024-05-31", "9999-12-31", "", "20240-01-01"],
                    strict=True,
                )
            )
        )
        + "\n"
        for name, text in (("nodes", NODES), ("edges", EDGES))
    }
    dates = {"dates": ["none", "end"]}
    data = load(
        tmp_path,
        dates if what == "nodes" else {},
        dates if what == "edges" else {},
        node_rows=rows["nodes"],
        edge_rows=rows["edges"],
    )
    year = 9999 if what == "nodes" else 20240
    assert (
        f"{what}.csv: column none holds no date, and its features are the same in every row. Leave it out"
        in caplog.text
    )
    assert (
        f"{what}.csv: the latest time of column end in training is in the year {year}. If it stands for no"
        in caplog.text
    )
    assert "1970" not in caplog.text and "0 of 0" not in caplog.text
    assert not (data.x if what == "nodes" else data.edge_attr)[:, :5].any()


@pytest.mark.parametrize("standardize", [False, True])
def test_numbers_and_dates_of_edges_are_scaled_in_float64(tmp_path, caplog, standardize):
    caplog.set_level(logging.INFO)
    data = load(
        tmp_path,
        {},
        {
            "weight": "w",
            "features": ["p"],
            "log1p": ["p"],
            "dates": ["met"],
            "standardize": standardize,
        },
        to_undirected=False,
    )
    p, days = np.log1p([0, 3, np.nan, 8]), np.array([10, 0, np.nan, 10.5])
    if standardize:
        p, days = ((column - np.nanmean(column)) / np.nanstd(column) for column in (p, days))
    expected = np.column_stack(
        [
            [1, 2, 3, 4],
            np.nan_to_num(p),
            np.nan_to_num(days),
            [cycles(0, 1), cycles(3, 1), [0] * 4, cycles(6, 12)],
        ]
    )
    found = [rows_of(data)[ends] for ends in ((0, 1), (1, 2), (2, 3), (3, 0))]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    filled = "the mean" if standardize else "zeros"
    for column in ("p", "met"):
        assert f"1 empty cell in {column}, taken for {filled}" in caplog.text


@pytest.mark.parametrize(
    "is_typed, standardize",
    [
        (False, True),
        (True, False),
        *(pytest.param(both, both, marks=pytest.mark.slow) for both in (False, True)),
    ],
)
def test_held_out_links_do_not_scale_the_edges_that_training_sees(tmp_path, standardize, is_typed):
    """Other numbers and later dates of test links change no feature, nor what other tables are scaled by."""
    found, row = [], np.arange(60)
    ends = {end: {"type": end, "column": end} for end in ("source", "target")}
    columns = {"path": "edges.csv", "features": ["p"], "dates": ["met"], "time": "w"}
    columns["standardize"] = standardize
    tables = {"sees": {"path": "seen.csv", "features": ["p"]} | ends, "buys": columns | ends}
    schema = {"nodes": {"source": {}, "target": {}}, "edges": tables}
    for factor, year in ((1, 2030), (1000, 2090)):
        folder = tmp_path / str(factor)
        folder.mkdir()
        p = np.where(row < 36, 2 - row % 2 * 2, np.where(row < 51, -2 * factor, 0)).astype(float)
        p[::6] = (
            np.nan
        )  # the mean of the others, 12 times 2 and -2 and 26 times 0, is a number that is there
        table = pd.DataFrame({"source": row % 20, "target": row % 7 + 100, "p": p, "w": row})
        table["met"] = pd.date_range("2020-01-01", periods=60).astype(str)
        table.loc[50:, "met"] = f"{year}-05-05"
        table.iloc[:2].to_csv(folder / "seen.csv", index=False)
        table.to_csv(folder / "edges.csv", index=False)
        given = {"schema": schema} if is_typed else {"edges": EdgeColumns(**columns)}
        config = TablesConfig(folder=str(folder), split="time", **given)
        data = cache.load_links(config, tmp_path / "cache", relation="buys" if is_typed else None)
        attr = data.edge_attr[:, 2 * is_typed :]  # behind the relation and the feature of sees
        found.append((attr[attr[:, 2:].any(1)], data.x, unpack(data[FITTED])[0][-1]))
        assert data.test_pairs.size(0) == 12 and data.edge_attr.size(0) == 72 + 4 * is_typed
    (attr, x, fitted), (other, other_x, other_fitted) = found
    torch.testing.assert_close(attr, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x, other_x, rtol=1e-4, atol=1e-4)
    if not standardize:
        assert float(attr[:, 1].min()) == 0
        assert fitted.latest[1] == pytest.approx(other_fitted.latest[1], abs=9)
        return
    for name in ("mean", "std"):  # dates have another latest time then, and so another mean
        np.testing.assert_allclose(
            getattr(fitted, name)[0], getattr(other_fitted, name)[0], rtol=1e-4
        )
    mean, std = 24 / 30, np.sqrt(48 / 30 - (24 / 30) ** 2)
    values = attr[:, 0].unique().numpy()
    np.testing.assert_allclose(values, [-mean / std, 0, (2 - mean) / std], rtol=1e-5)
    assert abs(float(attr[:, 1].std(correction=0)) - 1) < 1e-5


def test_features_of_edges_of_several_types_are_scaled_by_table(tmp_path):
    tables = write_tables(tmp_path)
    schema = {
        **SCHEMA,
        "edges": {
            **SCHEMA["edges"],
            "knows": SCHEMA["edges"]["knows"] | {"log1p": ["years"], "standardize": True},
        },
    }
    data = cache.load(TablesConfig(folder=str(tmp_path), schema=schema), tmp_path / "cache")
    plain = cache.load(TablesConfig(folder=str(tmp_path), schema=SCHEMA), tmp_path / "cache")
    assert data.content_hash != plain.content_hash and torch.equal(
        data.edge_attr[:, 1], plain.edge_attr[:, 1]
    )
    years = np.log1p(tables["knows"]["years"])
    own = data.edge_attr[:, 0] == 2
    expected = (np.log1p(plain.edge_attr[own, 2].double().numpy()) - years.mean()) / years.std(
        ddof=0
    )
    once = ~tables["knows"].duplicated(["a", "b"], keep=False)
    assert own.sum() > 50 and once.sum() > 50
    close = np.isclose(data.edge_attr[own, 2].numpy(), expected, atol=1e-5)
    assert close.sum() >= once.sum()  # rows that are merged have the mean of their logarithms
    assert (data.edge_attr[data.edge_attr[:, 0] != 2][:, 2] != 0).any() and (
        data.edge_attr[data.edge_attr[:, 0] == 3][:, 2] == 0
    ).all()


def test_of_rows_with_one_id_the_first_is_kept_on_request(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    twice = NODES + "y,50,2024-01-01,3,train\nv,6,2024-01-01,3,test\nx,70,2024-01-01,3,train\n"
    data = load(tmp_path, {"features": ["a"]}, node_rows=twice, duplicates="first")
    assert data.x.flatten().tolist() == [1, 2, 3, 4, 6] and data.train_mask.tolist() == [
        True,
        True,
        *[False] * 3,
    ]
    assert "2 rows are left out, whose id an earlier row has (data.duplicates=first)" in caplog.text
    with pytest.raises(
        ValueError, match=r"the id 'x' of row 1 is there 2 times .* or set data.duplicates=first to"
    ):
        load(tmp_path, node_rows=twice)
    with pytest.raises(
        ValueError, match="row 2, column id is empty: every row needs an id; 2 rows in all"
    ):
        load(
            tmp_path, node_rows="id,sales,split\nx,1,train\n,2,train\n,3,test\n", duplicates="first"
        )


BAD = {
    "no such column": (
        {"dates": ["born"]},
        {},
        {},
        "data.nodes.dates=born: .*nodes.csv has no such column",
    ),
    "numbers": (
        {"dates": ["a"]},
        {},
        {},
        "row 1, column a holds '1', which is not a date; cells are empty, or dates "
        r"such as 2024-05-31 .*\(data.nodes.dates\). Correct the row, .* as by data.nodes.csv=.*, or give a column of "
        "numbers as one of data.nodes.features",
    ),
    "words": (
        {"dates": ["split"]},
        {},
        {},
        "row 1, column split holds 'train', which is not a date",
    ),
    "the label": ({"dates": ["sales"]}, {}, {}, "data.nodes.dates names sales, which is the label"),
    "dates as numbers": (
        {"features": ["joined"]},
        {},
        {},
        "give a column of dates as one of data.nodes.dates, of "
        "words as one of data.nodes.categories",
    ),
    "no logarithm": (
        {},
        {"features": ["p"], "log1p": ["p"]},
        {"edge_rows": EDGES.replace(",8,", ",-1,")},
        "edges.csv: row 4, column p holds .-1., but data.edges.log1p needs values above -1",
    ),
    "another column": (
        {},
        {"features": ["p"], "log1p": ["w"]},
        {},
        "data.edges.log1p names w, which is not in data.edges.features",
    ),
    "dates of edges": ({}, {"dates": ["p"]}, {}, "row 1, column p holds '0', which is not a date"),
    "dates as features": (
        {},
        {"features": ["met"]},
        {},
        "Correct it, or give a column of dates as one of data.edges.dates",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_keys_that_do_not_fit_the_columns_are_refused(tmp_path, case):
    nodes, edges, options, message = BAD[case]
    with pytest.raises(ValueError, match=message) as error:
        config = config_of(tmp_path, nodes, edges, **options)
        config.check()
        cache.load(config, tmp_path / "cache")
    assert "\n" not in str(error.value)


def test_keys_that_are_not_given_change_no_hash(tmp_path):
    config = config_of(tmp_path)
    before = cache.hash_graph(config)
    nodes = dataclasses.replace(config.nodes, dates=["joined"])
    assert cache.hash_graph(dataclasses.replace(config, nodes=nodes)) != before
    assert cache.hash_graph(dataclasses.replace(config, duplicates="first")) != before
    schema = TablesConfig(folder=str(tmp_path), schema=SCHEMA).tables
    (_, nodes), *_ = schema.describe()["nodes"]
    *_, edges = schema.describe()["edges"][0]
    assert "dates" not in nodes and {"log1p", "standardize"} <= nodes.keys()
    assert not {"dates", "log1p", "standardize"} & edges.keys() and "features" in edges
