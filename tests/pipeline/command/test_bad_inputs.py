"""Everything that users have been seen to type or to save by mistake, and the line that they read.

Each line says what is wrong and what to do, and comes before anything is written, downloaded or computed for long.
``<*>`` stands for what depends on the machine or the moment. Commands run in a folder that holds ``run``, a run
directory, ``graph.pt``, a graph, and ``folder``, an empty directory.
"""

import importlib
import io
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.command import arguments, cli, schema as configuration
from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.names import MASKS
from tests.helpers.hostile import assert_refused, matches
from tests.helpers.running import TOY, shell, train

TRAIN, EVALUATE, PREDICT, PREPARE = (
    "pipeline.train",
    "pipeline.evaluate",
    "pipeline.predict",
    "pipeline.prepare",
)
BASELINES = "pipeline.baselines"
REPORT, BENCH = "scripts.report", "scripts.bench"
AGGREGATIONS = "softmax, softmax_sg, softmax_sum, mean, max, add"

# What is refused before Hydra, or anything else, has written a file: module, arguments, message behind "error: ".
COMMANDS = [
    # Names that do not exist.
    (TRAIN, "train.lrr=1", "train.lrr is unknown; did you mean train.lr?"),
    (TRAIN, "lr=1", "lr is unknown; did you mean features.lr or train.lr?"),
    (TRAIN, "partion=metis", "partion is unknown; did you mean partition?"),
    (
        TRAIN,
        "partition=metsi",
        "partition=metsi is unknown; choose one of metis, metis_random, random, whole; "
        "did you mean metis?",
    ),
    (TRAIN, "trainer=layout data=vectors data.path=none.npy", "data.path=none.npy does not exist"),
    (TRAIN, "trainer=layout data=vectors", "no value for data.path: give it on the command line"),
    (TRAIN, "trainer=layout data=digits trainer.dim=4", "trainer.dim must be less than 4, not 4"),
    (
        TRAIN,
        "trainer=layout data=digits trainer.init=pca",
        "trainer.init=pca needs data=vectors, since a graph has no principal components; this run has data=digits<*>",
    ),
    (
        TRAIN,
        "trainer=layout data=math",
        "trainer=layout cannot train on data=math, which holds triples. Choose one of "
        "data=synthetic_proteins, digits, ogb, ogb_link, ogb_hetero, file, store, "
        "edges, tables, vectors",
    ),
    (
        TRAIN,
        "data=vectors data.path=graph.pt",
        "trainer=gnn cannot train on data=vectors, which holds vectors. Choose "
        "one of data=synthetic_proteins, digits, ogb, ogb_graph, ogb_link, ogb_hetero, file, store, graph_files, <*>",
    ),
    (
        TRAIN,
        "trainer=layout data=vectors data.path=graph.pt trainer.perplexity=30",
        "trainer.perplexity=30 must be less than trainer.num_neighbors=30: a third of it is usual",
    ),
    (
        TRAIN,
        "model=my_net.Net",
        "model=my_net.Net is unknown; choose one of <*>. A class of your own is model=custom "
        "model.path=my_net.Net",
    ),
    (
        TRAIN,
        "model=custom model.path=my_net.Net model.hidden=3",
        "model.hidden is unknown; did you mean <*>? (an argument of a class of your own is "
        "model.kwargs.hidden=VALUE)",
    ),
    (
        TRAIN,
        "model=pyg model.conv=sageconv",
        "model.conv=sageconv is not a convolution of torch_geometric.nn; did you mean SAGEConv?",
    ),
    (
        TRAIN,
        "experiment=graphvite/rotate_fb15k27",
        "experiment=graphvite/rotate_fb15k27 is unknown; choose one of <*>; "
        "did you mean graphvite/rotate_fb15k237?",
    ),
    (
        TRAIN,
        "-m partition=metis,radnom",
        "partition=radnom is unknown; choose one of metis, metis_random, random, whole; did you mean random?",
    ),
    (
        TRAIN,
        "data.path=graph.pt",
        "data.path is a key of data=file, data=store, data=smiles, data=edges and "
        "data=vectors alone",
    ),
    (
        TRAIN,
        "model=revgnn model.virtual_node=add",
        "model.virtual_node is a key of model=deepergcn alone",
    ),
    (
        TRAIN,
        "+experiment=digits model=custom model.path=a.B model.norm=layer",
        "model.norm is a key of model=deepergcn, model=revgnn, model=rgcn, model=hgt and "
        "model=pyg alone",
    ),
    (
        TRAIN,
        "data=tables data.nodes.features=size",
        "data.nodes.features must be a list, as in [A,B], not size",
    ),
    (TRAIN, "data=tables data.nodes.path=[a]", "data.nodes.path must be a text, not [a]"),
    (
        TRAIN,
        "data=tables data.nodes={features:size}",
        "data.nodes must be a mapping with a list, as in [A,B], for each key that takes one, not {features:size}",
    ),
    (
        TRAIN,
        "model=custom model.kwargs=[3]",
        "model.kwargs must be a mapping, as in {A: 1}, not [3]",
    ),
    (TRAIN, "+experiment=digits trainer=layout trainer.dim=8", "trainer.dim must be <*>, not 8"),
    (
        TRAIN,
        "+experiment=digits model=revgnn trainer=layout",
        "model.name=revgnn is read by trainer=gnn only; <*>",
    ),
    (TRAIN, "runs/first", "runs/first is not of the form key=value: write KEY=VALUE, see --help"),
    (TRAIN, "=1", "=1 names no key: write KEY=VALUE, see --help"),
    (TRAIN, "TRAIN.LR=1", "TRAIN.LR is unknown; see --help"),
    (TRAIN, "train.lr 0.1", "train.lr is not of the form key=value: write KEY=VALUE, see --help"),
    (TRAIN, "++color=1", "color is unknown; see --help"),
    (TRAIN, "hydra.foo=1", "Could not override 'hydra.foo'. Key 'foo' not in 'HydraConf'"),
    (TRAIN, "--gpus 2", "unrecognized arguments: --gpus; see --hydra-help"),
    (
        TRAIN,
        "--train.lr=3",
        "--train.lr is not a flag. Keys have no dashes: did you mean train.lr=VALUE?",
    ),
    (
        EVALUATE,
        "--checkpoint last",
        "--checkpoint is not a flag. Keys have no dashes: did you mean checkpoint=VALUE?",
    ),
    # Values that Hydra cannot parse.
    (TRAIN, "name=a=b", "name=a=b cannot be parsed. Quote the value: 'name=\"a=b\"'"),
    (
        TRAIN,
        "name=a,b",
        "name=a,b is a list of values. Add -m to run each of them, or quote the list: 'name=\"a,b\"'",
    ),
    (TRAIN, "name=größe", "name=größe cannot be parsed. Quote the value: 'name=\"größe\"'"),
    (TRAIN, "name=it's", "name=it's cannot be parsed. Quote the value: 'name=\"it'\"'\"'s\"'"),
    (
        TRAIN,
        "data.folder=~/x",
        "data.folder=~/x cannot be parsed. Quote the value: 'data.folder=\"~/x\"'",
    ),
    (TRAIN, "name=${x}", "Interpolation key 'x' not found"),
    (TRAIN, "tr[a]in=3", "tr[a]in is not the name of a key; <*>"),
    # Values of another type.
    (TRAIN, "train.lr=fast", "train.lr must be a number, not fast"),
    (TRAIN, "train.epochs=true", "train.epochs=true: give a whole number, or auto"),
    (TRAIN, "model.num_layers=1e20", "model.num_layers must be a whole number in digits, not 1e20"),
    (TRAIN, "seed=null", "seed must be given a value, not null"),
    # Values out of range.
    (TRAIN, "train.lr=nan", "train.lr must be a finite number, not nan"),
    (TRAIN, "model.dropout=-inf", "model.dropout must be a finite number, not -inf"),
    (TRAIN, "model.t=1e308", "model.t must be a number of float32, not 1e+308"),
    (TRAIN, "train.lr=0", "train.lr must be more than 0, not 0.0"),
    (TRAIN, "train.label_input=1", "train.label_input must be in [0, 1), not 1.0"),
    (TRAIN, "train.ema=1", "train.ema must be less than 1, not 1"),
    (
        TRAIN,
        "train.ema=0.9 features=embedding",
        "features=embedding needs train.ema=0, since most rows of a learned table rest in most steps; this run has "
        "train.ema=0.9",
    ),
    (
        TRAIN,
        "train.schedule=plateau train.plateau_factor=1",
        "train.plateau_factor must be in (0, 1), not 1.0",
    ),
    (
        TRAIN,
        "trainer=layout data=digits train.schedule=plateau",
        "train.schedule=plateau is read by trainer=gnn only; this command has trainer=layout. Leave it out<*>",
    ),
    (
        TRAIN,
        "train.epochs=99999999999999999999",
        "train.epochs must be less than 2^63, not 99999999999999999999",
    ),
    (TRAIN, "seed=-1", "seed must be in [0, 2^63), not -1"),
    (TRAIN, "device=tpu0", "device=tpu0 is unknown; choose auto, cpu, cuda or cuda:N"),
    (
        TRAIN,
        "data.source=web",
        "data.source=web is unknown; choose one of synthetic_proteins, digits, ogb, ogb_graph, "
        "ogb_link, ogb_hetero, file, store, graph_files, smiles, edges, tables, triples, math, "
        "vectors",
    ),
    (
        TRAIN,
        "model.name=gat",
        "model.name=gat is unknown; choose one of deepergcn, revgnn, rgcn, hgt, pyg, custom, auto",
    ),
    (TRAIN, "model.aggr=median", f"model.aggr=median is unknown; choose one of {AGGREGATIONS}"),
    (
        TRAIN,
        "data.components=second",
        "data.components=second is unknown. Choose all, largest, separate, or <*>"
        "K-th largest component",
    ),
    # Values that contradict each other.
    (
        TRAIN,
        "parallel=single parallel.num_ranks=2",
        "parallel=single needs parallel.num_ranks=1, since <*>",
    ),
    (
        TRAIN,
        "data.num_edges=1000000000",
        "data.num_edges=1,000,000,000 must be between 0 and 15,998,000, half of "
        "the directed edges that 8,000 nodes can have",
    ),
    (
        TRAIN,
        "data.num_nodes=100",
        "data.num_nodes=100 must be at least four times data.num_species=8 and four "
        "times data.num_groups=100; these two and data.num_tasks=16 must be at least 1",
    ),
    (
        TRAIN,
        "data=digits data.train_fraction=1",
        "data.train_fraction=1.0 must be more than 0, data.valid_fraction=0.2 must be at least 0, and their sum must "
        "be at most 1",
    ),
    # Sizes that no machine has.
    (
        TRAIN,
        "parallel.num_ranks=100000000",
        "parallel.num_ranks=100000000: a rank takes at least 50 MB, but this machine has <*>",
    ),
    # Files that are not there.
    (TRAIN, "data=file", "no value for data.path: give it on the command line"),
    (
        TRAIN,
        "data=file data.path=no.pt",
        "data.path=no.pt does not exist",
    ),
    (TRAIN, "data=file data.path=folder", "folder is a directory, not a file"),
    (TRAIN, "data=file data.path=/dev/null", "/dev/null is a device, not a file"),
    (TRAIN, "cache_dir=/dev/null/cache", "cache_dir=/dev/null/cache: /dev/null is not a directory"),
    (TRAIN, "cache_dir=", "no value for cache_dir: give a path"),
    (
        TRAIN,
        "data=ogb data.name=ogbn-mag",
        "data.name=ogbn-mag is unknown; choose one of ogbn-proteins, ogbn-arxiv, ogbn-products",
    ),
    (TRAIN, "data=ogb data.folder=no", "data.folder=no does not exist or is not a folder"),
    (
        TRAIN,
        "experiment=ogbn_proteins",
        "ogbn-proteins is not in data.root=dataset. Run `parallel-epochs prepare "
        "+experiment=ogbn_proteins` on a machine with a network, or set data.folder",
    ),
    # The other programs.
    (
        PREPARE,
        "partition.num_part=3",
        "partition.num_part is unknown; did you mean partition.num_parts?",
    ),
    (PREPARE, "train.lr=nan", "train.lr must be a finite number, not nan"),
    (PREPARE, "data=file", "no value for data.path: give it on the command line"),
    (EVALUATE, "run=run chekpoint=best", "chekpoint is unknown; did you mean checkpoint?"),
    (EVALUATE, "run=run train.lr=1", "train.lr is unknown; see --help"),
    (
        EVALUATE,
        "run=run,other",
        "run=run,other is a list of values. Add -m to run each of them, or quote the list: "
        "'run=\"run,other\"'",
    ),
]

# What a program itself refuses; nothing is written but a log, and that only by train in its run directory.
LATER = [
    (TRAIN, "hydra.run.dir=/dev/null/run", "/dev/null/run: Not a directory"),
    (
        TRAIN,
        "--config-name=foo",
        "Cannot find primary config 'foo'. Check that it's in your config search path.",
    ),
    (TRAIN, "resume=no", "resume=no is not a run directory: it has no config.yaml"),
    (
        TRAIN,
        "resume=auto",
        "resume=auto needs hydra.run.dir=DIR, the directory of the run to continue or begin. A run "
        "in a directory called auto is continued by resume=./auto",
    ),
    (
        TRAIN,
        "resume=auto hydra.run.dir=run train.lr=0.1",
        "<*>/run was trained with other values: data.num_nodes: 240 "
        "-> 8000; <*>train.lr: 0.005 -> 0.1; <*>. Give the old values, or choose another directory",
    ),
    (
        TRAIN,
        "resume=run train.lr=0.1",
        "<*>/run was trained with other values: train.lr: 0.005 -> 0.1. Leave these "
        "keys out: resume=DIR takes the configuration from DIR",
    ),
    (
        TRAIN,
        "resume=run train.epochs=9 partition=metis",
        "<*>/run was trained with other values: partition.name: "
        "random -> metis. Leave these keys out: resume=DIR takes the configuration from DIR",
    ),
    (
        TRAIN,
        "resume=run data=digits data.train_fraction=0.5",
        "<*>/run was trained with trainer=gnn and data=synthetic_proteins and model=deepergcn, which have no "
        "data.train_fraction",
    ),
    (
        TRAIN,
        "hydra.run.dir=run",
        "<*>/run already holds a run: continue it with resume=<*>/run, or choose another directory",
    ),
    (BASELINES, "run=no", "no is not a run directory: it has no config.yaml"),
    (
        BASELINES,
        "run=run seed=1",
        "seed=1: run=DIR takes all keys from DIR. Leave it out, or leave run=DIR out",
    ),
    (
        BASELINES,
        "run=",
        "One argument is missing: run=DIR, a run directory. For example: parallel-epochs baselines "
        "run=DIR",
    ),
    (
        EVALUATE,
        "",
        "One argument is missing: run=DIR, a run directory. For example: parallel-epochs <*>",
    ),
    (
        EVALUATE,
        "run=",
        "One argument is missing: run=DIR, a run directory. For example: parallel-epochs <*>",
    ),
    (EVALUATE, "run=no", "no is not a run directory: it has no config.yaml"),
    (
        EVALUATE,
        "run=run/config.yaml",
        "run=run/config.yaml is no run directory, and no model that export=FILE wrote: "
        "run/config.yaml is damaged: it cannot be read (UnpicklingError)",
    ),
    (EVALUATE, "run=run checkpoint=first", "checkpoint=first is unknown; choose one of best, last"),
    (
        EVALUATE,
        "run=run method=guess",
        "method=guess is unknown; choose one of views, exact, neighbor",
    ),
    (EVALUATE, "run=run device=tpu", "device=tpu is unknown; choose auto, cpu, cuda or cuda:N"),
    (
        EVALUATE,
        "run=run predictions=folder",
        "predictions=folder is not a file: give the name of a file",
    ),
    (
        EVALUATE,
        "run=run predictions=no/logits.pt",
        "predictions=no/logits.pt: the directory no does not exist",
    ),
    (PREDICT, "run=run", "One argument is missing: predictions=FILE, or output=TABLE for a table"),
    (
        PREDICT,
        "output=nodes.csv",
        "One argument is missing: run=DIR, a run directory. For example: parallel-<*>",
    ),
    (
        PREDICT,
        "run=run predictions=/dev/null/x",
        "predictions=/dev/null/x: the directory /dev/null does not exist",
    ),
    (REPORT, "", "the following arguments are required: DIR; see python -m scripts.report --help"),
    (REPORT, "no", "no is not a run directory: it does not exist"),
    (REPORT, "run --out folder", "--output=folder is not a file: give the name of a file"),
    (BENCH, "", "the following arguments are required: bench; see python -m scripts.bench --help"),
    (
        BENCH,
        "aggregate --num-nodes -5",
        "argument --num-nodes: must be a whole number of at least 1, not -5; see "
        "python -m scripts.bench aggregate --help",
    ),
]

# What the graph tells that is opened: the small one of running.TOY, of 240 nodes.
MISFITS = [
    (
        "partition.num_parts=241",
        "partition.num_parts=241 is more than the 240 nodes of the graph; set it to at most "
        "that number",
    ),
    (
        "data.components=9",
        "data.components=9 does not exist: the graph's components are numbered from 1 to 1",
    ),
]


def ring(**changes) -> dict:
    """Six nodes in a ring, checked by hand, with other values of some attributes; None leaves one out."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    mask = torch.tensor([True, True, False, False, False, False])
    graph = {
        "x": torch.arange(12.0).view(6, 2),
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "edge_attr": torch.ones(12, 3),
        "y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "train_mask": mask,
        "valid_mask": mask.roll(2),
        "test_mask": mask.roll(4),
    }
    return {key: value for key, value in {**graph, **changes}.items() if value is not None}


def two_graphs() -> tuple:
    data, slices = InMemoryDataset.collate([Data(**ring()), Data(**ring())])
    return data.to_dict(), slices, Data


def saved(content: object, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def archived(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("graph.csv", "0,1")
    elif kind == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(__file__)
    elif kind == "npz":
        np.savez(buffer, x=np.zeros(3))
    elif kind == "npy":
        np.save(buffer, np.zeros(3))
    elif kind == "jit":
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), buffer)
    return buffer.getvalue()


class RunsCode:
    def __reduce__(self):
        return print, ("code has run",)


def nodes(*numbers: float, dtype=None) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


TEN = ring()["train_mask"].unsqueeze(1).expand(6, 10).contiguous()
CLASSES = (
    "y must hold 0, 1 or NaN for the metric rocauc; for classes save whole numbers in one column, with "
    'metric="acc", and for real values any with metric="rmse" or "mae"'
)
NO_DATA = "graph.pt is not a saved torch_geometric Data: it {}; save one with torch.save"
GAPS = "but only {0} different ones: number them from 0 without gaps, as torch.unique({1}, return_inverse=True)[1] does"
IN_A_COLUMN = " in float32, which ends at 3.4e38: row 0, column 0 holds 1e+300"
# What torch.save wrote, or the bytes of another file, and the message; that of an attribute begins with "graph.pt: ".
GRAPHS = [
    # No file of torch.save, or not of a graph.
    (b"", NO_DATA.format("is empty")),
    (b"source,target\n0,1\n", NO_DATA.format("is text")),
    (bytes(range(256)), NO_DATA.format("cannot be read")),
    (saved(ring())[:-100], NO_DATA.format("is damaged or cut short")),
    (saved(ring())[:500], NO_DATA.format("is damaged or cut short")),
    (archived("zip"), NO_DATA.format("is a zip archive")),
    (archived("tar"), NO_DATA.format("is a tar archive")),
    (archived("npz"), NO_DATA.format("is a zip archive")),
    (archived("npy"), NO_DATA.format("is a numpy array")),
    (archived("jit"), NO_DATA.format("is a TorchScript module")),
    (b"\x1f\x8b\x08" + bytes(50), NO_DATA.format("is a gzip file")),
    (pickle.dumps({"x": 1}), NO_DATA.format("is a pickle")),
    (
        RunsCode(),
        "graph.pt names print, which is not loaded, as it could run code: save a torch_geometric Data of "
        "tensors",
    ),
    ({"x": np.zeros(3)}, "graph.pt holds a numpy array: save torch.from_numpy(...) of it"),
    ([Data(**ring()), Data(**ring())], "graph.pt holds 2 graphs: save the one to train on"),
    (two_graphs(), "graph.pt holds 2 graphs: save the one to train on"),
    (
        torch.zeros(3),
        "graph.pt holds a Tensor, not a graph: save a torch_geometric Data, a HeteroData, or the "
        "dict of names and attributes that one of them gives by to_dict()",
    ),
    (
        "graph",
        "graph.pt holds a str, not a graph: save a torch_geometric Data, a HeteroData, or the "
        "dict of names and attributes that one of them gives by to_dict()",
    ),
    ({}, ": there is no edge_index; it has nothing. Add what is missing"),
    (
        ring(y=None, valid_mask=None),
        ": there is no y, valid_mask; it has x, edge_index, edge_attr, train_mask, test_mask. Add what is missing",
    ),
    # No dense tensors of real numbers.
    (
        ring(edge_attr=torch.eye(12).to_sparse()),
        ": edge_attr must be a dense tensor with content: save edge_attr.to_dense()",
    ),
    (
        ring(edge_attr=None, edge_weight=torch.ones(12).to_sparse()),
        ": edge_weight must be a dense tensor with content: save edge_weight.to_dense()",
    ),
    (ring(x=nodes(1)[0]), ": x is a single number; it must have a row for each node or edge"),
    (ring(y=[0, 1, 2, 0, 1, 2]), ": y must be a tensor, not a list: save torch.tensor(...) of it"),
    (ring(x="features"), ": x must be a tensor, not a str: save torch.tensor(...) of it"),
    (
        ring(x=torch.ones(6, 2) * 1j),
        ": x holds complex numbers: save their real and imaginary parts as columns",
    ),
    (
        ring(x=torch.ones(6, 2, device="meta")),
        ": x must be a dense tensor with content: save x.to_dense()",
    ),
    (
        ring(edge_index=torch.ones(2, 12) > 0),
        ": edge_index must be integers of shape [2, num_edges], not torch.bool of [2, 12]",
    ),
    (
        ring(edge_index=torch.rand(2, 12)),
        ": edge_index must be integers of shape [2, num_edges], not torch.float32 of [2, 12]",
    ),
    # Shapes and lengths.
    (
        ring(edge_index=ring()["edge_index"].t().contiguous()),
        ": edge_index must be integers of shape [2, num_edges], not torch.int64 of [12, 2]: save edge_index.t()",
    ),
    (ring(edge_attr=torch.ones(12, 0)), ": edge_attr has no columns: leave it out"),
    (ring(x=torch.ones(6, 0)), ": x has no columns: leave it out"),
    (ring(y=torch.ones(6, 0)), ": y has no columns"),
    (ring(x=torch.ones(6)), ": x must have 2 dimensions, not the shape [6]"),
    (ring(y=torch.ones(6, 1, 1)), ": y must have 2 dimensions, not the shape [6, 1, 1]"),
    (ring(edge_attr=torch.ones(11, 3)), ": edge_attr has 11 rows for 12 edges"),
    (ring(y=nodes(0, 1, 2, 0, 1)), ": y has 5 rows for 6 nodes"),
    (ring(species=nodes(0, 1, 2)), ": species has 3 rows for 6 nodes"),
    (ring(test_mask=torch.zeros(4) > 0), ": test_mask has 4 rows for 6 nodes"),
    (ring(num_nodes=7), ": num_nodes is 7, but x has 6 rows: correct it, or leave it out"),
    # Numbers out of range.
    (
        ring(edge_index=nodes(0, 6, 1, 0).view(2, 2), edge_attr=None),
        ": edge_index is out of range: it names node 6, the graph has nodes 0 to 5",
    ),
    (
        ring(edge_index=nodes(0, -1, 1, 0).view(2, 2), edge_attr=None),
        ": edge_index is out of range: it names node -1, the graph has nodes 0 to 5",
    ),
    (ring(x=torch.full((6, 2), torch.nan)), ": x is not finite: row 0, column 0 holds nan"),
    (
        ring(edge_attr=torch.full((12, 3), torch.inf)),
        ": edge_attr is not finite: row 0, column 0 holds inf",
    ),
    (ring(x=torch.full((6, 2), 1e300, dtype=torch.float64)), f": x is not finite{IN_A_COLUMN}"),
    (
        ring(edge_attr=torch.full((12, 1), 1e300, dtype=torch.float64)),
        f": edge_attr is not finite{IN_A_COLUMN}",
    ),
    (
        ring(y=nodes(0, 1, 2, 0, 1, 10**9)),
        f": y holds the class 1,000,000,000, {GAPS.format(4, 'y')}",
    ),
    (
        ring(species=nodes(0, 1, 2, 3, 9606, 10**10)),
        f": species holds the species 10,000,000,000, {GAPS.format(6, 'species')}",
    ),
    (
        ring(species=nodes(0, 1, torch.nan, 0, 0, 0)),
        ": species holds nan in row 2; each species must be a whole number from 0",
    ),
    (
        ring(species=nodes(0, 1, 2, -1, 0, 0)),
        ": species holds -1 in row 3; each species must be a whole number from 0",
    ),
    (
        ring(y=nodes(0, -1, 2, 0, 1, 2)),
        ": y holds -1 in row 1; each class must be a whole number from 0",
    ),
    (
        ring(y=nodes(0, 1, 0.5, 0, 1, 2), metric="acc"),
        ": y holds 0.5 in row 2; each class must be a whole number from 0",
    ),
    (
        ring(y=torch.zeros(6, 2, dtype=torch.int64), metric="acc"),
        ": y must have one column of classes for the metric "
        'acc, not 2. Of binary tasks save metric="rocauc"'
        "; task.metric=macro_f1 chooses another for a run",
    ),
    (ring(y=nodes(0.0, 1, 2, 0, 1, 2)), f": {CLASSES}"),
    (ring(y=torch.full((6, 2), 0.5)), f": {CLASSES}"),
    (
        ring(y=torch.full((6, 2), torch.nan)),
        ": y is NaN for every node of the train split: there is nothing to learn",
    ),
    (
        ring(metric="f1"),
        ": the metric is 'f1'; choose one of rocauc, ap, micro_f1, macro_f1, acc, balanced_acc, mae, "
        "rmse",
    ),
    (
        ring(metric=["acc"]),
        ": the metric is ['acc']; choose one of rocauc, ap, micro_f1, macro_f1, acc, balanced_acc, "
        "mae, rmse",
    ),
    # Splits.
    (
        ring(train_mask=nodes(0, -1)),
        ": train_mask must hold true or false for each node, not other numbers",
    ),
    (
        ring(train_mask=TEN),
        ": train_mask has 10 columns, one for each split: choose one with data.mask_column=0 to 9",
    ),
    (
        ring(valid_mask=TEN.unsqueeze(2)),
        ": valid_mask must have 1 dimension, not the shape [6, 10, 1]",
    ),
    (ring(train_mask=torch.zeros(6) > 0), ": the train split is empty: train_mask selects no node"),
    (ring(valid_mask=torch.ones(6) > 0), ": the splits overlap: node 0 is in more than one"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "folder").mkdir()
    torch.save(ring(), folder / "graph.pt")
    trained = shell(TRAIN, *TOY, "hydra.run.dir=run", "train.epochs=1", cwd=folder)
    assert trained.returncode == 0, trained.stderr
    return folder


def listing(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.suffix != ".log"}


@pytest.mark.parametrize("module, typed, message", COMMANDS, ids=lambda value: str(value)[:60])
def test_a_command_is_refused_before_anything_is_written(
    module, typed, message, tmp_path, monkeypatch
):
    def go_on():
        raise AssertionError("not refused")

    (tmp_path / "folder").mkdir(), (tmp_path / "run").mkdir()
    before = listing(tmp_path)
    go_on.__module__ = importlib.import_module(f"parallel_epochs.{module}").__name__
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "register_schema", lambda: None)  # conftest.py has
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", [module, *typed.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.call(
            go_on,
            check={TRAIN: training.check_new, PREPARE: training.check}.get(module),
            needs_data=module == TRAIN,
        )
    assert matches(stopped.value.code, f"error: {message}"), stopped.value.code
    assert "\n" not in stopped.value.code and listing(tmp_path) == before


def test_a_list_of_runs_is_refused_with_the_way_to_average_them():
    error = ValueError(
        "Error merging override run=[a,b] Value '[a,b]' could not be converted to string"
    )
    told = arguments.explain(error)
    assert told.startswith(
        "run must be a text, not [a,b]. To average several runs, name the folder of their sweep, or"
    )


def test_a_level_of_vector_instructions_that_cannot_be_is_refused_first(monkeypatch):
    monkeypatch.setenv("PARALLEL_EPOCHS_SIMD", "avx9")
    with pytest.raises(
        ValueError,
        match="^PARALLEL_EPOCHS_SIMD=avx9 is unknown; choose one of portable, avx2, avx512",
    ):
        training.check(configuration.PRODUCTS["gnn"].config())


def check_shell(place: Path, module: str, typed: str, message: str) -> None:
    """Run a command as a user does: one line, status 1, nothing written but a log."""
    before = listing(place)
    assert_refused(shell(module, *typed.split(), cwd=place), message)
    assert all(path.parts[0] == "outputs" for path in listing(place) - before)


FIRST = {module: row for row in reversed(LATER) for module in row[:1]}.values()


@pytest.mark.parametrize(
    "module, typed, message",
    [pytest.param(*row, marks=[] if row in FIRST else pytest.mark.slow) for row in LATER],
    ids=lambda value: str(value)[:60],
)
def test_a_program_refuses_its_arguments_in_one_line(module, typed, message, place):
    check_shell(place, module, typed, message)


# What the quick test says of each of them is written by a process of its own as well; a few show that.
REAL = COMMANDS[::10] + [
    row for row in {row[0]: row for row in COMMANDS}.values() if row not in COMMANDS[::10]
]


@pytest.mark.slow
@pytest.mark.parametrize("module, typed, message", REAL, ids=lambda value: str(value)[:60])
def test_a_real_command_is_refused_in_one_line(module, typed, message, place):
    check_shell(place, module, typed, message)


@pytest.mark.parametrize("overrides, message", MISFITS, ids=[overrides for overrides, _ in MISFITS])
def test_what_does_not_fit_the_graph_is_refused(overrides, message, configure, tmp_path):
    with pytest.raises(ValueError) as error:
        train(configure(*TOY, *overrides.split()), tmp_path / "run")
    assert matches(str(error.value), message), error.value
    assert not list((tmp_path / "run").rglob("*.pt"))


@pytest.mark.parametrize(
    "content, message", GRAPHS, ids=[message.strip(": ")[:60] for _, message in GRAPHS]
)
def test_a_file_that_holds_no_graph_is_refused(content, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("graph.pt").write_bytes(content if isinstance(content, bytes) else saved(content))
    with pytest.raises(ValueError) as error:
        load(FileConfig(path="graph.pt"), "cache")
    expected = f"graph.pt{message}" if message.startswith(":") else message
    assert str(error.value) == expected
    assert (
        not list(tmp_path.rglob("cache/graphs/*.store"))
        and "code has run" not in capsys.readouterr().out
    )


def test_a_file_that_holds_no_graph_is_one_line_to_a_user(tmp_path):
    torch.save(ring(y=None), tmp_path / "graph.pt")
    failed = shell(TRAIN, "data=file", "data.path=graph.pt", cwd=tmp_path)
    line = (
        "graph.pt: there is no y; it has x, edge_index, edge_attr, train_mask, valid_mask, "
        "test_mask. Add what is missing"
    )
    assert_refused(failed, line)
    assert [
        path.read_text().strip().endswith(f"error: {line}") for path in tmp_path.rglob("train.log")
    ] == [True]


@pytest.mark.parametrize(
    "content, options",
    [
        (ring(), {}),
        (Data(**ring()), {}),
        ([Data(**ring())], {}),
        ((Data(**ring()), None), {}),
        ((ring(), None, Data), {}),
        (ring(train_mask=nodes(1, 1, 0, 0, 0, 0)), {}),
        (ring(train_mask=ring()["train_mask"].unsqueeze(1)), {}),
        (ring(y=nodes(0.0, 1, 2, 0, 1, 2), metric="acc"), {}),
        (ring(edge_index=ring()["edge_index"].to(torch.uint16)), {}),
        (ring(num_nodes=nodes(6)[0]), {}),
        (ring(x=torch.nn.Parameter(ring()["x"])), {}),
        (ring(edge_attr=torch.ones(12, 3) > 0), dict(to_undirected=True)),
    ],
    ids=range(12),
)
def test_what_means_the_same_is_read_the_same(content, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "graph.pt")
    data = load(FileConfig(path="graph.pt", **options), "cache")
    assert [data[mask].nonzero().flatten().tolist() for mask in MASKS] == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(data.x, ring()["x"]) and data.y.flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert data.edge_index.as_tensor().tolist()[0] == [1, 5, 0, 2, 1, 3, 2, 4, 3, 5, 0, 4]
    assert bool((data.edge_attr == 1).all()) and (data.out_channels, data.metric) == (3, "acc")


def test_labels_outside_of_the_splits_do_not_count(tmp_path):
    torch.save(
        ring(y=nodes(0, 1, 2, 0, -9, 10**12), test_mask=torch.zeros(6) > 0), tmp_path / "graph.pt"
    )
    data = load(FileConfig(path=str(tmp_path / "graph.pt")), tmp_path)
    assert data.out_channels == 3 and data.y[:4].flatten().tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("sweep", ["-m", "+sweep=seeds", "hydra.mode=MULTIRUN"])
def test_a_sweep_takes_lists_of_values(sweep):
    arguments.check(
        arguments.parse([sweep, "seed=0,1"]), cli.config_groups(), configuration.all_keys()
    )


def test_a_group_may_be_given_without_its_plus(tmp_path):
    groups = cli.config_groups()
    for given in ("experiment=digits", "+experiment=digits", "++experiment=digits"):
        assert arguments.complete([given, "seed=1"], groups) == ["+experiment=digits", "seed=1"]
    shown = shell(TRAIN, "experiment=digits", "--cfg", "job", cwd=tmp_path)
    assert shown.returncode == 0 and "source: digits" in shown.stdout, shown.stderr
    assert not listing(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "service",
    [
        "--info defaults",
        "--info",
        "--hydra-help",
        "--version",
        "--help",
        "-c job",
        "--cfg hydra -p hydra.run",
    ],
)
def test_hydras_own_services_work(service, tmp_path):
    shown = shell(TRAIN, *service.split(), cwd=tmp_path)
    assert shown.returncode == 0 and shown.stdout and not shown.stderr and not listing(tmp_path)
