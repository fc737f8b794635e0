"""The entry points share Hydra, the help, and errors that a user can read. Nothing here imports torch."""

import contextlib
import functools
import logging
import os
import resource
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import arguments, folder as run_folder, schema, trust
from parallel_epochs.pipeline.command.service import ServeConfig
from parallel_epochs.pipeline.command.space import TuneConfig
from parallel_epochs.pipeline.config import OUTPUTS, AskConfig, ExplainConfig, RunConfig, settings
from parallel_epochs.pipeline.run import files, watchdog
from parallel_epochs.pipeline.run.errors import (
    EXIT_INTERRUPTED,
    DamagedFile,
    install_command,
    one_line,
    printable,
)
from parallel_epochs.pipeline.run.memory import format_bytes
from parallel_epochs.pipeline.run.words import command_of

if TYPE_CHECKING:
    from parallel_epochs.pipeline.run.checkpoint import Content
    from parallel_epochs.pipeline.run.saved import SavedRun

CONF = schema.CONF
Check = Callable[[RunConfig], None]
USER_ERRORS = (HydraException, OmegaConfBaseException, ValueError, FloatingPointError, OSError)

# --help shows these keys on top, as far as a run has them: ten at most.
FIRST = (
    "train.epochs",
    "train.lr",
    "model.num_layers",
    "model.hidden_channels",
    "model.dropout",
    "partition.num_parts",
    "trainer.model",
    "trainer.dim",
    "trainer.num_neighbors",
    "train.patience",
    "parallel.num_ranks",
    "device",
    "seed",
    "cache_dir",
)
# Columns of the help: those of the terminal, but at most the widest; without a terminal the usual number.
USUAL, WIDEST = 80, 120

EXITED = "sys.exit() was called before there was a result; does the class of model.path call it?"

log = logging.getLogger(__name__)


# Groups of Hydra's with the keys of the members of each part of a configuration; files in conf/ name them.
SCHEMA_GROUPS = {"data": "schema", "model": "model_schema", "trainer": "trainer_schema"}


@functools.cache
def register_schema() -> None:
    """Make the schema and the resolvers of conf/ known to Hydra."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=schema.open_schema())
    store.store(name="evaluate_schema", node=schema.AnyEvaluation)
    store.store(name="serve_schema", node=ServeConfig)
    store.store(name="explain_schema", node=ExplainConfig)
    for part, schemas in schema.members().items():
        for name, keys_of_member in schemas.items():
            store.store(group=SCHEMA_GROUPS[part], name=name, node=schema.open_node(keys_of_member))
    OmegaConf.register_new_resolver("run_dir", choose_run_dir, replace=True)
    # ${by:KEY,{A: X},Y} is X where KEY is A, and otherwise Y.
    OmegaConf.register_new_resolver(
        "by", lambda value, cases, otherwise: cases.get(value, otherwise), replace=True
    )


def choose_run_dir(resume: str | None, default: str) -> str:
    """Return the run directory: that of the run to resume, which must be there before Hydra would create it.

    Raises:
        ValueError: no run directory is named, or it holds no run.
    """
    if resume == keys.AUTO:  # a command with hydra.run.dir does not ask here
        raise ValueError(
            "resume=auto needs hydra.run.dir=DIR, the directory of the run to continue or begin. A run in "
            "a directory called auto is continued by resume=./auto"
        )
    if resume is not None:
        folder = Path(resume).expanduser()
        if not files.is_there(folder / "config.yaml"):
            raise ValueError(f"resume={resume} is not a run directory: it has no config.yaml")
        return str(folder)
    from parallel_epochs.pipeline.run import ranks  # imports torch

    return ranks.agree("run_dir", default)


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether the machine or a GPU had no memory left; torch says so in a RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("can't allocate memory", "out of memory"))
    )


def explain(error: Exception) -> str:
    """Say what is wrong in one line."""
    if is_out_of_memory(error):
        said, most = (
            (str(error) or type(error).__name__).splitlines()[0],
            resource.getrlimit(resource.RLIMIT_AS)[0],
        )
        on_cpu = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        if on_cpu and most != resource.RLIM_INFINITY:
            return (
                f"out of memory: this process may take {format_bytes(most)} of addresses (ulimit -v). Raise the "
                f"limit, or take it away by ulimit -v unlimited ({said})"
            )
        return (
            "out of memory: raise partition.num_parts, or lower model.hidden_channels or parallel.num_ranks "
            f"({said})"
        )
    return arguments.explain(error) or one_line(error)


def is_readable(error: Exception) -> bool:
    """Tell whether the message says it all: a mistake of the user's, or Slurm is missing, refused a job or lost one."""
    if os.environ.get("PIPELINE_TRACEBACK") == "1":
        return False
    modules = [
        type(error).__module__,
        *(frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)),
    ]
    return (
        isinstance(error, USER_ERRORS)
        or is_out_of_memory(error)
        or any(module.startswith("submitit.") for module in modules)
    )


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a mistake of the user's into one line, in the run's log too, and an exit status of 1.

    In a sweep every error is logged and goes on to Hydra, which decides about the other members. PIPELINE_TRACEBACK=1
    shows tracebacks.
    """
    try:
        yield
    except Exception as error:
        settings = HydraConfig.get()
        in_sweep = settings.mode == RunMode.MULTIRUN
        readable = is_readable(error)
        if readable or in_sweep:
            log.error("error: %s", explain(error), exc_info=not readable)
        if readable and not in_sweep:
            sys.exit(1)
        if in_sweep:
            # Hydra reports the first failure only, without its traceback if it happened in another process.
            error.__notes__ = [f"(log: {Path(settings.runtime.output_dir, settings.job.name)}.log)"]
        raise


@contextlib.contextmanager
def failing_exit() -> Iterator[None]:
    """Until the end of the block, let os._exit(0) in this process say that there is no result, and exit with status 1.

    Code of a user's may call it, which would look like success to a job script. Children exit as they like.
    """
    exit_now, owner = os._exit, os.getpid()

    def fail(status: int) -> NoReturn:
        if status == 0 and os.getpid() == owner:
            status = 1
            log.error(
                "error: os._exit(0) was called before there was a result; does the class of model.path call it?"
            )
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            watchdog.say_goodbye()
        exit_now(status)

    os._exit = fail
    try:
        yield
    finally:
        os._exit = exit_now


@failing_exit()
def call(
    main: Callable[[], object], *, check: Check | None = None, needs_data: bool = False
) -> None:
    """Call an entry point; what is wrong with the configuration itself becomes one line.

    Args:
        check: raises a ValueError for a configuration that no run can have. It is called before Hydra makes a run
            directory.
        needs_data: whether what is read must be there: the files of the dataset, or the run to resume.
    """
    # Hydra would print tracebacks and exit by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register_schema()
    interrupted = _note_interrupts()
    module = getattr(sys.modules[main.__module__].__spec__, "name", main.__module__)
    try:
        texts = [entry.name for entry in _entries_of_run(module) if entry.meaning.is_text]
        sys.argv[1:] = arguments.complete(sys.argv[1:], config_groups(), texts)
        if {"--help", "-h"} & set(sys.argv[1:]):
            print_answer(
                help_text(
                    module, [argument for argument in sys.argv[1:] if not argument.startswith("-")]
                )
            )
        else:
            check_command(module, check, needs_data=needs_data)
            _call_to_the_end(main)
    except (Exception, KeyboardInterrupt) as error:
        if interrupted:  # in the middle of an import, say, it arrives as another error
            print("interrupted", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)
        if not isinstance(error, Exception) or not is_readable(error):
            raise
        lines = [f"error: {explain(error)}", *getattr(error, "__notes__", [])]
        if isinstance(error, MissingConfigException) and "submitit" in str(error.missing_cfg_file):
            lines = [f"error: hydra/launcher=slurm needs submitit: {install_command('slurm')}"]
        sys.exit(printable(" ".join(lines)))


def print_answer(text: str) -> None:
    """Print the answer of a command. Who pages it may stop reading, which is no error."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(text, flush=True)


def _call_to_the_end(main: Callable[[], object]) -> None:
    """Call what never ends the program with status 0 itself; code of a user's model may, and there is no result then.

    Hydra ends it where it is asked for a text of its own, such as --hydra-help.

    Raises:
        ValueError: it was ended so.
    """
    try:
        main()
    except SystemExit as error:
        if error.code or _raiser_of(error) == "hydra._internal.utils":
            raise
        raise ValueError(EXITED) from error


def _raiser_of(error: BaseException) -> str:
    """Name the module that raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "")


def _note_interrupts() -> list[int]:
    """Let the first Ctrl-C raise KeyboardInterrupt and leave a note in the list, and the second end the process."""
    notes: list[int] = []

    def note(signum: int, frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        notes.append(signum)
        raise KeyboardInterrupt

    if (
        signal.getsignal(signal.SIGINT) == signal.default_int_handler
    ):  # a script ignores it in its background
        signal.signal(signal.SIGINT, note)
    return notes


def check_command(
    module: str, check: Check | None, *, needs_data: bool = False, given: list[str] | None = None
) -> None:
    """Check the arguments of an entry point, and the configuration that they compose; see :func:`call`.

    Args:
        given: the arguments. None: those of this program.

    Raises:
        ValueError: names the argument or the key.
        HydraException: what Hydra does not compose.
    """
    takes_run = takes_a_run(module, sys.argv[1:] if given is None else given)
    known = (
        {entry.name for entry in _entries_of_run(module)}
        if takes_run
        else schema.all_keys()
        | ({entry.name for entry in keys.entries(TuneConfig())} if _searches(module) else set())
    )
    options = arguments.parse(sys.argv[1:] if given is None else given, known)
    options.multirun |= _searches(module)
    more = [text for text in options.overrides if text.partition("=")[0] not in known]
    if takes_run and more and module.endswith("baselines"):
        raise ValueError(
            f"{more[0]}: run=DIR takes all keys from DIR. Leave it out, or leave run=DIR out"
        )
    arguments.check(options, {} if takes_run else config_groups(), known)
    if takes_run or _searches(module):
        return
    if check is not None and arguments.is_plain_run(options):
        config = compose_config(options.overrides)
        if config.resume == keys.AUTO and not arguments.names_run_dir(options.overrides):
            choose_run_dir(config.resume, "")
        _check_inputs(config, named_keys(options.overrides), needs_data=needs_data)
        check(config)


def _check_inputs(config: RunConfig, named: set[str], *, needs_data: bool) -> None:
    """Check what a run reads, before torch and PyG are imported, which takes seconds.

    Args:
        named: the keys that the command names.
        needs_data: see :func:`call`.

    Raises:
        ValueError: a file of the dataset is missing or wrong, or the run to resume was configured otherwise.
    """
    if needs_data and config.resumes:
        if "RANK" not in os.environ:  # torchrun's number of ranks counts as given
            run_folder.resolve(
                config, Path(choose_run_dir(config.resume, "")).absolute(), named=named
            )
    elif needs_data or not config.data.downloads:  # then it must be there
        config.data.check()


def takes_a_run(module: str, given: list[str]) -> bool:
    """Tell whether a command, by the name of its module and its arguments, is about a run that was trained."""
    name = module.rpartition(".")[2]
    return (
        name in ("evaluate", "predict", "serve", "explain")
        or name == "baselines"
        and any(text.startswith("run=") for text in given)
    )


def _entries_of_run(module: str) -> list[keys.Entry]:
    """Return the keys of a command that is about a run that was trained."""
    own = {"serve": ServeConfig, "explain": ExplainConfig}.get(
        module.rpartition(".")[2], schema.AnyEvaluation
    )
    return [
        entry
        for entry in keys.entries(own())
        if not module.endswith("baselines") or entry.name in ("run", "trust")
    ]


def _searches(module: str) -> bool:
    return module.rpartition(".")[2] == "tune"


def compose_config(overrides: list[str]) -> RunConfig:
    """Compose the configuration of a run."""
    with initialize_config_dir(CONF, version_base="1.3"):
        return schema.to_object(compose("config", overrides), overrides)


def read_config(cfg: DictConfig) -> RunConfig:
    """Turn what Hydra has composed for an entry point into the configuration of a run."""
    return schema.to_object(cfg, HydraConfig.get().overrides.task)


def log_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of logging of a run, for :func:`logging.config.dictConfig`."""
    config = yaml.safe_load(files.read_text(Path(CONF, "hydra/job_logging/plain.yaml")))
    config["handlers"]["file"]["filename"] = str(folder / "train.log")
    return config


def named_keys(overrides: list[str]) -> set[str]:
    """Return the names of the keys that overrides give a value."""
    return {override.lstrip("+").partition("=")[0] for override in overrides} & schema.all_keys()


def read_config_of_run(cfg: DictConfig) -> RunConfig:
    """Return the configuration of the run that `baselines run=DIR` names.

    Raises:
        ValueError: it is none.
    """
    return load_run(named_run(cfg, "baselines"), trusts=cfg.trust)[0]


def open_run(cfg: DictConfig, command: str) -> tuple["SavedRun", Any]:
    """Read the configuration of the run that `evaluate`, `predict` or `explain` is asked about.

    Returns:
        The run, and the keys that its product reads.

    Raises:
        ValueError: no run is named, it is none, or a key does not fit it.
    """
    path = named_run(cfg, command)
    config, content = load_run(path, trusts=cfg.trust)
    options = schema.to_options(cfg, config, command)
    if isinstance(options, ExplainConfig):
        refuse_explanation(path, config, content)
        options.check_question()
    run = saved_run(options, config, content)
    _check_files(options, config, predicts=command == "predict")
    return run, options


def refuse_explanation(path: Path, config: RunConfig, content: "Content | None") -> None:
    """Refuse to explain what a run does not predict, or cannot without its data.

    Raises:
        ValueError: it learned vectors, predicts links, or is a file without data.
    """
    if not config.explains or config.predicts_links:
        has = "task=link" if config.predicts_links else f"trainer={config.trainer.name}"
        raise ValueError(f"{path} has {has}, and only predictions of labels are explained")
    if content is not None:
        raise ValueError(
            f"{path} is a model without data. Name the directory of its run, where the neighbours are"
        )


def named_run(cfg: DictConfig, command: str) -> Path:
    """Return the run that a command names.

    Raises:
        ValueError: it names none.
    """
    if OmegaConf.is_missing(cfg, "run") or not cfg.run:
        raise ValueError(
            "One argument is missing: run=DIR, a run directory. For example: "
            f"{command_of(command)} run=DIR{' output=FILE.csv' * (command == 'predict')}"
            f"{' node=ID' * (command == 'explain')}"
        )
    return Path(cfg.run).expanduser()


def load_run(path: Path, *, trusts: bool) -> tuple[RunConfig, "Content | None"]:
    """Read the configuration of a run from its directory, or from a file that shares its model, with the content.

    Raises:
        ValueError: it is neither, or names a class that the user has not named.
    """
    if path.is_dir() or not files.is_there(path):
        config = schema.load(origin := path / "config.yaml")
        content = None
    else:
        from parallel_epochs.pipeline.run import checkpoint  # imports torch

        problem, content = "", checkpoint.Content(path, {})
        try:
            content = checkpoint.load(origin := path)
        except DamagedFile as error:
            problem = f": {error}"
        kinds = {"shared": int, "config": str, "state": dict, "learned": dict}
        if (
            not all(isinstance(content.get(name), kind) for name, kind in kinds.items())
            or content["shared"] != 1
        ):
            raise ValueError(
                f"run={path} is no run directory, and no model that export=FILE wrote{problem}"
            )
        config = schema.parse(content["config"], path)
    trust.check(config, origin, trust=trusts)
    return config, content


def saved_run(options: AskConfig, config: RunConfig, shared: "Content | None" = None) -> "SavedRun":
    """Return a run that was trained.

    Args:
        options: the keys of `evaluate` or `predict`.
        config: of the run.
        shared: the content of a file that shares the model of a run.
    """
    from parallel_epochs.pipeline.run.saved import SavedRun  # imports torch

    return SavedRun(
        Path(options.run),
        config,
        settings(config),
        options.checkpoint,
        options.device,
        check_output=functools.partial(options.check_output, config=config),
        shared=shared,
    )


def _check_files(options: AskConfig, config: RunConfig, *, predicts: bool) -> None:
    """Check the files that a command names, before torch is imported and the run is opened.

    Raises:
        ValueError: names the key.
    """
    named = {name: getattr(options, name) for name in OUTPUTS if hasattr(options, name)}
    if predicts and not any(named.values()):
        table = ", or output=TABLE for a table" if "output" in named else ""
        raise ValueError(f"One argument is missing: predictions=FILE{table}")
    options.check_outputs(config)
    for name in ("output_nodes", "pairs", "triples"):
        if (path := getattr(options, name, None)) is not None and not Path(path).exists():
            text = keys.meaning_of(type(options), name).text.partition(". ")[0]
            raise ValueError(
                f"{name}={path} does not exist. It names the {text[0].lower()}{text[1:]}"
            )


def help_text(module: str, overrides: list[str]) -> str:
    """Describe every key of an entry point as it is composed: key=value and its meaning.

    Args:
        module: the name of the entry point's module.
    """
    columns = min(shutil.get_terminal_size((USUAL, 0)).columns, WIDEST)
    lines = [f"python -m {module} [key=value ...]", ""]
    if module.endswith("baselines"):
        lines[1:1] = [f"python -m {module} run=DIR    (the dataset of a run, with all keys of it)"]
    if takes_a_run(module, overrides):
        return "\n".join([*lines, "Keys:", *format_entries(_entries_of_run(module), columns)])
    if _searches(module):
        return "\n".join(
            [
                *lines,
                "Keys:",
                *format_entries(keys.entries(TuneConfig()), columns),
                "",
                "Every other argument is one of python -m pipeline.train; those with several values are searched:",
                "  'train.lr=tag(log,interval(1e-4,1e-2))' model.num_layers=2,3,4 'train.epochs=range(10,31,10)'",
            ]
        )
    sections: dict[str, list[keys.Entry]] = {}
    for entry in keys.entries(compose_config(overrides)):
        sections.setdefault(entry.name.rpartition(".")[0].partition(".")[0], []).append(entry)
    known = {entry.name: entry for entries in sections.values() for entry in entries}
    if module.rpartition(".")[2] in ("check", "baselines", "prepare"):
        text = "The keys of python -m pipeline.train, of which these say what the data are:"
        own = [*sections["data"], *sections.get("task", ())]
        return "\n".join([*lines, text, *format_entries(own, columns)])
    lines += [
        "The keys that are set most often:",
        *format_entries([known[name] for name in FIRST if name in known][:10], columns),
        "",
        "Groups, each a file in conf/:",
        *(
            line
            for group, members in config_groups().items()
            for line in _wrap(
                f"  {group}=", " | ".join(arguments.shorten(members)), columns, indent=6
            )
        ),
        "  hydra/launcher=slurm (with -m)",
        "",
        "All keys, as composed:",
    ]
    for part, entries in sections.items():
        lines += [*["", part] * bool(part), *format_entries(entries, columns)]
    return "\n".join(lines)


def config_groups() -> dict[str, list[str]]:
    """List the groups of conf/ and their members; those that must be added to a run begin with a plus.

    Files whose name begins with an underscore are parts of others.
    """
    groups = {}
    for folder in sorted(
        path for path in Path(CONF).iterdir() if path.is_dir() and path.name != "hydra"
    ):
        names = (
            path.relative_to(folder).with_suffix("").as_posix()
            for path in folder.rglob("[!_]*.yaml")
        )
        # Those in folders of their own come last.
        if members := sorted(names, key=lambda name: (name.count("/"), name)):
            groups[f"+{folder.name}" if folder.name in ("experiment", "sweep") else folder.name] = (
                members
            )
    return groups


def format_entries(entries: Iterable[keys.Entry], columns: int | None = None) -> list[str]:
    """Format some keys: name, value and meaning.

    Args:
        columns: width of the lines. None: each key has one line.
    """
    rows = []
    for entry in entries:
        choices = f" ({' | '.join(entry.meaning.choices)})" if entry.meaning.choices else ""
        condition = f" [{entry.meaning.condition}]" if entry.meaning.condition else ""
        value = (
            entry.value if isinstance(entry.value, float) else keys.as_typed(entry.value)
        )  # 0.0 is no whole number
        rows.append((f"{entry.name}={value}", f"{entry.meaning.text}{choices}{condition}"))
    width = max(len(left) for left, _ in rows)
    if columns is None:
        return [f"  {left:<{width}}  {right}" for left, right in rows]
    width = min(width, columns // 2)
    return [
        line
        for left, right in rows
        for line in _wrap(f"  {left:<{width}}  ", right, columns, indent=width + 4)
    ]


def _wrap(left: str, text: str, columns: int, *, indent: int) -> list[str]:
    """Break a text into lines behind its title."""
    return textwrap.wrap(
        text,
        columns,
        initial_indent=left,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
