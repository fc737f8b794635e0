"""A learned table of node features, outside the graph: for nodes that bring none, or beside what they bring."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.run.seeds import stream

# Rows of one stream of random numbers; another value gives another table.
ROWS_OF_STREAM = 4096
# Standard deviation of the first numbers: the table is learned rather than random (docs/evidence/log.md).
DEVIATION = 0.1
# Name of the table among the weights of a model.
KEY = "node_table"


class NodeTable:
    """A row of features for each node, learned by sparse gradients: a step costs what the rows of its batch cost.

    It is no module of the model, and has an optimizer of its own: the backward pass makes rows of gradients for the
    nodes of the batch alone, and the optimizer changes these rows, and its state of them, alone. Adam of the rows is
    that of :class:`torch.optim.SparseAdam`: the moments of a row rest while no batch holds its node. Table, gradients
    and moments are float32, also where the model computes in bfloat16.

    Args:
        num_nodes: rows.
        channels: columns.
        lr: learning rate, times the factor given to :meth:`step`.
        dropout: fraction of the nodes of a batch that the model sees without their rows in training, as zeros.
        init: a key of :data:`INITS`, which fills the table at the start.
        seed: of the rows at the start.
        device: where the table and the state of its optimizer lie.
        ranges: numbers of the nodes that have the rows, in their order; other nodes have zeros. None: all nodes.

    Attributes:
        weight: the table, [num_nodes, channels], float32; its gradient is a sparse tensor.

    Raises:
        ValueError: there are no nodes.
    """

    def __init__(
        self,
        num_nodes: int,
        channels: int,
        *,
        lr: float,
        dropout: float = 0.0,
        init: str = "normal",
        seed: int = 0,
        device: torch.device = torch.device("cpu"),
        ranges: Sequence[range] | None = None,
    ):
        if not num_nodes and ranges is None:
            raise ValueError(
                "features=embedding learns a row for each node, and the graph has no nodes"
            )
        rows = torch.empty(num_nodes, channels, device=device)
        INITS[init](rows, seed)
        self._embedding = torch.nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
        self.weight: torch.nn.Parameter = self._embedding.weight
        self.optimizer = torch.optim.SparseAdam([self.weight], lr=lr)
        self._lr, self._dropout, self._ranges = lr, dropout, ranges

    def __str__(self) -> str:
        num_nodes, channels = self.weight.shape
        return (
            f"{num_nodes:,} nodes x {channels:,} channels on {self.weight.device}, "
            f"{type(self.optimizer).__name__}, learning rate {self._lr:g}"
        )

    def attach(self, batch: Data, device: torch.device, rng: torch.Generator | None = None) -> Data:
        """Move a batch to the device of the model, each node's row of the table before its other features.

        Args:
            batch: with ``n_id``, the rows of its nodes, [num_nodes], int64, and ``x``; it keeps its own ``x``.
            rng: on the CPU; in training it decides which nodes are seen without their rows.
        """
        rows = self._rows_of(batch.n_id.to(self.weight.device))
        if rng is not None and self._dropout:
            seen = torch.rand(len(rows), 1, generator=rng) >= self._dropout
            rows = rows * seen.to(rows.device)
        return _with_rows(batch, rows.to(device, non_blocking=True), device)

    def attach_mean(self, batch: Data, device: torch.device) -> Data:
        """Do what :meth:`attach` does for nodes that have no row: they get the mean of all rows."""
        mean = self.weight.detach().mean(0, keepdim=True)
        return _with_rows(batch, mean.expand(batch.num_nodes, -1).to(device), device)

    def _rows_of(self, nodes: Tensor) -> Float[Tensor, "num_nodes channels"]:
        """Look rows up; those of nodes without a row are zeros."""
        if self._ranges is None:
            return self._embedding(nodes)
        place, first = torch.full_like(nodes, -1), 0
        for own in self._ranges:
            within = (nodes >= own.start) & (nodes < own.stop)
            place = torch.where(within, nodes - own.start + first, place)
            first += len(own)
        (there,) = (place >= 0).nonzero(as_tuple=True)
        rows = self._embedding(place[there])
        return rows.new_zeros(len(nodes), rows.size(1)).index_copy(0, there, rows)

    def gradient(self) -> Float[Tensor, "num_touched channels"]:
        """Return the rows of the gradient, each node's once; who changes them changes the gradient."""
        assert self.weight.grad is not None, "a backward pass has ended"
        self.weight.grad = self.weight.grad.coalesce()
        return self.weight.grad.values()

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.weight.grad = None

    def step(self, factor: float) -> None:
        """Take a step on the rows that have a gradient.

        Args:
            factor: on the learning rate: for the ranks and for the warm-up.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * factor
        self.optimizer.step()

    def sums(self) -> list[Tensor]:
        """Sum the bits of every 1,024 numbers of the table: what ranks compare, at the speed of memory.

        A table of which one number has changed has other sums.
        """
        numbers = self.weight.detach().flatten()
        whole = numbers.numel() // 1024 * 1024
        return [numbers[:whole].view(torch.int64).view(-1, 512).sum(1), numbers[whole:]]

    def state(self) -> dict:
        """Return the state of the optimizer; the table is among the weights."""
        return self.optimizer.state_dict()

    def load(self, state: dict) -> None:
        """Go on from a copy of what :meth:`state` returned."""
        self.optimizer.load_state_dict(copy.deepcopy(state))


def weights_of(model: torch.nn.Module, table: NodeTable | None) -> dict[str, Tensor]:
    """Return what was learned: the weights of a model, and the table among them if there is one."""
    return (
        model.state_dict() if table is None else {**model.state_dict(), KEY: table.weight.detach()}
    )


def load_weights(
    weights: dict[str, Tensor], model: torch.nn.Module, table: NodeTable | None
) -> None:
    """Put what :func:`weights_of` returned into a model and a table of the same sizes; without a table, into the model."""
    model.load_state_dict({name: value for name, value in weights.items() if name != KEY})
    if table is not None:
        table.weight.detach().copy_(weights[KEY])


def draw_rows(rows: Float[Tensor, "num_nodes channels"], seed: int) -> None:
    """Fill a table with normal numbers of mean 0 and standard deviation :data:`DEVIATION`.

    A row is a function of the seed, its number and the number of channels: a longer table begins with the same rows.
    """
    for block, part in enumerate(rows.split(ROWS_OF_STREAM)):
        numbers = stream("node table", seed, block).standard_normal(
            tuple(part.shape), dtype="float32"
        )
        part.copy_(torch.from_numpy(numbers)).mul_(DEVIATION)


def draw_orthogonal(rows: Float[Tensor, "num_nodes channels"], seed: int) -> None:
    """Fill a table with orthonormal columns, or with orthonormal rows if it has more columns than rows.

    As by :func:`torch.nn.init.orthogonal_`, they are the Q of a QR decomposition, with signs that make the diagonal of
    R positive; here of the table of :func:`draw_rows`.
    """
    numbers = torch.empty(rows.shape)
    draw_rows(numbers, seed)
    is_wide = rows.size(0) < rows.size(1)
    q, r = torch.linalg.qr(numbers.t() if is_wide else numbers)
    q *= r.diagonal().sign()
    rows.copy_(q.t() if is_wide else q)


# By features.init.
INITS = {"normal": draw_rows, "orthogonal": draw_orthogonal}


def visible(config: GNNConfig, data: Data) -> Data:
    """Leave out the features that a table replaces; what lies in a cache has all of them.

    Of a graph with several types of nodes, the model's encoder leaves them out.
    """
    replaces = config.learned_channels and not config.features.concat and data.types.homogeneous
    return without_features(data) if replaces else data


def without_features(data: Data) -> Data:
    """Return a graph whose nodes have no features, so that a model sees their rows of a table alone."""
    data = copy.copy(data)
    data.x, data.num_categories = data.x[:, :0], 0
    return data


def refuse_sparse_modules(model: torch.nn.Module, optimizer: str) -> None:
    """Refuse a model that makes sparse gradients itself: its optimizer takes dense ones.

    Raises:
        ValueError: names the module.
    """
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"{name or 'the model'} is an {type(module).__name__}(sparse=True), and train.optimizer="
                f"{optimizer} is a dense optimizer, which takes no sparse gradients: set sparse=False "
                "there, or learn a row for each node by features=embedding"
            )


def _with_rows(batch: Data, rows: Tensor, device: torch.device) -> Data:
    batch = copy.copy(
        batch.to(device, non_blocking=True)
    )  # a loader may hand out the same batch again
    batch.x = torch.cat([rows, batch.x], dim=1)
    return batch
