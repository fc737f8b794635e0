"""Defines the parts of an attention score."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class AttentionScore(NamedTuple):
    """A score of edges, whose softmax weights the messages.

    The key of an edge is what its source has plus its encoded features, and the query is what its destination has.

    Attributes:
        compute: reference, from keys, queries (or none), `att` (or none) and the negative slope to the scores
            [num_edges, heads]. Keys and queries are [num_edges, heads, channels], or [num_edges, heads] if `by_head`.
        by_head: whether keys and queries are one number for each head.
        reads_source: whether sources have keys of their own; otherwise their messages are the keys.
        needs_target: whether a query has to be there.
        reads_att: whether there is a learned vector for each head [heads, channels].
        encodes_messages: whether the encoded features are added to the messages, too, as TransformerConv does; the
            weights that are returned are then those before dropout.
        kernels: types of the devices that have a fused kernel.
        by_source: whether backward of the kernel in C++ walks over edges by source: without and with edge features.
    """

    compute: Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]
    by_head: bool = False
    reads_source: bool = False
    needs_target: bool = True
    reads_att: bool = False
    encodes_messages: bool = False
    kernels: tuple[str, ...] = ()
    by_source: tuple[bool, bool] = (False, False)
