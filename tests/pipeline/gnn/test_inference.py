"""Predictions that are shared out among ranks: each row comes from exactly one of them."""

import pytest
import torch

from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.gnn.predict.inference import predict_views
from parallel_epochs.pipeline.run.ranks import Ranks
from tests.helpers.graphs import make_graph, random_graph


class Alone(Ranks):
    """A rank whose others are not there: it returns what it would bring to the sum."""

    def sum_(self, tensor):
        pass

    def max_(self, tensor):
        pass


def shared_out(predict, num_ranks: int) -> torch.Tensor:
    """Sum what the ranks predict; no row may come from two of them."""
    parts = torch.stack([predict(ranks=Alone(rank, num_ranks)) for rank in range(num_ranks)])
    assert int((parts != 0).any(2).sum(0).max()) == 1
    return parts.sum(0)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 9])
def test_every_graph_is_predicted_by_one_rank(num_ranks):
    """Seven batches: neither their number nor that of the graphs is divided by the number of ranks."""
    ptr = torch.arange(0, 29, 2)
    data = make_graph(
        [(node, node ^ 1) for node in range(28)],
        28,
        ptr=ptr,
        x=torch.ones(28, 1),
        y=torch.ones(14, 1),
    )
    data.by_source = data.edge_index.get_csr()[1].long()
    for mask in ("train_mask", "valid_mask", "test_mask"):
        data[mask] = torch.ones(14, dtype=torch.bool)
    loader = GraphLoader(data, batch_size=2)
    assert loader.views(1, 0)[0] == 7

    def predict(**options):
        return predict_views(
            lambda batch: (batch.graph_id, batch.graph_id[:, None] + 1.0),
            loader,
            num_rows=14,
            out_channels=1,
            num_views=1,
            seed=0,
            round_=0,
            prefetch=0,
            **options,
        )

    assert shared_out(predict, num_ranks).flatten().tolist() == list(range(1, 15))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_every_node_is_predicted_by_one_rank_in_each_view(num_ranks):
    """What is predicted depends on the batch: nodes have other neighbours in each view, and the mean counts all."""
    loader, seen = ClusterLoader(random_graph(23, 40, 0)), []

    def predict(**options):
        seen.append([])
        return predict_views(
            lambda batch: (
                seen[-1].append(batch.n_id.tolist()) or batch.n_id,
                batch.n_id[:, None] + 1.0 + batch.cluster / 8,
            ),
            loader,
            num_rows=23,
            out_channels=1,
            num_views=3,
            num_parts=7,
            seed=0,
            round_=0,
            prefetch=0,
            **options,
        )

    alone = predict()
    parts = [predict(ranks=Alone(rank, num_ranks)) for rank in range(num_ranks)]
    torch.testing.assert_close(sum(parts), alone)
    views = [seen[0][first : first + 7] for first in (0, 7, 14)]
    assert all(sorted(sum(view, [])) == [*range(23)] for view in views), (
        "each view has every node once"
    )
    assert views[0] != views[1] != views[2], "each view is a partition of its own"
    clusters = torch.tensor(
        [
            [[node in cluster for cluster in view].index(True) for view in views]
            for node in range(23)
        ]
    )
    assert alone.flatten().tolist() == pytest.approx(
        (torch.arange(23) + 1 + clusters.double().mean(1) / 8).tolist()
    )
    own = seen[1:]
    assert sorted(sum(own, [])) == sorted(seen[0]), "and each batch is one rank's"
    assert max(map(len, own)) - min(map(len, own)) <= 1, (
        "the batches of all views are dealt out evenly"
    )
