"""`python -m scripts.keys [FILE]`: write docs/keys.md, the reference of every key, from the schema."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline import keys
from pipeline.arguments import shorten
from pipeline.cli import config_groups, format_entries
from pipeline.config import MODEL_SCHEMAS, Config, EvaluateConfig
from pipeline.data.config import DATA_SCHEMAS
from pipeline.tune_config import TuneConfig

INTRODUCTION = """# Every key

Written by `python -m scripts.keys` from the schema, [`pipeline/config.py`](../pipeline/config.py), and read by
`python -m pipeline.train --help`, which shows the values that a command composes:

```bash
python -m pipeline.train +experiment=digits --help
```

Give a key as `key=value`, a group as `group=member`; a group that is not part of every run begins with a plus. Behind
each key stands its default. An asterisk marks keys that do not change the numbers of a run: it may be resumed with
other values of them.

## Groups
"""


def write_page() -> str:
    """Write the page: groups, then the keys of a run by part, of each dataset and model, and of the other entry
    points.
    """
    config = Config()
    sections = [("A run", Config, [entry for entry in keys.entries(config) if "." not in entry.name])]
    for field in dataclasses.fields(Config):
        if field.name == "data":
            sections += [(f"`data={source}`", schema, keys.entries(schema(), "data."))
                         for source, schema in DATA_SCHEMAS.items()]
        elif field.name == "model":
            sections += [(f"`model={name}`", schema, keys.entries(schema(), "model."))
                         for name, schema in MODEL_SCHEMAS.items()]
        elif dataclasses.is_dataclass(part := getattr(config, field.name)):
            sections.append((f"`{field.name}`", type(part), keys.entries(part, f"{field.name}.")))
    sections.append(("`python -m pipeline.evaluate` and `python -m pipeline.predict`", EvaluateConfig,
                     keys.entries(EvaluateConfig())))
    sections.append(("`python -m pipeline.tune`", TuneConfig, keys.entries(TuneConfig())))
    groups = [f"{group}={' | '.join(shorten(members))}" for group, members in config_groups().items()]
    lines = [INTRODUCTION, "```", *groups, "hydra/launcher=slurm (with -m)", "```"]
    for title, schema, entries in sections:
        lines += ["", f"## {title}", "", summarise(schema), "", "```", *format_entries(mark(entries)), "```"]
    return "\n".join(lines) + "\n"


def summarise(schema: type) -> str:
    """Return what the docstring of a schema says, as Markdown."""
    return schema.__doc__.replace(":class:", "")


def mark(entries: Iterator[keys.Entry]) -> Iterator[keys.Entry]:
    """Put an asterisk before the meaning of keys that do not change the numbers of a run."""
    for entry in entries:
        text = entry.meaning.text if entry.meaning.changes_numbers else f"* {entry.meaning.text}"
        yield dataclasses.replace(entry, meaning=dataclasses.replace(entry.meaning, text=text))


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/keys.md").write_text(write_page())
