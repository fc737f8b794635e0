"""`python -m tools.keys`: print the reference of every key, which the site of the pages has, from the schema."""

import dataclasses
import functools
from collections.abc import Iterator

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command.arguments import shorten
from parallel_epochs.pipeline.command.cli import (
    CONF,
    config_groups,
    format_entries,
    register_schema,
)
from parallel_epochs.pipeline.command.service import ServeConfig
from parallel_epochs.pipeline.command.space import TuneConfig
from parallel_epochs.pipeline.config import EvaluateConfig, ExplainConfig, RunConfig
from parallel_epochs.pipeline.products import PRODUCTS

# A title, the dataclass whose docstring stands under it, and its keys.
Section = tuple[str, type, Iterator[keys.Entry]]

INTRODUCTION = """# Every key

`python -m tools.keys` prints this page from `pipeline/config.py`, which has the keys of
every run, and from the `config.py` of each product. `--help` shows the same keys with the values that a command
composes:

```bash
python -m pipeline.train +experiment=digits --help
```

Give a key as `key=value` and a group as `group=member`. A group that is not part of every run begins with a plus. Each
key is shown with its default: `null` means that no value is set, and `???` that you must give one. Round brackets
list the allowed values. Square brackets name the values of other keys that a key needs to have an effect. An asterisk
marks the keys that do not change the result of a run: a run may be resumed with other values of them.

## Groups
"""


def write_page() -> str:
    """Write the page: the keys that every run has, those of each product, and those of the other entry points."""
    groups = [
        f"{group}={' | '.join(shorten(members))}" for group, members in config_groups().items()
    ]
    lines = [INTRODUCTION, "```", *groups, "hydra/launcher=slurm (with -m)", "```"]
    for title, schema, entries in [*shared_sections(), *product_sections(), *command_sections()]:
        lines += [
            "",
            f"## {title}",
            "",
            summarise(schema),
            "",
            "```",
            *format_entries(mark(entries)),
            "```",
        ]
    return "\n".join(lines) + "\n"


def shared_sections() -> Iterator[Section]:
    """Go through the keys that every product reads."""
    run = RunConfig()
    yield "Every run", RunConfig, (entry for entry in keys.entries(run) if "." not in entry.name)
    for source, schema in RunConfig.members["data"][1].items():
        yield f"`data={source}`", schema, keys.entries(schema(), "data.")
    for field in ("train", "parallel", "tracker"):
        yield (
            f"`{field}`",
            type(getattr(run, field)),
            keys.entries(getattr(run, field), f"{field}."),
        )


def product_sections() -> Iterator[Section]:
    """Go through the keys that one product alone reads, or has another default of."""
    shared = {
        entry.name: entry.value
        for entry in keys.entries(RunConfig())
        if entry.name != "trainer.name"
    }
    for name, product in PRODUCTS.items():
        config = product.config()
        chosen = tuple(f"{part}." for part in config.members)
        usual = [composed(entry, f"trainer={name}") for entry in keys.entries(config)]
        yield (
            f"`trainer={name}`",
            product.config,
            iter(
                [
                    entry
                    for entry in usual
                    if not entry.name.startswith(chosen)
                    and (entry.name not in shared or entry.value != shared[entry.name])
                ]
            ),
        )
        for part, (_, schemas) in config.members.items():
            if part not in RunConfig.members:
                for member, schema in schemas.items():
                    yield f"`{part}={member}`", schema, keys.entries(schema(), f"{part}.")


def composed(entry: keys.Entry, *overrides: str) -> keys.Entry:
    """Give a key the value that a command composes, with the member of a group that the key needs."""
    groups = [
        f"{group}={members[0]}"
        for key, members in (entry.meaning.when or {}).items()
        for group, _, field in [key.partition(".")]
        if field == "name" and members[0] in config_groups()[group]
    ]
    value = OmegaConf.select(compose_once(*overrides, *groups), entry.name)
    return (
        entry
        if value is None
        else dataclasses.replace(
            entry, value=OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
        )
    )


@functools.cache
def compose_once(*overrides: str) -> DictConfig:
    """Compose the configuration of a run."""
    register_schema()
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose("config", list(overrides))


def command_sections() -> Iterator[Section]:
    """Go through the keys of the entry points that do not train."""
    usual = {entry.name for entry in keys.entries(EvaluateConfig())}
    yield (
        "`python -m pipeline.evaluate` and `python -m pipeline.predict`",
        EvaluateConfig,
        keys.entries(EvaluateConfig()),
    )
    for name, product in PRODUCTS.items():
        if own := [entry for entry in keys.entries(product.predict()) if entry.name not in usual]:
            commands = "predict" if product.evaluate is EvaluateConfig else "evaluate` and `predict"
            yield f"`{commands}` of a run of `trainer={name}`", product.predict, iter(own)
    yield "`python -m pipeline.serve`", ServeConfig, keys.entries(ServeConfig())
    yield "`python -m pipeline.explain`", ExplainConfig, keys.entries(ExplainConfig())
    yield "`python -m pipeline.tune`", TuneConfig, keys.entries(TuneConfig())


def summarise(schema: type) -> str:
    """Return the first paragraph of a schema's docstring, as Markdown."""
    return schema.__doc__.split("\n\n")[0].replace(":class:", "")


def mark(entries: Iterator[keys.Entry]) -> Iterator[keys.Entry]:
    """Put an asterisk before the meaning of keys that do not change the numbers of a run."""
    for entry in entries:
        text = entry.meaning.text if entry.meaning.changes_numbers else f"* {entry.meaning.text}"
        yield dataclasses.replace(entry, meaning=dataclasses.replace(entry.meaning, text=text))


if __name__ == "__main__":
    print(write_page(), end="")
