"""Batches of few pairs: what training must find is not among the edges."""

import pytest
import torch

from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.graphs import link_graph
from tests.pipeline.gnn.tasks.test_link_parts import loader_of


@pytest.mark.parametrize("pairs_per_step", [1, 2])
def test_the_pairs_of_a_batch_are_not_among_its_edges(pairs_per_step):
    data = link_graph(12, 24, edge_attr=torch.arange(8.0).unsqueeze(1))
    assert data.num_edges == 8
    batches = list(loader_of(data, pairs_per_step=pairs_per_step, hide=True).batches(0, Share()))
    assert len(batches) == 4 // pairs_per_step
    for batch in batches:
        hidden = {frozenset(pair) for pair in batch.pairs.tolist()}
        left = [frozenset(edge) for edge in batch.edge_index.as_tensor().t().tolist()]
        assert len(hidden) == pairs_per_step and not hidden & {*left}
        assert len(left) == len(batch.edge_attr) == 8 - 2 * pairs_per_step
