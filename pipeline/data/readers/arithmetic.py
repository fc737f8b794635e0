"""A knowledge graph of arithmetic modulo the number of entities, after GraphVite's; it takes no download."""

import numpy as np

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers.triples import build_triples
from parallel_epochs.pipeline.run.seeds import stream

OPERATORS = "+-*/%"


def read(
    num_entities: int,
    num_operands: int,
    num_train: int,
    num_valid: int,
    num_test: int,
    graph_seed: int,
) -> Graph:
    """Generate the graph.

    Entities are the numbers from 0, a relation is an operator with an operand from 1, such as "*7": the tail is what
    it makes of the head, modulo the number of entities; "/" and "%" are those of whole numbers. Each pair of head and
    relation has one tail, so all triples are listed and those of the splits drawn from them: none is there twice.

    Returns:
        See :func:`pipeline.data.readers.triples.build_triples`.
    """
    sizes = (num_train, num_valid, num_test)
    chosen = stream("math", graph_seed).permutation(num_entities * len(OPERATORS) * num_operands)[
        : sum(sizes)
    ]
    relation, head = np.divmod(chosen, num_entities)
    operator, operand = relation // num_operands, relation % num_operands + 1
    tail = (
        np.select(
            [operator == place for place in range(len(OPERATORS))],
            [head + operand, head - operand, head * operand, head // operand, head % operand],
        )
        % num_entities
    )
    triples = np.split(np.stack([head, relation, tail], axis=1), np.cumsum(sizes)[:-1])
    relations = np.array(
        [f"{sign}{operand}" for sign in OPERATORS for operand in range(1, num_operands + 1)]
    )
    return build_triples(triples, np.arange(num_entities), relations)
