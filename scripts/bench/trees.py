"""Boosted trees on the columns of the labelled nodes, beside those that summarise their neighbours and edges."""

import dataclasses
import time

from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, roc_auc_score

from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.scripts.bench.measure import configure, write_row


def bench_trees(*overrides: str) -> None:
    """Measure boosted trees on the columns of nodes with one of two classes, for each number of hops of summaries.

    Args:
        overrides: overrides of python -m pipeline.train, with data.summaries for the most hops.
    """
    config = configure(*overrides)
    for num_hops in range(config.data.summaries + 1):
        data = load(dataclasses.replace(config.data, summaries=num_hops), config.cache_dir)
        types = data.types
        place = types.names.index(types.labelled or types.names[0])
        nodes = slice(types.nodes_of(types.names[place]).start, types.nodes_of(types.names[place]).stop)
        x, y = data.x[nodes, :types.widths[place]].numpy(), data.y[nodes, 0].numpy()
        train, valid, test = (data[f"{split}_mask"][nodes].numpy() for split in ("train", "valid", "test"))
        start = time.perf_counter()
        trees = HistGradientBoostingClassifier(learning_rate=0.05, max_iter=200, max_leaf_nodes=15,
                                               l2_regularization=1.0, early_stopping=True, random_state=config.seed)
        trees.fit(x[train], y[train])
        seconds = time.perf_counter() - start
        chances, classes = trees.predict_proba(x)[:, 1], trees.predict(x)
        scores = {f"{name}_{split}": round(metric(y[mask], rows[mask]), 4)
                  for name, metric, rows in (("auc", roc_auc_score, chances), ("acc", accuracy_score, classes))
                  for split, mask in (("valid", valid), ("test", test))}
        write_row({"bench": "trees", "num_hops": num_hops, "num_columns": x.shape[1], **scores,
                   "seconds": round(seconds, 2)})
