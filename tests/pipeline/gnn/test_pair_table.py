"""Tables of pairs: ids in, ids out, and what is refused by name and row."""

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.gnn.kinds.links import number_pairs, read_pairs, table_of

IDS = np.array(["ada", "bob", "eve"], object)


def write(path, ids, pairs, logits, num_links=None):
    table_of(ids, pairs, logits, num_links).write(str(path))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_rows_keep_their_order_and_ids(ending, tmp_path):
    asked = pd.DataFrame(
        {"note": ["a", "b", "c"], "source": ["eve", "ada", "eve"], "target": ["ada", "bob", "ada"]}
    )
    path = str(tmp_path / f"asked{ending}")
    asked.to_parquet(path) if ending == ".parquet" else asked.to_csv(
        path, sep=",\t"[ending == ".tsv"], index=False
    )
    pairs = number_pairs(read_pairs(path), IDS, f"pairs={path}")
    assert pairs.tolist() == [[2, 0], [0, 1], [2, 0]]
    logits = torch.tensor([0.0, 2.0, -1.0])
    write(tmp_path / "out.csv", IDS, pairs, logits)
    table = pd.read_csv(tmp_path / "out.csv")
    assert (
        list(table) == ["source", "target", "score"]
        and table["source"].tolist() == asked["source"].tolist()
    )
    assert np.array_equal(
        table["score"].to_numpy(np.float32), logits.double().sigmoid().float().numpy()
    )
    write(tmp_path / "out.csv", np.arange(3), pairs, logits, num_links=2)
    assert pd.read_csv(tmp_path / "out.csv")[["source", "link"]].to_numpy().tolist() == [
        [2, 1],
        [0, 1],
        [2, 0],
    ]


@pytest.mark.parametrize(
    "content, error",
    [
        ("source\nada\n", "asked.csv has the columns source, but none called target"),
        ("source,target\n", "has a header, but no rows"),
        ("source,target\nada,bob\n,bob\n", "row 2 below the header has no source"),
        (
            "source,target\nada,ada\n",
            "row 1 below the header pairs 'ada' with itself; a link is between two",
        ),
        (
            "source,target\nada,bob\nada,evee\nx,y\n",
            "row 2 below the header names 'evee', which is not one of the 3 nodes "
            "of the run; did you mean eve\\?; 2 rows name such nodes",
        ),
    ],
)
def test_tables_that_name_no_pairs_are_refused(content, error, tmp_path):
    path = tmp_path / "asked.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=error):
        number_pairs(read_pairs(str(path)), IDS, f"pairs={path}")
