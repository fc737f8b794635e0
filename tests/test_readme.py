"""Every command of the README's code blocks runs at toy size."""

import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from running import TOY
from torch_geometric.data import Data

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["model.num_layers=2", "model.hidden_channels=8", "train.epochs=2", "train.eval_every=1"]


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


def shrink(command: list[str], folder: Path) -> list[str]:
    """The same command on a graph that takes no time."""
    if command[0] == "torchrun":
        at = command.index("-m")
        return ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", *shrink(["python", *command[at:]], folder)]
    replaced = {"data.folder=DIR": f"data.folder={folder}", "parallel.num_ranks=8": "parallel.num_ranks=2"}
    module, arguments = command[2], [replaced.get(a, a) for a in command[3:]]
    if module == "scripts.bench":
        return [module, *arguments, "--num-nodes", "500", "--num-edges", "10000"] + ["--repeat", "1"] * ("scale" not in arguments)
    if module == "pipeline.prepare" or module == "pipeline.train" and not any(a.startswith("resume=") for a in arguments):
        if "+experiment=ogbn_proteins" in arguments and not any(a.startswith("data.folder=") for a in arguments):
            arguments.append(f"data.folder={folder}")
        own_data = any(a.startswith(("data=", "+experiment=")) for a in arguments)
        return [module, *arguments, *(SMALL if own_data else TOY)]
    return [module, *arguments]


def test_every_command_of_the_readme_runs(tmp_path, ogb_toy):
    folder = ogb_toy()
    mask = torch.arange(30) % 3
    edges = torch.randint(30, (2, 100), generator=torch.Generator().manual_seed(0))
    torch.save(Data(x=torch.randn(30, 4), edge_index=edges, y=mask, train_mask=mask == 0, val_mask=mask == 1,
                    test_mask=mask == 2), tmp_path / "graph.pt")
    found = commands()
    assert [c[1] for c in found if c[0] == "make"] == ["train", "test"]
    python = [c for c in found if c[0] in ("python", "torchrun")]
    assert len(python) >= 13 and len(python) + 2 == len(found)

    def run(commands: list[list[str]]) -> None:
        for command in commands:
            result = subprocess.run([sys.executable, "-m", *shrink(command, folder)], cwd=tmp_path, capture_output=True, text=True,
                                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, timeout=600)
            assert result.returncode == 0, f"{shlex.join(command)}\n{result.stdout}\n{result.stderr}"

    # One after the other where a command reads what another has written, two at a time otherwise.
    with ThreadPoolExecutor(2) as pool:
        related = [command for command in python if "runs/" in shlex.join(command)]
        list(pool.map(run, [related, *([command] for command in python if command not in related)]))


def test_the_makefile_has_the_targets():
    for target in ("train", "test", "test-system", "test-slurm", "test-all"):
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).returncode == 0
