"""Vectors of nodes on a GPU: the pairs of an episode in tiles, while CPU threads draw the walks of the next one."""

from collections.abc import Callable

import torch
from torch import Tensor

from parallel_epochs.models.embedding import pair_tiles
from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles
from parallel_epochs.pipeline.graph.walks import Pairs
from parallel_epochs.pipeline.node_embedding.trainer import NodeEmbeddingTrainer
from parallel_epochs.pipeline.run import seeds

# Pairs of the CPU's tiles, eight groups of eight, whose negatives are counted by trainer.num_negatives; the smaller
# tiles of the GPU have twice as many for each pair.
OF_TILE = 64 // (2 * TILE)


def load_kernel() -> Callable[..., None]:
    """Return the function that trains a launch. It needs Triton, which is not everywhere; tests replace it by torch."""
    from parallel_epochs.models.embedding import skipgram_gpu

    return skipgram_gpu.train


class TiledTrainer(NodeEmbeddingTrainer):
    """Trains vectors of nodes in the tiles of :mod:`models.embedding.pair_tiles`.

    The tables lie on a GPU, where Triton trains. A step is a share of the launches of an episode.
    """

    kernel = "skip-gram on tiles"
    _tiles: Tiles | None = None

    def set_degrees(self, degree: Tensor, frequency: Tensor) -> None:
        """Tell how rows are dealt out and drawn, before the first round.

        Args:
            degree: of each row of the tables [num_nodes].
            frequency: how often each row is drawn as a negative, in proportion [num_nodes].
        """
        device = self._rows.device
        self._weight = pair_tiles.whole_weights(frequency).to(device)
        self._by_degree = degree.argsort(descending=True, stable=True).to(device)
        self._row_of, self._is_tied = self.parts.row.to(device), self.heads is self.tails
        self._num_negatives = max(1, self._options.num_negatives // OF_TILE)
        self._train_launch = load_kernel()

    def _collect(self, walks: Tensor) -> Tensor:
        """Keep the walks where the GPU can read them while it trains."""
        return walks.pin_memory() if self._rows.is_cuda else walks

    def _receive(self, drawn: Pairs | Tensor, round_: int) -> int:
        """Deal the rows out to parts, and sort the pairs of the walks by what trains them."""
        assert isinstance(drawn, Tensor)
        self._tiles = None  # its memory is needed
        plan, walks = self._walk_plan, drawn.to(self._rows.device, non_blocking=True).long()
        walks = torch.where(walks < 0, -1, self._row_of[walks.clamp(min=0)])
        pairs, key = (
            pair_tiles.pair_up(walks, plan.distance, plan.both),
            seeds.key("tiles", self._seed, round_),
        )
        most = plan.walks_per_episode * plan.pairs_of_walk
        deal = pair_tiles.deal_rows(
            self._by_degree, pair_tiles.choose_num_parts(len(self._weight), most), key
        )
        self._tiles = pair_tiles.arrange(
            pairs, deal, self._weight, self._num_negatives, key, tied=self._is_tied
        )
        return len(self._tiles.pairs)

    def _train(self, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        tiles = self._tiles
        assert tiles is not None, "the pairs of the round are drawn"
        return tiles.train(
            self.progress.step_in_round,
            len(self._schedule),
            lambda launch, loss: self._train_launch(
                self.heads, self.tails, tiles, launch, self._options, loss, lr=self.progress.lr
            ),
        )
