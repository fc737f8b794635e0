"""The layers that stand in for PyG's share this: the choice of code and the edges it reads."""

import inspect

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from parallel_epochs.models import notice
from parallel_epochs.models.plain import is_plain

KERNELS = ("auto", "fused", "reference", "pyg")
# The methods that PyG calls on the way from the nodes to the aggregated messages. A subclass may override them.
_STEPS = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")
# The methods that call these. PyG generates both for each class.
_WALKS = ("propagate", "edge_updater")
_HOOKS = tuple(
    f"_{step}_forward_{kind}"
    for step in ("propagate", *_STEPS[:2], *_STEPS[3:])
    for kind in ("pre_hooks", "hooks")
)


class FusedConv(MessagePassing):
    """The common part of the layers that stand in for PyG's. Such a layer inherits from this class, then from PyG's.

    The constructor takes the arguments of PyG's class and `kernel`.

    Args:
        kernel: "fused" for the fused kernel, "reference" for plain torch with the same numbers, "pyg" for PyG's own
            code, or "auto" for the fused kernel where it can run. Where only PyG's own code can do what is asked,
            "auto" and "reference" run that, and one warning says so.

    Raises:
        ValueError: unknown `kernel`.
    """

    kernel: str
    pygs_reason = ""  # why the last call ran PyG's own code

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if FusedConv in cls.__bases__:
            _sign_constructor(cls)

    def __init__(self, *args, kernel: str = "auto", **kwargs):
        if kernel not in KERNELS:
            raise ValueError(f"kernel={kernel} is unknown; choose one of {', '.join(KERNELS)}")
        super().__init__(*args, **kwargs)
        self.kernel = kernel
        self._aggr_kind = type(self.aggr_module)
        if _is_made_by_pyg(type(self)._orig_propagate):
            # PyG uses the inherited code, which may have been generated for another class, without explanations.
            type(self)._orig_propagate = MessagePassing.propagate

    def _runs_pygs_own(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Tensor | SparseTensor,
        special: str = "",
    ) -> str:
        """Return the reason why PyG's own code has to run, or an empty text. A warning says so.

        Args:
            x: features of the nodes, or a pair of those of the sources and the destinations.
            edge_index: edges, which PyG's own code takes as a sparse tensor too.
            special: the reason that is particular to a layer, if there is one.

        Raises:
            ValueError: there is a reason, and ``kernel="fused"``.
        """
        reason = (
            "kernel=pyg" if self.kernel == "pyg" else special or self._why_pygs_own(x, edge_index)
        )
        if reason and self.kernel == "fused":
            raise ValueError(
                f"kernel=fused cannot run: {reason}. Use kernel=auto to run PyG's own code."
            )
        if reason:
            notice.warn(f"{type(self).__name__}: PyG's own code runs ({reason})")
        if not torch.compiler.is_compiling():
            self.pygs_reason = reason
        return reason

    def _why_pygs_own(
        self, x: Tensor | tuple[Tensor, Tensor | None], edge_index: Tensor | SparseTensor
    ) -> str:
        if isinstance(edge_index, SparseTensor) or is_torch_sparse_tensor(edge_index):
            return "a sparse tensor of edges"
        if self.flow != "source_to_target":
            return f"flow={self.flow}"
        if (x if isinstance(x, Tensor) else x[0]).dim() != 2 or self.node_dim not in (-2, 0):
            return "x does not have 2 dimensions, or node_dim is not -2"
        if self.explain:
            return "an explainer's mask"
        if self.decomposed_layers != 1:
            return f"decomposed_layers={self.decomposed_layers}"
        if any(getattr(self, name) for name in _HOOKS):
            return "hooks on the steps of message passing"
        if not is_plain(self.aggr_module, self._aggr_kind):
            return "aggr_module was replaced or has hooks"
        ours = _find_bases(type(self))[0]
        own = [
            step
            for step in _STEPS
            if step in vars(self) or getattr(type(self), step) is not getattr(ours, step)
        ]
        own += [
            walk for walk in _WALKS if not _is_made_by_pyg(getattr(self, walk))
        ]  # explainers set PyG's again
        return f"the class overrides {', '.join(own)}" if own else ""


def _find_bases(kind: type) -> tuple[type, type]:
    """Return the layer of this package that a class is or inherits from, and the class of PyG that it stands in for."""
    ours = next(base for base in kind.__mro__ if FusedConv in base.__bases__)
    return ours, ours.__bases__[-1]


def _sign_constructor(cls):
    """Give a class a constructor, unless it has one, and the signature of PyG's with the keywords that it adds."""
    if "__init__" not in vars(cls):

        def __init__(self, *args, kernel="auto", **kwargs):
            super(cls, self).__init__(*args, kernel=kernel, **kwargs)

        cls.__init__ = __init__
    signature = inspect.signature(cls.__bases__[-1].__init__)
    *parameters, more = signature.parameters.values()
    assert more.kind is inspect.Parameter.VAR_KEYWORD, (
        "every layer of PyG's takes the arguments of MessagePassing"
    )
    added = [
        parameter
        for parameter in inspect.signature(cls.__init__).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    cls.__init__.__signature__ = signature.replace(parameters=[*parameters, *added, more])


def _is_made_by_pyg(walk) -> bool:
    walk = getattr(walk, "__func__", walk)  # a method of an object
    return walk in (MessagePassing.propagate, MessagePassing.edge_updater) or getattr(
        walk, "__module__", ""
    ).endswith(("_propagate", "_edge_updater"))


def read_nodes(
    x: Tensor | tuple[Tensor, Tensor | None], edge_index: Tensor, size: tuple | None = None
) -> tuple[Tensor, Tensor | None, int]:
    """Return the features of sources and of destinations, and the number of destinations.

    Raises:
        ValueError: `x` has other numbers of nodes than `size` or an ``EdgeIndex`` says.
    """
    x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
    if isinstance(edge_index, EdgeIndex):
        size = edge_index.sparse_size()
    num_src, num_dst = (None, None) if size is None else size
    for name, nodes, expected in (("source", x_src, num_src), ("destination", x_dst, num_dst)):
        if nodes is not None and expected is not None and nodes.size(0) != expected:
            raise ValueError(
                f"x has {nodes.size(0)} {name} nodes, but the edges are between {num_src} source and "
                f"{num_dst} destination nodes"
            )
    if x_dst is not None:
        return x_src, x_dst, x_dst.size(0)
    return x_src, x_dst, x_src.size(0) if num_dst is None else num_dst
