"""`python -m scripts.simulate_scaling`: what parallel epochs on 1 to 512 ranks would take, by formula \
(docs/scaling.md).

Nothing is trained: a step's time, the gradient's size and the network's bandwidths go in, a table in Markdown comes
out.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Network:
    """Bandwidths in bytes a second for each direction, latencies in seconds for each message."""

    ranks_per_node: int = 8
    node_bandwidth: float = 370e9  # between GPUs of a node: NCCL's ring over NVLink 4
    node_latency: float = 3.4e-6
    network_bandwidth: float = 8 * 46e9  # out of a node: eight NDR adapters
    network_latency: float = 9.6e-6
    start: float = 8.4e-6  # of any all-reduce


def ring_seconds(num_ranks: int, num_bytes: float, bandwidth: float, latency: float) -> float:
    """A ring all-reduce: 2 (W - 1) messages one after the other, each of 1 / W of the bytes."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / bandwidth + 2 * (num_ranks - 1) * latency


def all_reduce_seconds(num_ranks: int, num_bytes: float, network: Network) -> float:
    """Summing over the ranks of a node, then over the nodes, where each rank of a node carries its share of the bytes.

    Args:
        num_bytes: of the gradient.
    """
    if num_ranks == 1:
        return 0.0
    within = min(num_ranks, network.ranks_per_node)
    nodes = math.ceil(num_ranks / network.ranks_per_node)
    return (network.start + ring_seconds(within, num_bytes, network.node_bandwidth, network.node_latency)
            + ring_seconds(nodes, num_bytes, network.network_bandwidth, network.network_latency))


def slowest_seconds(num_ranks: int, step_seconds: float, spread: float, *, draws: int = 4000, seed: int = 0) -> float:
    """Mean time of the slowest of the ranks, for which all others wait.

    Args:
        spread: standard deviation of a rank's step time, as a fraction of the mean; normally distributed.
    """
    times = np.random.default_rng(seed).standard_normal((draws, num_ranks))
    # One rank waits for nobody: its mean is the mean, not that of these draws.
    return step_seconds * (1 + spread * float(times.max(1).mean() if num_ranks > 1 else 0))


def simulate(num_ranks: int, *, step_seconds: float, spread: float, num_bytes: float, network: Network,
             epochs: int, steps_per_epoch: int) -> dict[str, float]:
    """One line of the table; times in seconds, and nothing of a step's communication hidden behind its computation."""
    communication = all_reduce_seconds(num_ranks, num_bytes, network)
    step = slowest_seconds(num_ranks, step_seconds, spread) + communication
    rounds = math.ceil(epochs / num_ranks)
    steps = rounds * steps_per_epoch
    return {"num_ranks": num_ranks, "all_reduce": communication, "step": step, "efficiency": step_seconds / step,
            "graphs_per_step": num_ranks / steps_per_epoch, "rounds": rounds, "steps": steps,
            "training": steps * step, "speed_up": epochs * steps_per_epoch * step_seconds / (steps * step)}


def table(rows: list[dict[str, float]]) -> str:
    """The lines as Markdown."""
    lines = ["| ranks | all-reduce, ms | step, ms | efficiency | graphs in a step | rounds | steps of a rank "
             "| training | data speed-up |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['num_ranks']} | {row['all_reduce'] * 1e3:.2f} | {row['step'] * 1e3:,.1f} | "
                     f"{row['efficiency']:.1%} | {row['graphs_per_step']:g} | {row['rounds']:,} | "
                     f"{row['steps']:,} | {_duration(row['training'])} | {row['speed_up']:.3g} |")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e3:.3g} ms"


def main() -> None:
    default = Network()
    parser = argparse.ArgumentParser(prog="python -m scripts.simulate_scaling", description=__doc__.split("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2**i for i in range(10)], metavar="W",
                        help="numbers of ranks")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[100.0], metavar="MS",
                        help="times of a step on one rank")
    parser.add_argument("--spread", type=float, default=0.03,
                        help="standard deviation of a step's time, as a fraction of it")
    parser.add_argument("--parameters", type=int, default=2_374_568, help="of the model, in float32")
    parser.add_argument("--epochs", type=int, default=1000, help="passes over the graph, summed over the ranks")
    parser.add_argument("--steps-per-epoch", type=int, default=10, help="clusters of a partition")
    parser.add_argument("--ranks-per-node", type=int, default=default.ranks_per_node, help="ranks of one node")
    parser.add_argument("--node-gbytes", type=float, default=default.node_bandwidth / 1e9,
                        help="GB/s between ranks of a node")
    parser.add_argument("--network-gbytes", type=float, default=default.network_bandwidth / 1e9,
                        help="GB/s out of a node")
    parser.add_argument("--node-us", type=float, default=default.node_latency * 1e6,
                        help="latency within a node, microseconds")
    parser.add_argument("--network-us", type=float, default=default.network_latency * 1e6,
                        help="latency between nodes, microseconds")
    options = parser.parse_args()
    network = Network(options.ranks_per_node, options.node_gbytes * 1e9, options.node_us * 1e-6,
                      options.network_gbytes * 1e9, options.network_us * 1e-6)
    for step_ms in options.step_ms:
        print(f"\nstep {step_ms:g} ms, spread {options.spread:.1%}, gradient {options.parameters * 4 / 1e6:.1f} MB, "
              f"{options.epochs:,} epochs of {options.steps_per_epoch} steps\n")
        print(table([simulate(w, step_seconds=step_ms / 1e3, spread=options.spread, num_bytes=4 * options.parameters,
                              network=network, epochs=options.epochs, steps_per_epoch=options.steps_per_epoch)
                     for w in options.ranks]))


if __name__ == "__main__":
    main()
