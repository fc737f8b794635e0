"""Molecules as SMILES in a table, made graphs by RDKit with OGB's features of atoms and bonds."""

import logging
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_metric
from parallel_epochs.pipeline.data.columns import open_unzipped, read_names, read_table
from parallel_epochs.pipeline.data.config import SPLIT_COLUMN, SmilesConfig
from parallel_epochs.pipeline.data.content import hash_named
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers import many  # which keeps ogb from asking the network
from parallel_epochs.pipeline.data.readers.many import Graphs
from parallel_epochs.pipeline.names import SPLIT_NAMES, SPLITS

from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims  # isort: skip

log = logging.getLogger(__name__)


def hash_content(path: str) -> str:
    """Compute a digest of the table."""
    return hash_named([Path(path)])


def read(config: SmilesConfig, needs_labels: bool = True) -> Graph:
    """Read a table of molecules.

    Args:
        needs_labels: whether to read labels and splits, too.

    Returns:
        A union of their graphs: ``x`` [atoms, 9] and ``edge_attr`` [2 * bonds, 3], uint8, with ``x_tables`` and
        ``edge_tables``; empty cells of the labels are NaN.

    Raises:
        ValueError: no such table or columns, or a molecule that RDKit does not read; the message names the row.
    """
    check_metric(config.metric)
    path, table, masks = config.path, _read_table(Path(config.path)), list[Tensor]()
    rows = list(enumerate(table["smiles"].fillna("").astype(str)))
    graphs = many.read_in_parallel(partial(read_molecule, path), rows)
    if needs_labels:
        graphs.y = _read_labels(table, config)
        if SPLIT_COLUMN in table:
            masks = _read_masks(table, path)
        else:
            masks = many.divide_graphs(len(table), config)
    data = many.as_union(graphs, metric=config.metric, masks=masks)
    data.x_tables, data.edge_tables = get_atom_feature_dims(), get_bond_feature_dims()
    return data


def name_graphs(path: str) -> list[str]:
    """Return the SMILES of the molecules in the order of the rows."""
    return list(_read_table(Path(path))["smiles"].fillna("").astype(str))


def read_molecule(path: str, row: tuple[int, str]) -> Graphs:
    """Make a molecule a graph.

    Args:
        path: of the table, for messages.
        row: number of the row, from 0 without the head, and the SMILES.

    Raises:
        ValueError: RDKit does not read it; the message names the row.
    """
    from ogb.utils.mol import smiles2graph
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined] # what it prints names no row
    number, smiles = row
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(
            f"{path}: row {number} (from 0, below the header): RDKit reads no molecule in {smiles!r}. "
            "Correct it, or leave the row out"
        )
    graph = smiles2graph(smiles)
    edges = graph["edge_index"]
    features = (graph[name].astype(np.uint8) for name in ("node_feat", "edge_feat"))
    return Graphs(np.array([graph["num_nodes"]]), np.array([edges.shape[1]]), edges, *features)


def _read_table(path: Path) -> pandas.DataFrame:
    with open_unzipped(path) as file, warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:  # with an index pandas would shift the columns, where lines have one cell more than the head
            table = read_table(file, str(path), ",", index_col=False)
        except pandas.errors.ParserWarning:
            raise ValueError(
                f"{path}: its rows have more cells than its head has names, {len(read_names(path))}: "
                "quote cells that hold a comma"
            ) from None
    if not len(table):
        raise ValueError(f"{path} has a header, but no rows")
    return table


def _read_labels(table: pandas.DataFrame, config: SmilesConfig) -> np.ndarray:
    """Return the labels [num_rows, columns]: int64 if all are whole numbers, else float32."""
    path, names = config.path, config.label_columns
    if names is None:
        others = {"smiles", SPLIT_COLUMN}
        is_number = pandas.api.types.is_numeric_dtype
        names = [name for name in table if name not in others and is_number(table[name])]
        log.info("%s: labels are the columns %s", path, ", ".join(map(str, names)))
    if not names:
        raise ValueError(
            f"{path} has no column of numbers for labels: name some in data.label_columns"
        )
    for name in names:
        if not pandas.api.types.is_numeric_dtype(table[name]):
            raise ValueError(
                f"data.label_columns={name}: the column of {path} holds {table[name].dtype}, not numbers"
            )
    y = table[names].to_numpy(np.float64)
    is_whole = (np.abs(y) < 2**53).all() and (y == np.round(y)).all()
    return y.astype(np.int64 if is_whole else np.float32)


def _read_masks(table: pandas.DataFrame, path: str) -> list[Tensor]:
    column = table[SPLIT_COLUMN].map(lambda cell: SPLIT_NAMES.get(str(cell).strip().lower(), cell))
    if len(wrong := column[~column.isin(SPLITS)]):
        raise ValueError(
            f"{path}: row {wrong.index[0]} (from 0, below the header) of the column {SPLIT_COLUMN} is "
            f"{wrong.iloc[0]!r}, not train, valid or test"
        )
    if not (column == SPLITS[0]).any():
        raise ValueError(
            f"{path}: the train split is empty: no row has train in the column {SPLIT_COLUMN}"
        )
    return [torch.tensor((column == split).tolist()) for split in SPLITS]
