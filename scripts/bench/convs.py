"""Layers that run fused here, forward and backward, compared with PyG's own and with DGL's."""

import copy
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.networks.pyg import FUSED, PyGModel
from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.scripts.bench import graphs
from parallel_epochs.scripts.bench.graphs import CLUSTER
from parallel_epochs.scripts.bench.measure import (
    assert_close,
    backward,
    beside,
    describe_extensions,
    extra_of_both,
    four_digits,
    make_step,
    say,
    seconds_of,
    side_by_side,
    write_row,
)

# They were compiled for another torch. Message passing does not need them.
DGL_UNUSED = ("dgl.graphbolt", "dgl.sparse")
INSTALL_DGL = "pip install --no-deps --target FOLDER dgl==2.1.0 networkx psutil requests"


@dataclass(frozen=True)
class Case:
    """A layer with `channels` inputs and outputs.

    Attributes:
        conv: name of PyG's class.
        heads: number of heads, which share the channels; 0 for a layer without.
        edges: what the layer reads of an edge: nothing, one weight, or features.
        dgl: name of DGL's class, if it has the layer.
        kwargs: arguments of PyG's class so that all compute the same.
    """

    conv: str
    heads: int = 0
    edges: str = "nothing"
    dgl: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return (
            self.conv
            + (f", {self.heads} heads" if self.heads else "")
            + ("" if self.edges == "nothing" else f", {self.edges}")
        )


NO_LOOPS = {"add_self_loops": False}
CASES = (
    Case("GCNConv", edges="weight", dgl="GraphConv", kwargs={"normalize": False, **NO_LOOPS}),
    Case("SAGEConv", dgl="SAGEConv"),
    Case("GATConv", heads=4, dgl="GATConv", kwargs=NO_LOOPS),
    Case("GATv2Conv", heads=4, dgl="GATv2Conv", kwargs=NO_LOOPS),
    Case("GATConv", heads=4, edges="features", kwargs=NO_LOOPS),
    Case("GATv2Conv", heads=4, edges="features", kwargs=NO_LOOPS),
    Case("TransformerConv", heads=4, edges="features"),
    Case("GINEConv", edges="features"),
    Case("ResGatedGraphConv", edges="features"),
    Case(
        "PNAConv",
        kwargs={
            "aggregators": ["mean", "min", "max", "std"],
            "deg": torch.tensor([0, 9]),
            "scalers": ["identity", "amplification", "attenuation"],
        },
    ),
)


STEP, NUM_LAYERS, NUM_TASKS = "a training step of model=pyg, GATv2Conv", 6, 112


def bench_convs(
    num_nodes: int = CLUSTER[0],
    num_edges: int = CLUSTER[1],
    channels: int = 64,
    repeat: int = 3,
    cases: tuple[str, ...] = (),
    dgl: str = "",
    device: str = "cpu",
    busy: bool = False,
    compiled: bool = False,
) -> None:
    """Measure time and memory of the layers that run fused, beside PyG's and DGL's.

    Args:
        cases: layers whose name contains one of these texts (default: all).
        compiled: afterwards, also measure PyG's layers as torch.compile makes them.
        busy: only measure a GENConv next to a process that never sleeps, and without it.
    """
    if busy:
        return _measure_beside_neighbour(num_nodes, num_edges, channels, repeat)
    place = choose_device(device)
    if dgl and place.type == "cuda":
        raise ValueError(
            f"--dgl with --device={device}: the package of {INSTALL_DGL} computes on the CPU alone"
        )
    chosen = [case for case in CASES if not cases or any(text in case.name for text in cases)]
    takes_step = not cases or any(text in STEP for text in cases)
    if not chosen and not takes_step:
        raise ValueError(
            f"--cases {' '.join(cases)}: no layer has such a name; there are "
            f"{'; '.join(case.name for case in CASES)}"
        )
    data = with_self_loops(graphs.proteins(num_nodes, num_edges // 2 * 2)).to(place)
    library = import_dgl(dgl) if dgl else None
    row = dict[str, Any]()
    for case in chosen:
        row = _measure(case, data, channels, repeat, library)
        write_row(row)
    if takes_step:
        write_row(dict.fromkeys(row, "") | _measure_step(data, channels, repeat))
    for case in chosen if compiled else ():
        write_row(_measure_compiled(case, data, channels, repeat))


def _measure_beside_neighbour(*sizes: int) -> None:
    """Measure in a new process for each order of imports, since libgomp reads its variables when it is loaded."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    for first in ("parallel_epochs", "torch"):
        say(f"{first} is imported first")
        code = (
            f"import {first}, torch; torch.set_num_threads({torch.get_num_threads()})\n"
            f"from parallel_epochs.scripts.bench.convs import time_beside_neighbour as t; t{sizes}"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
        write_row({"bench": "convs --busy", "imported_first": first, **json.loads(found.stdout)})


def time_beside_neighbour(num_nodes: int, num_edges: int, channels: int, repeat: int) -> None:
    """Time forward and backward of a GENConv with and without a busy neighbour, and print the times as JSON."""
    data = graphs.proteins(num_nodes, num_edges // 2 * 2)
    theirs, ours = build(Case("GENConv", edges="features"), channels, data.edge_attr.size(1))
    x, gradient = (
        graphs.exact(num_nodes, channels).requires_grad_(),
        graphs.exact(num_nodes, channels),
    )

    def run(conv: torch.nn.Module = ours) -> dict[str, Tensor]:
        return backward(
            conv(x, data.edge_index, data.edge_attr),
            {"x": x, **dict(conv.named_parameters())},
            gradient,
        )

    assert_close(
        *({name: of[name] for name in ("out", "x")} for of in (run(), run(theirs))), tolerance=1e-3
    )
    rounds = []
    for round_ in range(repeat):
        quiet = statistics.median(seconds_of(run) for _ in range(15))
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
            time.sleep(0.3)
            busy = statistics.median(seconds_of(run) for _ in range(15))
            neighbour.kill()
        rounds.append((quiet, busy, busy / quiet))
        say(
            f"round {round_ + 1}: alone {quiet:.4f} s, next to a busy process {busy:.4f} s, ratio {busy / quiet:.2f}"
        )
    names = "alone_median_s", "busy_median_s", "ratio_median"
    print(
        json.dumps(
            {
                name: four_digits(statistics.median(values))
                for name, values in zip(names, zip(*rounds))
            }
        )
    )


def _measure_step(data: Data, channels: int, repeat: int) -> dict:
    """Compare a training step of `model=pyg`: 6 layers of GATv2Conv with edge features, norm and dropout."""
    say(STEP)
    torch.manual_seed(0)
    place = data.edge_attr.device
    options = {
        "edge_dim": data.edge_attr.size(1),
        "conv": "GATv2Conv",
        "kwargs": {"heads": 4, **NO_LOOPS},
    }
    ours = PyGModel(channels, channels, NUM_TASKS, NUM_LAYERS, kernel="fused", **options).to(place)
    theirs = PyGModel(channels, channels, NUM_TASKS, NUM_LAYERS, kernel="pyg", **options).to(place)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(data.num_nodes, channels).to(place)
    y = (torch.rand(data.num_nodes, NUM_TASKS) < 0.3).float().to(place)

    with torch.no_grad():  # without dropout, of which both draw other masks
        found, expected = (
            model.eval()(x, data.edge_index, data.edge_attr) for model in (ours, theirs)
        )
    assert_close({"out": found}, {"out": expected}, tolerance=1e-4)
    our_step, their_step = (
        make_step(
            model.train(),
            lambda model=model: binary_cross_entropy_with_logits(
                model(x, data.edge_index, data.edge_attr), y
            ),
        )
        for model in (ours, theirs)
    )
    return {
        "bench": "convs",
        "conv": STEP,
        "channels": channels,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "pyg_with": describe_extensions(),
        **side_by_side(their_step, our_step, repeat, inner=5),
        **extra_of_both(their_step, our_step),
    }


def with_self_loops(data: Data) -> Data:
    """Add a self-loop to each node, with features of zeros, and sort the edges by destination."""
    loops, edge_index = torch.arange(data.num_nodes), data.edge_index.as_tensor()
    src, dst = torch.cat([edge_index, torch.stack([loops, loops])], 1)
    attr = torch.cat([data.edge_attr, torch.zeros(data.num_nodes, data.edge_attr.size(1))])
    dst, order = dst.sort(stable=True)
    indptr = torch.searchsorted(dst, torch.arange(data.num_nodes + 1))
    return Data(
        edge_index=from_csc(torch.stack([src[order], dst]), indptr),
        edge_attr=attr[order],
        num_nodes=data.num_nodes,
    )


def import_dgl(folder: str) -> ModuleType:
    """Import DGL from a folder that is not among those of this environment.

    Raises:
        ValueError: it is not there, or does not work with this torch.
    """
    sys.path.append(folder)
    os.environ.setdefault(
        "DGLBACKEND", "pytorch"
    )  # it would write a file into the user's home otherwise
    for name in DGL_UNUSED:
        sys.modules.setdefault(name, ModuleType(name))
    try:
        return importlib.import_module("dgl")
    except Exception as error:  # of whatever kind its set-up raises
        raise ValueError(
            f"--dgl={folder}: DGL cannot be imported ({one_line(error)}); install it with "
            f"{INSTALL_DGL}"
        ) from error


def _measure(
    case: Case, data: Data, channels: int, repeat: int, library: ModuleType | None
) -> dict:
    say(case.name)
    torch.manual_seed(0)
    theirs, ours, x, weight, edges, plain, gradient = _inputs(case, data, channels)
    run = partial(_run, gradient=gradient)

    setup = seconds_of(lambda: run(ours, plain, x, *edges)) - min(
        seconds_of(lambda: run(ours, plain, x, *edges)) for _ in range(3)
    )
    exact = run(
        copy.deepcopy(theirs).double(), plain, x.double(), *(value.double() for value in edges)
    )
    # A softmax does not change if the same is added to all keys, so that the gradient of their bias is 0.
    keys = "lin_key.bias", "lin_key.weight"
    scales = {keys[0]: float(exact[keys[1]].abs().max())} if keys[0] in exact else {}
    found = run(ours, data.edge_index, x, *edges)
    assert_close(found, exact, tolerance=1e-4, scales=scales)
    row = {
        "bench": "convs",
        "conv": case.name,
        "channels": channels,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "pyg_with": describe_extensions(),
        "ours_setup_s": round(setup, 4),
    }
    row |= side_by_side(
        lambda: run(theirs, plain, x, *edges),
        lambda: run(ours, data.edge_index, x, *edges),
        repeat,
        inner=9,
    )
    row |= extra_of_both(
        lambda: run(theirs, plain, x, *edges), lambda: run(ours, data.edge_index, x, *edges)
    )
    return row | _beside_dgl(
        case,
        library,
        data,
        theirs,
        channels,
        x,
        gradient,
        weight,
        exact["out"],
        lambda: run(ours, data.edge_index, x, *edges),
        repeat,
    )


def _inputs(
    case: Case, data: Data, channels: int
) -> tuple[torch.nn.Module, torch.nn.Module, Tensor, Tensor, tuple[Tensor, ...], Tensor, Tensor]:
    """Make PyG's layer and ours, features of the nodes, weights of the edges, what the layers read of the edges, the
    edges as PyG gets them, and the gradient of the output.
    """
    place = data.edge_attr.device
    theirs, ours = (conv.to(place) for conv in build(case, channels, data.edge_attr.size(1)))
    x = graphs.exact(data.num_nodes, channels).to(place).requires_grad_()
    gradient = graphs.exact(data.num_nodes, channels).to(place)
    weight = graphs.exact(data.num_edges).to(place).abs() + 1 / 32
    edges = {"nothing": (), "weight": (weight,), "features": (data.edge_attr,)}[case.edges]
    return theirs, ours, x, weight, edges, data.edge_index.as_tensor().clone(), gradient


def _run(
    conv: torch.nn.Module,
    edge_index: Tensor | EdgeIndex,
    x: Tensor,
    *edges: Tensor,
    gradient: Tensor,
) -> dict[str, Tensor]:
    """Compute the output of a layer, and the gradients of the nodes' features and of its parameters."""
    return backward(
        conv(x, edge_index, *edges), {"x": x, **dict(conv.named_parameters())}, gradient.to(x.dtype)
    )


def _measure_compiled(case: Case, data: Data, channels: int, repeat: int) -> dict:
    """Compare with PyG's layer as torch.compile makes it; without columns of numbers where that fails."""
    say(f"{case.name}, PyG's compiled")
    theirs, ours, x, _, edges, plain, gradient = _inputs(case, data, channels)
    run_theirs = partial(_run, torch.compile(theirs), plain, x, *edges, gradient=gradient)
    run_ours = partial(_run, ours, data.edge_index, x, *edges, gradient=gradient)
    row = {
        "bench": "convs compiled",
        "conv": case.name,
        "channels": channels,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
    }
    try:
        found = run_theirs()["out"]
    except Exception as error:  # of whatever kind the compiler raises
        say(f"torch.compile of PyG's layer failed: {one_line(error)[:200]}")
        return row | beside("compiled", None, run_ours, repeat, 9)
    assert_close({"out": found}, {"out": run_ours()["out"]}, tolerance=1e-3)
    return row | beside("compiled", run_theirs, run_ours, repeat, 9)


def build(case: Case, channels: int, edge_dim: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Create PyG's layer and ours with the same parameters."""
    kwargs: dict[str, Any] = dict(case.kwargs)
    if case.heads:
        kwargs["heads"] = case.heads
    if case.edges == "features":
        kwargs["edge_dim"] = edge_dim
    if case.conv == "GINEConv":
        kwargs["nn"] = torch.nn.Linear(channels, channels)
    else:
        kwargs |= {"in_channels": channels, "out_channels": channels // max(case.heads, 1)}
    kind = getattr(pyg, case.conv)
    theirs, ours = kind(**kwargs), FUSED[kind](**copy.deepcopy(kwargs), kernel="fused")
    with (
        torch.no_grad()
    ):  # multiples of 1/32, so that rounding decides no (leaky) ReLU, see `graphs.proteins`
        for parameter in theirs.parameters():
            parameter.copy_(graphs.exact(*parameter.shape, scale=1 / 8))
        if case.conv == "PNAConv":  # torch halves the gradient of a maximum that is exactly 0
            theirs.pre_nns[0][0].bias += 1 / 4096
        if case.dgl == "GATv2Conv":  # DGL's has no bias of the output
            theirs.bias.zero_()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def _beside_dgl(
    case: Case,
    library: ModuleType | None,
    data: Data,
    theirs: torch.nn.Module,
    channels: int,
    x: Tensor,
    gradient: Tensor,
    weight: Tensor,
    exact: Tensor,
    ours: Callable[[], object],
    repeat: int,
) -> dict:
    """Time DGL's layer; empty columns where DGL does not have it or was left out."""
    if library is None or not case.dgl:
        return {"dgl_setup_s": ""} | beside("dgl", None, ours, repeat, 9)
    src, dst = data.edge_index.as_tensor()
    graph = library.graph((src, dst), num_nodes=data.num_nodes)
    setup = seconds_of(graph.create_formats_)
    conv = copy_to_dgl(library, case, theirs, channels)
    more = {"edge_weight": weight} if case.edges == "weight" else {}

    def run() -> Tensor:
        out = conv(graph, x, **more).reshape(data.num_nodes, channels)
        torch.autograd.grad(out, [x, *conv.parameters()], gradient)
        return out.detach()

    assert_close({"DGL's out": run()}, {"DGL's out": exact}, tolerance=1e-4)
    return {"dgl_setup_s": round(setup, 4)} | beside("dgl", run, ours, repeat, 9)


@torch.no_grad()
def copy_to_dgl(
    library: ModuleType, case: Case, theirs: torch.nn.Module, channels: int
) -> torch.nn.Module:
    """Create DGL's layer with the parameters of PyG's."""
    nn, given = importlib.import_module("dgl.nn"), dict(theirs.named_parameters())
    if case.dgl == "GraphConv":
        conv = nn.GraphConv(channels, channels, norm="none")
        pairs = {"weight": given["lin.weight"].t(), "bias": given["bias"]}
    elif case.dgl == "SAGEConv":
        conv = nn.SAGEConv(channels, channels, "mean")
        pairs = {
            "fc_neigh.weight": given["lin_l.weight"],
            "fc_self.weight": given["lin_r.weight"],
            "fc_self.bias": given["lin_l.bias"],
        }
    elif case.dgl == "GATConv":
        conv = nn.GATConv(channels, channels // case.heads, case.heads)
        pairs = {
            "fc.weight": given["lin.weight"],
            "attn_l": given["att_src"],
            "attn_r": given["att_dst"],
            "bias": given["bias"],
        }
    else:
        conv = nn.GATv2Conv(channels, channels // case.heads, case.heads)
        # DGL adds its bias to the messages too, as PyG does.
        pairs = {
            "attn": given["att"],
            "fc_src.weight": given["lin_l.weight"],
            "fc_src.bias": given["lin_l.bias"],
            "fc_dst.weight": given["lin_r.weight"],
            "fc_dst.bias": given["lin_r.bias"],
        }
    parameters = dict(conv.named_parameters())
    for name, value in pairs.items():
        parameters[name].copy_(value.reshape(parameters[name].shape))
    return conv
