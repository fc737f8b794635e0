"""The keys of data=tables: the tables of nodes and edges, how labels are divided, and what is done with odd cells."""

import contextlib
import importlib.util
import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import yaml

from parallel_epochs.pipeline.data.base_config import (
    NO_FILE,
    check_folder,
    check_fractions,
    refuse_without_labels,
)
from parallel_epochs.pipeline.data.relation import refuse_relation
from parallel_epochs.pipeline.data.tables import schema as schemas
from parallel_epochs.pipeline.data.tables.columns import TableKeys
from parallel_epochs.pipeline.data.tables.schema import TableSchema
from parallel_epochs.pipeline.run.errors import install_command


@dataclass
class TablesConfig(TableKeys):
    """Tables of edges and nodes: CSV, TSV or Parquet, with ids of any type. They may exceed memory."""

    is_stored: ClassVar[bool] = True
    other_keys: ClassVar[tuple[str, ...]] = (
        "nodes.path",
        "edges.path",
        "folder",
        "schema",
        "label_table",
    )
    fixed: ClassVar[dict[str, Any]] = {
        "dangling": "drop",
        "edges.table": None,
        "empty": "zero",
        "nodes.labels": [],
        "nodes.table": None,
        "nodes.text_words": 1,
        "nodes.char_lengths": [2, 4],
        "nodes.tag_separator": "|",
    }
    links: ClassVar[str] = "edges"

    def check_others(self, given: dict[str, str | None], run: Path) -> None:
        others = self._others()
        for name, value in given.items():
            if name not in [*others, "data.folder"]:
                raise ValueError(
                    f"{name}={value}: {run} was trained without it. Name other tables by "
                    f"{' and '.join(others)}"
                )
        for part, path in (("nodes", self.nodes.path), ("edges", self.edges.path)):
            is_moved = "data.folder" in given and f"data.{part}.path" not in given
            if is_moved and path is not None and Path(path).is_absolute():
                raise ValueError(
                    f"data.folder={given['data.folder']}: {run} was trained on {path}, which is in no "
                    f"folder. Name another table by data.{part}.path"
                )

    @property
    def has_rows(self) -> bool:
        """Tell whether labels have times of their own, those of a label table."""
        return self.label_table is not None

    @property
    def counts_degrees(self) -> bool:
        """Tell whether degrees join the features. Those of a label table would count edges of the future."""
        return super().counts_degrees and not self.has_rows

    def missing_others(self, given: Collection[str]) -> list[str]:
        return [name for name in self._others() if name not in given]

    def without_files(self) -> dict[str, Any]:
        found: dict[str, Any] = {"data.folder": None} | dict.fromkeys(self._others(), NO_FILE)
        if self.schema is not None:
            found["data.schema"] = schemas.with_paths(self.schema, itertools.repeat(NO_FILE))
        return found

    def with_tables(self, nodes: object, edges: object) -> object:
        """Return other tables in memory as `predict` takes them, of one type of nodes and one of edges."""
        if self.schema is None:
            return nodes, edges
        return schemas.with_paths(self.schema, iter([nodes, edges]))

    def _others(self) -> list[str]:
        """Return the keys that name tables."""
        parts: dict[str, object] = {
            "data.edges.path": self.edges.path,
            "data.nodes.path": self.nodes.path,
        }
        parts |= {"data.schema": self.schema, "data.label_table": self.label_table}
        return [name for name, value in parts.items() if value is not None]

    def leave_labels(self) -> None:
        self.reads_labels = False

    def origin(self) -> str:
        if self.schema is not None:
            return f"data.schema={self.schema}" if isinstance(self.schema, str) else "data.schema"
        if self.edges.path is None:
            return "data=tables"
        return str(Path(self.folder or "", self.edges.path).expanduser())

    def sources(self) -> list[tuple[str, Path]]:
        found = {Path(self.schema): "data.schema"} if isinstance(self.schema, str) else {}
        if self.schema is not None or self.edges.path is not None:
            for own in self.tables.tables():
                if own.path is not None:
                    key = f"{own.key}.path" if self.schema is None else "data.schema"
                    found.setdefault(own.path, key)
        return [(key, path / "*" if path.is_dir() else path) for path, key in found.items()]

    @property
    def tables(self) -> TableSchema:
        """The tables, with what is read of each."""
        return schemas.read_schema(self)

    @property
    def is_typed(self) -> bool:
        """Tell whether the graph has types of nodes and relations."""
        return self.tables.is_typed

    def link_split(self) -> str:
        kind = self.split or ("column" if self.tables.divided else "random")
        return "group" if kind == "random" and self.split_by is not None else kind

    @property
    def until(self) -> tuple[float, float] | None:
        """The last time of training and that of validation, as a column of times is read; none: fractions count.

        Raises:
            ValueError: one of them is no time, or is missing.
        """
        given = {"data.train_until": self.train_until, "data.valid_until": self.valid_until}
        if set(given.values()) == {None}:
            return None
        first, last = itertools.starmap(_read_time, given.items())
        return first, last

    @property
    def may_have_text_scores(self) -> bool:
        return any(own.columns.text_features == "scores" for own in self.tables.nodes.values())

    def completed(self) -> "TablesConfig":
        """Return the configuration with a guessed schema in place of data.label.

        Raises:
            ValueError: no folder is given, or something else names tables, too.
        """
        if self.label is None:
            return self
        check_packages()
        named = (self.schema, self.nodes.path, self.edges.path)
        if self.folder is None or any(value is not None for value in named):
            raise ValueError(
                f"data.label={self.label} guesses a schema of the tables in data.folder. Give data.folder, "
                "and leave data.schema, data.nodes.path and data.edges.path out"
            )
        from parallel_epochs.pipeline.data.tables.guess import guess  # imports torch

        found = guess(self.folder, self.label)
        return replace(
            self,
            label=None,
            schema=yaml.safe_load(found.schema),
            metric=self.metric or found.keys.get("data.metric"),
            duplicates=found.keys.get("data.duplicates", self.duplicates),
        )

    def check(self) -> None:
        check_packages()
        if self.folder is not None:
            check_folder(self.folder)
        check_fractions(self.train_fraction, self.valid_fraction)
        if self.until is not None and (
            "time" not in (self.split, "time" if self.has_rows else None)
            or self.until[0] > self.until[1]
        ):
            raise ValueError(
                f"data.train_until={self.train_until} and data.valid_until={self.valid_until} need "
                f"data.split=time, and the first must not be later; this run has data.split={self.split}"
            )
        if self.schema is None and self.edges.path is None:
            raise ValueError("no value for data.edges.path: give it on the command line")
        if self.schema is None and self.edges.source == self.edges.target:
            raise ValueError(
                f"data.edges.source={self.edges.source} is data.edges.target too: each end of an edge needs a "
                "column of its own"
            )
        if self.add_self_loops:
            raise ValueError(
                "data.add_self_loops=true: tables have the loops that the table of edges names. Add rows, or leave "
                "it out"
            )
        if self.is_typed:
            self._refuse_untyped()
        schemas.check_tables(self)

    def _refuse_untyped(self) -> None:
        """Refuse keys of graphs with one type of nodes for others, and other splits for a label table."""
        usual: dict[str, tuple] = {
            "to_undirected": (True,),
        }
        if self.has_rows:
            usual |= {"split": (None, "time"), "on_disk": (False,), "time_column": (None,)}
            usual |= {"components": ("all",), "label_type": (None,)}
        if self.has_rows or self.tables.labels_edges:
            usual["reverse_relations"] = (True,)
        for name, values in usual.items():
            if (value := getattr(self, name)) not in values:
                key = {"label_type": "task.type"}.get(name, f"data.{name}")
                raise ValueError(
                    f"{key}={str(value).lower()} does not fit a graph with several types of nodes, labels of "
                    f"edges or a label table ({self.origin()}). Leave it out"
                )
        paths = (self.nodes.path, self.edges.path)
        if self.schema is not None and paths != (None, None) or self.edges.bipartite and paths[0]:
            raise ValueError(
                f"data.nodes.path={paths[0]} and data.edges.path={paths[1]}: one of them does not fit "
                "data.schema or data.edges.bipartite=true. A schema names all tables"
            )

    def check_edges(self) -> None:
        tables = self.tables
        if self.reads_labels:
            _refuse_unread(tables)
        if self.has_rows or not tables.labels_edges:
            raise ValueError(
                f"task=edge needs labels of edges, and {self.origin()} has none, or a label table: name "
                "their column by data.edges.label, or by label in their part of data.schema"
            )

    def check_labels(self) -> None:
        tables = self.tables
        if not self.reads_labels or self.has_rows:
            return
        if tables.labels_edges:
            raise ValueError(
                f"{self.origin()} has labels of edges: set task=edge, or choose labels of nodes by "
                "task.type (data.schema)"
            )
        _refuse_unread(tables)
        if tables.labelled is None and self.split == "time" and self.time_column is None:
            raise ValueError("data.split=time needs data.time_column, a column of the nodes' table")
        if tables.labelled is None:
            refuse_without_labels(
                str(self.nodes.path or self.origin()),
                "name their column by data.nodes.label, by data.label, or by label below its type of "
                "nodes in data.schema",
            )

    def check_links(self, relation: object = None) -> None:
        super().check_links(relation)
        tables = self.tables
        if self.has_rows or self.schema is None and self.edges.has_labels:
            raise ValueError(
                "task=link reads no labels of edges and no label table. Leave data.edges.label and "
                "data.label_table out, or set another task"
            )
        if any(own.columns.text_neighbors for own in tables.nodes.values()):
            raise ValueError(
                "text_neighbors=true tells a node by its links, and task=link is to predict these. Leave "
                "it out"
            )
        if tables.is_typed:
            return
        refuse_relation(relation, self.origin())
        kind, places = self.link_split(), [own.place for own in tables.edges.values()]
        if kind != "random" and [place[0] for place in places if place is not None] != [kind]:
            wanted = {"column": "data.edges.split_column", "time": "data.edges.time"}
            raise ValueError(
                f"task=link with data.split={kind} needs {wanted.get(kind, 'data.split_by')}, a column of "
                "the edges, and no labels of nodes where links are divided by groups"
            )


def _refuse_unread(tables: TableSchema) -> None:
    """Refuse to learn labels of several tables."""
    if tables.unread:
        raise ValueError(
            f"data.schema has labels of several tables, {' and '.join(tables.unread)}. Choose those to "
            f"learn by task.type={tables.unread[0]}"
        )


def _read_time(key: str, text: str | None) -> float:
    """Return a number, or of a date the seconds since 1970, in UTC where it has no zone."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(str(text))):
            return number
    with contextlib.suppress(ValueError):
        moment = datetime.fromisoformat(str(text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise ValueError(
        f"{key}={'null' if text is None else text} is no time. Give a number or a date such as "
        "2024-05-31, for both data.train_until and data.valid_until"
    )


def check_packages() -> None:
    """Refuse to go on without the packages that read tables.

    Raises:
        ValueError: a package is not installed. The message says how to install it.
    """
    for package in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"data=tables needs {package}: {install_command('tables')}")
