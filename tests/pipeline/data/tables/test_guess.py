"""What is guessed of folders of tables: kinds of columns, ids, links between tables, and what is refused."""

from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.guess import guess
from tests.helpers.composing import compose_config

COUNTRIES = ("DE", "FR", "US")
LINES = {
    "customers": [
        "customer_id,age,country,signup,bio,email,tier",
        *(
            f"C{i:03},{20 + i % 40},{COUNTRIES[i % 3]},2024-01-{1 + i % 28:02},likes {'tea' if i % 2 else 'coffee'} and "
            f"walks in the hills,c{i}@example.org,{'gold' if i % 2 else 'plain'}"
            for i in range(60)
        ),
    ],
    "products": [
        "sku,price,title",
        *(f"SKU-{i},{(i + 1) ** 3 + 0.5},lamp{i % 25}" for i in range(40)),
    ],
    "orders": [
        "order_id,customer_id,sku,time,paid,gift",
        *(
            f"{1000 + i},C{i % 60:03},SKU-{i * 7 % 41},2025-03-{1 + i % 28:02} 12:00,{i % 9}.5,{i % 2}"
            for i in range(200)
        ),
    ],
    "lamps": ["sku,shade", *(f"SKU-{i},{'dark' if i % 3 else 'light'}" for i in range(40))],
    "likes": [
        "customer_id,tag",
        *(f"C{i % 60:03},{'red' if i % 3 else 'blue'}" for i in range(90)),
    ],
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("tables") / "shop", LINES)


def write(folder: Path, tables: dict[str, list[str]]) -> Path:
    folder.mkdir()
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


def test_a_shop_is_guessed(shop):
    found = guess(shop, "customers.tier")
    schema = yaml.safe_load(found.schema)
    assert schema["nodes"] == {
        "customers": {
            "path": "customers.csv",
            "id": "customer_id",
            "features": ["age"],
            "dates": ["signup"],
            "categories": ["country"],
            "text": ["bio"],
            "standardize": True,
            "label": "tier",
        },
        "products": {
            "path": "products.csv",
            "id": "sku",
            "features": ["price"],
            "text_chars": ["title"],
            "standardize": True,
        },
        "shade": {},
        "tag": {},
    }
    assert schema["edges"]["orders"] == {
        "path": "orders.csv",
        "source": {"type": "customers", "column": "customer_id"},
        "target": {"type": "products", "column": "sku"},
        "features": ["paid", "gift"],
        "dates": ["time"],
        "standardize": True,
        "time": "time",
    }
    assert schema["edges"]["likes"]["target"] == {"type": "tag", "column": "tag"}
    assert (
        "# 60 different ones in 60 rows" in found.schema
        and "# 97.56 % of its values are ids there" in found.schema
    )
    assert "# email is left out: it has another value in almost every row" in found.schema
    assert found.labels[0] == "customers.tier" and found.keys == {}


def test_rows_with_labels_are_nodes_that_are_linked_to_each_table_they_name(shop):
    schema = yaml.safe_load(guess(shop, "orders.gift").schema)
    assert (
        schema["nodes"]["orders"]["label"] == "gift"
        and schema["nodes"]["orders"]["id"] == "order_id"
    )
    assert {name: edges["target"]["type"] for name, edges in schema["edges"].items()} == {
        "lamps": "shade",
        "likes": "tag",
        "orders_customer_id": "customers",
        "orders_sku": "products",
    }


def test_tables_are_linked_by_values_where_names_say_nothing(tmp_path):
    people = [f"p{number}" for number in range(30)]
    folder = write(
        tmp_path / "club",
        {
            "people": [
                "name,grid,statusId,score",
                *(f"{name},{place},{place % 3},{place * 7}" for place, name in enumerate(people)),
            ],
            "knows": ["from,to,years", *(f"{a},{b},{len(a)}" for a, b in zip(people, people[2:]))],
        },
    )
    found = guess(folder, "people.score")
    schema = yaml.safe_load(found.schema)
    assert schema["edges"]["knows"]["source"] == {"type": "people", "column": "from"}
    assert schema["nodes"]["people"] | {"label": 0} == {
        "path": "people.csv",
        "id": "name",
        "features": ["grid"],
        "categories": ["statusId"],
        "standardize": True,
        "label": 0,
    }
    assert found.keys == {}
    assert guess(folder, "knows.years").keys == {"task": "edge"}


def test_parquet_ids_twice_and_many_numbers_to_predict(tmp_path):
    rng, numbers = np.random.default_rng(0), np.arange(1, 121)
    pd.DataFrame(
        {"driverId": [*numbers, 5], "points": [*numbers, 5], "laps": [[1]] * 121}
    ).to_parquet(tmp_path / "dim_drivers.parquet")
    pd.DataFrame(
        {
            "resultId": range(300),
            "driverId": rng.integers(1, 121, 300),
            "won": rng.random(300) < 0.5,
            "circuitId": rng.integers(900, 999, 300),
        }
    ).to_parquet(tmp_path / "results.parquet")
    found = guess(tmp_path, "dim_drivers.points")
    schema = yaml.safe_load(found.schema)
    assert found.keys == {"data.metric": "rmse", "data.duplicates": "first"}
    assert schema["nodes"]["results"] == {
        "path": "results.parquet",
        "id": "resultId",
        "categories": ["won"],
    }
    assert schema["edges"]["results_driverId"]["target"] == {
        "type": "dim_drivers",
        "column": "driverId",
    }
    assert "circuitId is left out: it holds ids of no table that is here" in found.schema
    assert "laps is left out: it holds lists" in found.schema


def test_odd_names_and_copies_of_the_label(tmp_path):
    folder = write(
        tmp_path / "odd",
        {
            "users": ["id,on,a: b,split", *(f"u{i},{i % 2},{i}.5,x{i % 3}" for i in range(20))],
            "truth": ["id,user_id,on", *(f"t{i},u{i},{i % 2}" for i in range(20))],
            "alone": ["a,b", "1.5,2"],
        },
    )
    found = guess(folder, "users.on")
    assert yaml.safe_load(found.schema)["nodes"]["users"] | {"categories": []} == {
        "path": "users.csv",
        "id": "id",
        "features": ["a: b"],
        "categories": [],
        "standardize": True,
        "label": "on",
    }
    assert "# on is left out: it has the name of the label" in found.schema
    assert (
        "# alone.csv is left out: it has no column of ids that names each row once." in found.schema
    )


def test_names_cannot_break_out_of_the_schema(tmp_path):
    bad = ["x\nnodes: {evil: {}}", "\x85", " \u2028", "\ufffe", "a\x7f", "${oc.env:HOME}"]
    frame = pd.DataFrame(
        {"id": [f"u{i}" for i in range(20)], "on": np.arange(20) % 2}
        | {name: np.arange(20) / 2 for name in bad}
        | {f"{name} empty": None for name in bad}
    )
    frame.to_parquet(tmp_path / "users.parquet")
    (tmp_path / "truth\nnodes: {}.csv").write_text("a,b\n1.5,2\n")
    (tmp_path / "orders.csv").write_text(
        "order_id,user_id\n" + "".join(f"o{i},u{i % 20}\n" for i in range(40))
    )
    found = yaml.safe_load(guess(tmp_path, "users.on").schema)
    assert found["nodes"].keys() == {"users", "orders"}
    assert found["nodes"]["users"]["features"] == bad[:-1]


@pytest.mark.parametrize(
    "tables, label, message",
    [
        ({}, None, "is not a folder with tables: files that end in .csv"),
        (
            {"users": ["id,a", "1,2", "2,3"]},
            None,
            "no column names rows of another table, .* Columns of ids are users.id",
        ),
        (
            LINES,
            "customers.tear",
            "label=customers.tear is no column to predict; choose .* customers.tier",
        ),
        (LINES, "customers.customer_id", "label=customers.customer_id is no column to predict"),
        (
            {
                **LINES,
                "visits": ["customer_id,sku,tag,stars", "C001,SKU-1,x,1", "C001,SKU-1,x,2"],
                "tags": ["tag", "x", "y"],
            },
            "visits.stars",
            "visits.csv has no column of ids that names each row once",
        ),
        (
            {
                "men": ["id,a", "n1,2", "n2,3"],
                "women": ["id,a", "n1,2", "n2,3"],
                "calls": ["from,to", "n1,n2", "n2,n1"],
            },
            None,
            "calls.csv: the values of from are ids of men and women. Give the column a name .* as men_id does",
        ),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, tables, label, message):
    with pytest.raises(ValueError, match=message):
        guess(write(tmp_path / "folder", tables), label)


def test_amounts_that_are_not_read_have_a_comment(tmp_path):
    found = guess(
        write(
            tmp_path / "shop",
            {
                "users": [
                    "user_id,paid,owed,tier,size",
                    *(f'u{i},"1,{100 + i}.50",${i}.00,{i % 2},"{i},5"' for i in range(9)),
                ],
                "orders": ["order_id,user_id,n", *(f"{i},u{i % 9},{i % 3}" for i in range(30))],
            },
        ),
        "users.tier",
    ).schema
    for column, amount in (("owed", "$0.00"), ("size", "0,5")):
        assert (
            f"# {column} is left out: it holds numbers such as {amount}. They are read if all columns write"
            in found
        )


PLACES = [
    f"k{i};Köln {i % 3};0{5000 + i % 7};{1 + i % 3}.{100 + i},{i % 10}5;{1 + i % 28:02}/{1 + i % 12:02}/2023;{'yn'[i % 2]};"
    + ("train", "train", "valid", "test")[i % 4]
    for i in range(60)
]
VISITS = [f"k{i % 60},{i % 7},{i % 12 + 1}/{i % 28 + 1}/2023" for i in range(180)]


def test_files_of_a_company_are_read_as_they_are_written(tmp_path):
    folder = write(tmp_path / "firm", {"visits": ["place_id,shop,on", *VISITS]})
    lines = ["place_id;town;code;paid;since;good;split", *PLACES]
    (folder / "places.csv").write_bytes("\n".join(lines).encode("latin-1"))
    schema = yaml.safe_load(guess(folder, "places.good").schema)
    places = schema["nodes"]["places"]
    assert places == {
        "path": "places.csv",
        "csv": {
            "encoding": "latin-1",
            "delim": ";",
            "decimal_separator": ",",
            "thousands": ".",
            "dateformat": "%d/%m/%Y",
        },
        "id": "place_id",
        "features": ["paid"],
        "dates": ["since"],
        "categories": ["town", "code"],
        "standardize": True,
        "label": "good",
        "split_column": "split",
    }
    assert schema["edges"]["visits"]["csv"] == {"dateformat": "%m/%d/%Y"}
    places |= {"standardize": False, "categories": ["code"]}
    data = cache.load(TablesConfig(folder=str(folder), schema=schema), tmp_path / "cache")
    expected = [float(f"{1 + i % 3}{100 + i}.{i % 10}5") for i in range(60)]
    assert data.x[:60, 0].tolist() == pytest.approx(expected)
    latest = max(date(2023, 1 + i % 12, 1 + i % 28) for i in range(60) if i % 4 < 2)
    assert data.x[0, 1].item() == (latest - date(2023, 1, 1)).days
    assert data.train_mask[:60].tolist() == [i % 4 < 2 for i in range(60)]
    assert data.test_mask[:60].tolist() == [i % 4 == 3 for i in range(60)]


def test_codes_of_many_values_are_tags_and_numbers_stay_numbers(tmp_path):
    rows = [f"u{i},{i:05},{i / 7:.2f},{i % 2}" for i in range(900)]
    tables = {
        "users": ["user_id,zip,size,good", *rows, *(f"v{i},{i:05},1,0" for i in range(600))],
        "calls": ["user_id,other", *(f"u{i},{i % 9}" for i in range(90))],
    }
    users = yaml.safe_load(guess(write(tmp_path / "folder", tables), "users.good").schema)["nodes"][
        "users"
    ]
    assert users["text_tags"] == ["zip"] and users["features"] == ["size"] and "csv" not in users


def test_a_folder_of_parts_is_a_table(tmp_path):
    folder = write(tmp_path / "shop", {name: LINES[name] for name in ("products", "orders")})
    (folder / "customers.csv").mkdir()
    for part in range(2):
        lines = [LINES["customers"][0], *LINES["customers"][1 + 30 * part : 31 + 30 * part]]
        (folder / "customers.csv" / f"part-{part}.csv").write_text("\n".join(lines))
    assert (
        yaml.safe_load(guess(folder, "customers.tier").schema)["nodes"]["customers"]["path"]
        == "customers.csv"
    )


def test_two_tables_of_a_name_are_refused(tmp_path):
    write(tmp_path / "twice", {"users": ["id", "1"]})
    (tmp_path / "twice" / "users.tsv").write_text("id\n1")
    with pytest.raises(ValueError, match="users.csv and users.tsv are tables of the same name"):
        guess(tmp_path / "twice", None)


def test_a_label_alone_composes_the_guessed_schema(shop):
    config = compose_config(("data=tables", f"data.folder={shop}", "data.label=customers.tier"))
    assert config.data.label is None and config.data.schema == yaml.safe_load(
        guess(shop, "customers.tier").schema
    )
    config.data.check()


@pytest.mark.parametrize("keys", [[], ["data.folder=.", "data.edges.path=x.csv"]])
def test_a_label_does_not_go_with_other_tables(keys):
    with pytest.raises(
        ValueError, match="data.label=a.b guesses a schema .* and leave data.schema"
    ):
        compose_config(("data=tables", "data.label=a.b", *keys))
