"""Layouts on a GPU: the edges of an epoch are drawn and sorted there, and points are moved in tiles."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from parallel_epochs.models.embedding import pair_tiles
from parallel_epochs.models.embedding.pair_tiles import PAIR_BYTES, Tiles, draw_chances
from parallel_epochs.pipeline.block_training.device import settle
from parallel_epochs.pipeline.block_training.trainer import Round
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.graph import neighbors
from parallel_epochs.pipeline.layout.trainer import LayoutTrainer
from parallel_epochs.pipeline.run import seeds
from parallel_epochs.pipeline.run.ranks import Ranks

# Points from which on device=auto takes a GPU.
AUTO_POINTS = 20_000


def trains_tiles(device: torch.device) -> bool:
    """Tell whether points are moved in the tiles of a GPU."""
    return device.type == "cuda"


def settle_device(part: Part, ranks: Ranks) -> torch.device:
    """Return the device of a layout; see :func:`settle`."""
    data, needed = part.data, 0
    num_pairs = 2 * data.num_edges
    if data.edge_index is None:
        num_pairs, needed = (
            2 * data.num_nodes * part.config.trainer.num_neighbors,
            4 * neighbors.GPU_DISTANCES,
        )
    needed += PAIR_BYTES * num_pairs
    return settle(
        part,
        size=data.num_nodes,
        least=AUTO_POINTS,
        what="points",
        needed=needed,
        ranks=ranks,
        in_triton=True,
    )


def load_kernel() -> Callable[..., None]:
    """Return the function that trains a launch. It needs Triton, which is not everywhere; tests replace it by torch."""
    from parallel_epochs.models.embedding import layout_gpu

    return layout_gpu.train


class TiledLayoutTrainer(LayoutTrainer):
    """Places points in the tiles of :mod:`models.embedding.pair_tiles`.

    An edge is drawn as often as its weight asks for, rounded up or down at random. Edges within a part wait for an
    epoch that separates their ends. A step is a share of the launches of an epoch.
    """

    kernel = "layout on tiles"
    _tiles: Tiles | None = None

    def set_weights(self, matrix: sp.csr_array, frequency: Tensor) -> None:
        """Tell what attracts, before the first round.

        Args:
            matrix: weights of the edges [num_points, num_points].
            frequency: how often each row of the positions is drawn as a negative, in proportion [num_points].
        """
        del self._make_blocks  # of the CPU
        device, entries = self.positions.device, matrix.tocoo()
        ends = np.stack(entries.coords, axis=1).astype(np.int64)
        self._ends = self.parts.row[torch.from_numpy(ends)].to(device)
        weight = torch.from_numpy(entries.data.astype(np.float64))
        self._expected = (weight * (len(weight) / weight.sum())).to(device)
        self._weight = pair_tiles.whole_weights(frequency).to(device)
        self._by_weight = frequency.argsort(descending=True, stable=True).to(device)
        self._num_pairs_of_epoch = len(weight)
        self._train_launch = load_kernel()

    def _open_round(self, round_: int) -> Round:
        """Draw the edges of an epoch, and sort them by what trains them."""
        self._tiles = None  # its memory is needed
        key, expected = seeds.key("tiles", self._seed, round_), self._expected
        counts = (
            (expected + draw_chances(key, len(expected), expected.device) / 2**32).floor().long()
        )
        pairs = torch.repeat_interleave(self._ends, counts, dim=0)
        num_parts = pair_tiles.choose_num_parts(len(self.positions), self._num_pairs_of_epoch)
        deal = pair_tiles.deal_rows(self._by_weight, num_parts, key)
        self._tiles = pair_tiles.arrange(
            pairs, deal, self._weight, self._options.num_negatives, key, tied=True
        )
        return Round(len(self._tiles.pairs))

    def _train(self, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        tiles = self._tiles
        assert tiles is not None, "the edges of the round are drawn"
        attraction = self._layout_plan.attraction(self.progress.round / self.num_rounds)
        return tiles.train(
            self.progress.step_in_round,
            len(self._schedule),
            lambda launch, loss: self._train_launch(
                self.positions,
                tiles,
                launch,
                self._options,
                loss,
                lr=self.progress.lr,
                attraction=attraction,
            ),
        )
