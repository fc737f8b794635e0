"""The pages say what is true: every command is composed, and run at toy size; links lead somewhere; keys exist."""

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from parallel_epochs.__main__ import COMMANDS
from parallel_epochs.pipeline import init, keys
from parallel_epochs.pipeline.command import cli, schema as configuration, space
from parallel_epochs.pipeline.data.config import OGB_GRAPH_NAMES
from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.products import PRODUCTS
from parallel_epochs.pipeline.run.log import read_records
from parallel_epochs.scripts.bench.__main__ import build_parser
from tests.helpers.building import EvaluateConfig
from tests.helpers.composing import compose_config
from tests.helpers.files import OGB_LINK_SPLITS, write_images, write_packages, write_triples
from tests.helpers.report_runs import write_records, write_run
from tests.helpers.running import ROOT, TOY, shell
from tools.keys import write_page

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYWHERE = [*PAGES, ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
START = ROOT / "docs" / "start.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SMALL = ["model.num_layers=2", "model.hidden_channels=8", "train.epochs=2", "train.eval_every=1"]
SMALL_MATH = ["data.num_train=2000", "data.num_valid=50", "data.num_test=50", "trainer.dim=16"]
# The other benchmarks are run by test_bench.py.
SMALL_BENCH = {
    "partition": ["--repeat=1"],
    "ranks": ["--layers=2", "--steps=1"],
}
# What a newcomer reads before the first run.
MOST_WORDS = 900
# In place of schemas that pages write.
TABLE = ROOT / "docs" / "runs.csv"
TYPED = (
    f"{{nodes:{{user:{{path:{TABLE},id:run,label:seed}},tag:{{}}}},"
    f"edges:{{buys:{{path:{TABLE},source:user,target:tag,time:seed}},"
    f"orders:{{path:{TABLE},source:user,target:tag,time:seed}}}}}}"
)
# The part by which a loss may rise from the first round to the last, without and with a metric that is no worse.
RISE, MOST_RISE = 0.05, 2.0


def text_of(page: Path) -> str:
    """The text of a page, without the examples that test_contributing.py puts into a copy of this repository."""
    return page.read_text().partition("## Adding a part")[0]


def prose_of(page: Path) -> str:
    """What stands outside of code blocks, without the changes of earlier versions, whose commands are theirs."""
    own = page.read_text().partition("\n## 0.")[0]
    return re.sub(r"^```.*?^```", "", own, flags=re.DOTALL | re.MULTILINE)


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, and those in the middle of a sentence or table."""
    lines = [
        line
        for language, block in blocks_of(page)
        if language == "bash"
        for line in block.splitlines()
    ]
    for code in re.findall(r"`([^`\n]+)`", prose_of(page)):
        if code.startswith(("python -m ", "pip install", "make ", "sbatch ")):
            lines.append(code)
        elif code.startswith("+experiment="):
            lines.append(f"python -m pipeline.train {code}")
    return [
        shlex.split(part, comments=True)
        for line in lines
        for part in line.split(" && ")
        if part.strip()
    ]


def assert_composes(overrides: list[str], name: str = "config") -> None:
    """Compose a configuration; of the values of a sweep, the first."""
    overrides = [
        re.sub(r"=([^,\[({]*),.*", r"=\1", override)
        for override in overrides
        if override not in ("-m", "--help")
    ]
    if name == "config":
        schema = (
            TYPED.replace(",label:seed", "").replace("target:tag", "target:tag,label:seed")
            if ("task=edge" in overrides)
            else TYPED
        )
        # Tables of the pages are not there.
        overrides = [
            re.sub(r"^data\.schema=.*\.yaml$", f"data.schema={schema}", override)
            for override in overrides
        ]
        compose_config(tuple(overrides))
    else:
        with initialize_config_dir(cli.CONF, version_base="1.3"):
            compose(name, overrides)


def assert_installs(program: str, *arguments: str) -> None:
    """Check a command that installs the project or builds what runs it."""
    if program == "make":
        assert (
            subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True).returncode
            == 0
        )
    elif program == "pip":
        assert arguments[0] == "install"
        for extra in re.findall(r"\[(.*)\]", arguments[-1]):
            assert set(extra.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    elif program == "export":
        assert all(re.fullmatch(r"[A-Z_]+=\S+", argument) for argument in arguments), arguments
    elif program == ".":
        assert (
            arguments == (".venv/bin/activate",)
            and "VENV ?= .venv\n" in (ROOT / "Makefile").read_text()
        )
    elif arguments[0] == "build":
        assert (ROOT / arguments[arguments.index("-f") + 1]).is_file()
    else:
        image = next(
            i for i, argument in enumerate(arguments) if argument.startswith("parallel-epochs:")
        )
        assert arguments[0] == "run"
        assert_sound(["parallel-epochs", *arguments[image + 1 :]])


def assert_sound(command: list[str]) -> None:
    """Check a command without running it."""
    program, *arguments = command
    if program in ("make", "pip", "export", ".", "docker"):
        assert_installs(*command)
    elif program == "sbatch":
        script = next(i for i, argument in enumerate(arguments) if argument.endswith(".sbatch"))
        assert (ROOT / arguments[script]).is_file()
        assert_composes(arguments[script + 1 :])
    elif program == "torchrun":
        start = next(i for i, argument in enumerate(arguments) if not argument.startswith("--"))
        assert_sound(
            ["python", *arguments[start:]] if arguments[start] == "-m" else arguments[start:]
        )
    elif program == "parallel-epochs":
        assert_sound(["python", "-m", COMMANDS[arguments[0]], *arguments[1:]])
    else:
        assert program == "python" and arguments[0] == "-m", command
        module, *options = arguments[1:]
        spec = importlib.util.find_spec(module)
        assert spec is not None, f"{module} does not exist"
        if module == "pipeline.init":
            assert {
                option.partition("=")[0] for option in options if "=" in option
            } <= init.OPTIONS.keys()
        elif module == "pipeline.tune" and options:
            _, search = space.read_command(options)
            assert not search.space or space.check_space(search) is not None
        elif module == "scripts.bench":
            if options:  # the head of a table names the command alone
                build_parser().parse_args(options)
        elif module.startswith("pipeline."):
            names = {
                "pipeline.evaluate": "evaluate",
                "pipeline.predict": "evaluate",
                "pipeline.serve": "serve",
                "pipeline.explain": "explain",
            }
            assert_composes(options, names.get(module, "config"))
        else:
            (folder,) = spec.submodule_search_locations or [None]
            main = Path(spec.origin) if folder is None else Path(folder, "__main__.py")
            for option in re.findall(r"--[a-z-]+", " ".join(options)):
                assert f'"{option}"' in main.read_text(), f"{module} has no {option}"


@pytest.mark.parametrize(
    "where, least",
    [
        pytest.param([PAGES[0], START], 16, id="README.md"),
        pytest.param(EVERYWHERE, 200, id="everywhere", marks=pytest.mark.slow),
    ],
)
def test_every_command_is_sound(where, least):
    pages = {tuple(command): page.name for page in where for command in commands_of(page)}
    assert len(pages) > least
    for command, page in pages.items():
        try:
            assert_sound(list(command))
        except Exception as error:
            raise AssertionError(f"{page}: {shlex.join(command)}: {error}") from error


def test_a_command_that_is_wrong_is_found():
    for wrong, error in (
        ("python -m pipeline.train train.lrr=1", HydraException),
        ("make tset", AssertionError),
        ("pip install -e .[reprot]", AssertionError),
        ("parallel-epochs fly", KeyError),
        ("python -m pipeline.tune study=runs/s train.lrr=1,2", HydraException),
        ("python -m scripts.report runs --figrue x", AssertionError),
        ("python -m scripts.bench ranks --nodes 3", SystemExit),
        ("sbatch scripts/train.sbatch +experiment=none", HydraException),
        ("torchrun --nproc-per-node=2 -m pipeline.train model=none", HydraException),
    ):
        with pytest.raises(error):
            assert_sound(shlex.split(wrong))


def test_a_first_command_runs_as_it_stands(tmp_path):
    assert ["python", "-m", "pipeline.train", "hydra.run.dir=runs/first"] in commands_of(START)
    result = shell("pipeline.train", "hydra.run.dir=runs/first", *TOY, cwd=tmp_path)
    assert result.returncode == 0 and (tmp_path / "runs" / "first" / "summary.json").is_file(), (
        result.stderr
    )


def test_the_readme_is_one_page():
    text = PAGES[0].read_text()
    assert len(text.split()) <= MOST_WORDS
    assert [c[1] for c in commands_of(PAGES[0]) if c[0] == "make"][:1] == ["train"]
    assert f"Python {PROJECT['project']['requires-python'].removeprefix('>=')} or newer" in text


def test_the_first_steps_name_every_extra():
    text = START.read_text()
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"`{extra}`" in text, f"{START.name} does not name the extra {extra}"


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)\)", prose_of(page)):
        assert target.startswith("https://") or (page.parent / target).exists(), (
            f"{page.name}: {target}"
        )


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: page.name)
def test_keys_and_files_in_the_prose_exist(page):
    if page.name in ("log.md", "CHANGELOG.md"):  # are dated, and speak of files that were
        return
    configs = [
        *(config for product in PRODUCTS.values() for config in configuration.variants(product)),
        EvaluateConfig(),
    ]
    known = {entry.name for config in configs for entry in keys.entries(config)}
    parts = {field.name for field in dataclasses.fields(configuration.AnyRun)}
    for code in re.findall(r"`([^`\n]+)`", prose_of(page)):
        name = re.fullmatch(r"([a-z_]+\.[a-z_]+)(=\S*)?", code)
        if name and code not in ("train.log", "train.txt") and name[1].split(".")[0] in parts:
            assert name[1] in known, f"{page.name}: {code}"
        if re.fullmatch(r"(pipeline|models|scripts|tools|tests|conf)/[\w/.]+", code):
            assert (ROOT / code).exists(), f"{page.name}: {code}"


def test_the_reference_has_every_key():
    page = write_page()
    names = {
        entry.name
        for product in PRODUCTS.values()
        for config in configuration.variants(product)
        for entry in keys.entries(config)
    }
    assert not {name for name in names if f"  {name}=" not in page}


def test_the_changelog_begins_with_this_version():
    version = re.search(
        r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[1]
    assert version == PROJECT["project"]["version"]


def shrink(command: list[str], folder: Path) -> list[str] | None:
    """The same command on a graph that takes no time, as a module and its arguments; none where it cannot run here."""
    program, *arguments = command
    if program == "torchrun":
        start = next(i for i, argument in enumerate(arguments) if not argument.startswith("--"))
        inner = ["python", *arguments[start:]] if arguments[start] == "-m" else arguments[start:]
        return [
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            *shrink(inner, folder),
        ]
    if program == "parallel-epochs":
        _, *small = shrink(["python", "-m", COMMANDS[arguments[0]], *arguments[1:]], folder)
        return ["parallel_epochs", arguments[0], *small]
    own_tests = {"hydra/launcher=slurm", "tests.helpers.kill_runs", "scripts.ray_train"}
    if program != "python" or own_tests & set(arguments):
        return None  # real Slurm, real Ray and real faults have tests of their own
    module, *arguments = arguments[1:]
    graphs = next(
        (
            a.partition("=")[2].removesuffix("_gatedgcn").replace("_", "-")
            for a in arguments
            if a.startswith("+experiment=ogbg")
        ),
        "ogbg-molhiv" if "data=ogb_graph" in arguments else "",
    )
    folder = folder.with_name(graphs) if graphs else folder
    if any(
        argument.startswith(("+experiment=ogbl_collab", "data=ogb_link")) for argument in arguments
    ):
        names = [
            argument.partition("=")[2]
            for argument in arguments
            if argument.startswith("data.name=")
        ]
        folder = folder.with_name(names[-1] if names else "ogbl-collab")
    if any("fb15k237" in argument for argument in arguments):
        folder = folder.with_name("triples")
    # Which the page itself writes, or the test where the page looks for them.
    if not {"data=graph_files", "data=triples", "data=tables", "+experiment=debian_sections"} & set(
        arguments
    ):
        arguments = [
            re.sub(r"^data\.folder=.*", f"data.folder={folder}", argument) for argument in arguments
        ]
    arguments = [
        re.sub(
            r"^data\.path=.*blogcatalog", f"data.path={folder.with_name('blogcatalog')}", argument
        )
        for argument in arguments
    ]
    arguments = [
        re.sub(r"^data\.path=.*mnist_t10k", f"data.path={folder.with_name('images')}", argument)
        for argument in arguments
    ]
    arguments = [
        re.sub(r"^parallel\.num_ranks=.*", "parallel.num_ranks=2", argument)
        for argument in arguments
    ]
    # Two layers and eight channels, as SMALL has them.
    arguments = [
        re.sub(r"^features\.channels=.*", "features.channels=8", argument) for argument in arguments
    ]
    arguments = [
        re.sub(r"^(loader\.num_neighbors=\[\d+,\d+),.*", r"\1]", argument) for argument in arguments
    ]
    if module == "scripts.bench":
        if arguments[0] not in SMALL_BENCH:
            return None
        return [
            module,
            arguments[0],
            "--num-nodes=500",
            "--num-edges=10000",
            *SMALL_BENCH[arguments[0]],
        ]
    is_whole = not any(
        argument.startswith(("resume=", "--help")) and argument != "resume=auto"
        for argument in arguments
    )
    if (
        module in ("pipeline.check", "pipeline.baselines", "pipeline.prepare", "pipeline.train")
        and is_whole
    ):
        if (
            any(a.startswith("+experiment=ogb") for a in arguments)
            and f"data.folder={folder}" not in arguments
        ):
            arguments.append(f"data.folder={folder}")
        own_data = any(a.startswith(("data=", "+experiment=")) for a in arguments)
        small = SMALL if is_gnn(arguments) else SMALL[2:]
        arguments += [
            *(small if own_data else TOY),
            *(["seed=0,1"] if "+sweep=seeds" in arguments else []),
        ]
        if {"data=math", "+experiment=complex_math"} & set(arguments):
            arguments += SMALL_MATH
        if "+experiment=debian_sections" in arguments:
            arguments.append("partition.num_parts=4")
    if module == "pipeline.tune":
        searched = any("interval" in argument for argument in arguments)
        arguments = [
            *(a for a in arguments if not a.startswith("trials=")),
            *(["trials=1"] if searched else []),
            *(
                (SMALL[2:] if "+experiment=digits" in arguments else TOY[:-3] + TOY[-1:])
                if searched
                else []
            ),
        ]
    return [module, *arguments]


def is_gnn(arguments: list[str]) -> bool:
    """Whether a command trains the default product: other products read no model."""
    texts = [
        (ROOT / "conf" / "experiment" / f"{a.partition('=')[2]}.yaml").read_text()
        for a in arguments
        if a.startswith("+experiment=")
    ]
    return not re.search(
        r"\btrainer[=:] ?(?!gnn)\w|experiment/graphvite/_", "\n".join([*arguments, *texts])
    )


def test_a_folder_of_a_run_stands_for_one_command():
    """Who goes from page to page in one folder finds no other run where a command makes one."""
    folders: dict[str, set[str]] = {}
    for page in PAGES:
        for language, block in blocks_of(page):
            for line in block.splitlines() if language == "bash" else []:
                command = shlex.split(line, comments=True)
                for argument in command:
                    if argument.startswith("hydra.run.dir="):
                        folders.setdefault(argument, set()).add(shlex.join(command))
    assert folders and not {
        folder: commands for folder, commands in folders.items() if len(commands) > 1
    }


def odd_results(folder: Path) -> list[str]:
    """Say what is odd about the numbers of the runs in a folder.

    Losses and metrics are finite. The loss of a run falls, but for the noise of a few small steps, or its validation
    metric does not become worse: the loss of a layout, whose points lie on one another at first, rises before it falls.
    """
    odd = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        rounds = [record for record in read_records(path) if record["kind"] == "round"]
        losses, scores = (
            [record[key] for record in rounds if key in record] for key in ("loss", "valid")
        )
        if len(losses) < len(rounds) or not rounds or None in [*losses, *scores]:
            odd.append(f"{path.parent}: the losses are {losses}, the validation metrics {scores}")
            continue
        summary = path.with_name("summary.json")
        metric = json.loads(summary.read_text())["metric"] if summary.exists() else ""
        is_good = bool(scores) and merit(metric, scores[-1]) >= merit(metric, scores[0])
        if losses[-1] > losses[0] + (MOST_RISE if is_good else RISE) * abs(losses[0]):
            odd.append(f"{path.parent}: the losses are {losses}, the validation metrics {scores}")
    return odd


@pytest.mark.parametrize(
    "change, is_odd",
    [
        ({}, False),
        ({"loss": 1.2}, False),
        ({"loss": 1.2, "valid": 0.4}, True),
        ({"loss": 2.35e12}, True),
        ({"loss": None}, True),
    ],
)
def test_odd_results_are_found(change, is_odd, tmp_path):
    run = write_run(tmp_path / "some" / "run", [0.5, 0.6])
    *others, last = read_records(run / "metrics.jsonl")
    write_records(run, [*others, last | change])
    assert [line.partition(":")[0] for line in odd_results(tmp_path)] == [str(run)] * is_odd


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> tuple[Path, set]:
    """A folder for all pages, and the commands that have been run there: pages that train the same run share it."""
    return tmp_path_factory.mktemp("pages"), set()


# The commands of the other pages run in the exhaustive suite; in the slow one they are only checked, by the test above.
RUN = (
    "README.md",
    "start.md",
    "data.md",
    "embeddings.md",
    "knowledge.md",
    "labels.md",
    "reliability.md",
    "tables.md",
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.name,
            marks=pytest.mark.slow if page.name in RUN else pytest.mark.exhaustive,
        )
        for page in PAGES
        if blocks_of(page) and page.name not in ("install.md", "serving.md")
    ],
)
def test_every_command_runs(page, shared, ogb_toy):
    folder, been_run = shared
    toy, steps, num_checked = ogb_toy(), [], 0
    for name in (*OGB_GRAPH_NAMES, *OGB_LINK_SPLITS):
        ogb_toy(name)
    write_triples(toy.with_name("triples"))
    network = np.triu(np.random.default_rng(0).random((40, 40)) < 0.2, 1)
    scipy.io.savemat(
        toy.with_name("blogcatalog.mat"),
        {"network": (network | network.T).astype(float), "group": np.eye(3)[np.arange(40) % 3]},
    )
    write_images(toy.with_name("images"))
    write_packages(folder / "dataset" / "debian")
    for language, block in blocks_of(page):
        if language == "python":
            steps.append(["-c", block])
            num_checked += 1
        elif language == "bash":
            for line in filter(str.strip, block.splitlines()):
                command = shlex.split(line, comments=True)
                small = shrink(command, toy)
                num_checked += small is not None
                if small is not None and tuple(command) not in been_run:
                    steps.append(small)
                    been_run.add(tuple(command))
    assert num_checked >= (12 if page == START else 1)
    for module, *arguments in steps:
        result = shell(module, *arguments, cwd=folder)
        assert result.returncode == 0, f"{module} {arguments}: {result.stdout}{result.stderr}"
    assert not odd_results(folder)
