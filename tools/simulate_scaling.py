"""`python -m tools.simulate_scaling`: estimate the time of parallel epochs on 1 to 512 ranks (docs/scaling.md).

Nothing is trained. The script reads the time of a step, the size of the gradient and the bandwidths of the network, and
prints a Markdown table.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Network:
    """Bandwidths in bytes per second and direction, and latencies in seconds per message."""

    ranks_per_node: int = 8
    node_bandwidth: float = 370e9  # between GPUs of a node: NCCL's ring over NVLink 4
    node_latency: float = 3.4e-6
    network_bandwidth: float = 8 * 46e9  # out of a node: eight NDR adapters
    network_latency: float = 9.6e-6
    start: float = 8.4e-6  # of any all-reduce


def ring_seconds(num_ranks: int, num_bytes: float, bandwidth: float, latency: float) -> float:
    """Return the time of a ring all-reduce: 2 (W - 1) messages one after the other, each of 1 / W of the bytes."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / bandwidth + 2 * (num_ranks - 1) * latency


def all_reduce_seconds(num_ranks: int, num_bytes: float, network: Network) -> float:
    """Return the time of an all-reduce within the nodes and then among them, where each rank sends its share.

    Args:
        num_bytes: size of the gradient.
    """
    if num_ranks == 1:
        return 0.0
    within = min(num_ranks, network.ranks_per_node)
    nodes = math.ceil(num_ranks / network.ranks_per_node)
    return (network.start + ring_seconds(within, num_bytes, network.node_bandwidth, network.node_latency)
            + ring_seconds(nodes, num_bytes, network.network_bandwidth, network.network_latency))


def slowest_seconds(num_ranks: int, step_seconds: float, spread: float, *, draws: int = 4000, seed: int = 0) -> float:
    """Return the mean time of the slowest rank, for which all others wait.

    Args:
        spread: standard deviation of the step time of a rank, as a fraction of the mean. The time is normal.
    """
    times = np.random.default_rng(seed).standard_normal((draws, num_ranks))
    # A single rank does not wait, so its time is the exact mean and not the mean of these draws.
    return step_seconds * (1 + spread * float(times.max(1).mean() if num_ranks > 1 else 0))


def simulate(num_ranks: int, *, step_seconds: float, spread: float, num_bytes: float, network: Network,
             epochs: int, steps_per_epoch: int) -> dict[str, float]:
    """Compute a row of the table, with times in seconds. Communication does not overlap with computation."""
    communication = all_reduce_seconds(num_ranks, num_bytes, network)
    step = slowest_seconds(num_ranks, step_seconds, spread) + communication
    rounds = math.ceil(epochs / num_ranks)
    steps = rounds * steps_per_epoch
    return {"num_ranks": num_ranks, "all_reduce": communication, "step": step, "efficiency": step_seconds / step,
            "graphs_per_step": num_ranks / steps_per_epoch, "rounds": rounds, "steps": steps,
            "training": steps * step, "speed_up": epochs * steps_per_epoch * step_seconds / (steps * step)}


def table(rows: list[dict[str, float]]) -> str:
    """Format the rows as a Markdown table."""
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
    parser = argparse.ArgumentParser(prog="python -m tools.simulate_scaling", description=__doc__.split("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2**i for i in range(10)], metavar="W",
                        help="numbers of ranks")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[100.0], metavar="MS",
                        help="step times of one rank in milliseconds, one table each")
    parser.add_argument("--spread", type=float, default=0.03,
                        help="standard deviation of the step time, as a fraction of it")
    parser.add_argument("--parameters", type=int, default=2_374_568, help="number of float32 parameters of the model")
    parser.add_argument("--epochs", type=int, default=1000, help="passes over the graph, summed over the ranks")
    parser.add_argument("--steps-per-epoch", type=int, default=10, help="number of clusters of a partition")
    parser.add_argument("--ranks-per-node", type=int, default=default.ranks_per_node, help="number of ranks of a node")
    parser.add_argument("--node-gbytes", type=float, default=default.node_bandwidth / 1e9,
                        help="bandwidth between the ranks of a node, in GB/s")
    parser.add_argument("--network-gbytes", type=float, default=default.network_bandwidth / 1e9,
                        help="bandwidth out of a node, in GB/s")
    parser.add_argument("--node-us", type=float, default=default.node_latency * 1e6,
                        help="latency within a node, in microseconds")
    parser.add_argument("--network-us", type=float, default=default.network_latency * 1e6,
                        help="latency between nodes, in microseconds")
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
