"""The tables of a graph: one schema, read from data.schema, a file in YAML, or made of data.nodes and data.edges."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallel_epochs.pipeline.data.tables import heads
from parallel_epochs.pipeline.data.tables.columns import (
    RELATION,
    ROW,
    ROWS,
    TIME,
    TYPE,
    EdgeColumns,
    Events,
    Named,
    NodeColumns,
    RowTable,
    TableKeys,
    length_of,
)
from parallel_epochs.pipeline.keys import meaning_of
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import one_line

Keys = TypeVar("Keys")

# The type of the nodes and the name of the edges of a graph that is named by data.nodes and data.edges.
NODE_TYPE, EDGE_TYPE = "node", "edge"
# Keys of a table that do not say what a model reads: other tables may have others.
NO_INPUTS = (
    "path",
    "csv",
    "id",
    "label",
    "labels",  # of earlier versions
    "split_column",
    "max_categories",
    "source",
    "target",
    "time",
)
# Keys of tables that earlier versions had, with the values that are fixed now. Hashes count those of the first two.
OF_EDGES: dict[str, Any] = {"table": None}
OF_NODES = OF_EDGES | {
    "labels": [],
    "max_categories": 256,
    "text_words": 1,
    "char_lengths": [2, 4],
    "tag_separator": "|",
}
UNHASHED = {"log_label": False, "quantiles": []}
# How a file of text is written.
CSV = ("delim", "encoding", "decimal_separator", "thousands", "dateformat")
# Columns that become features of nodes.
INPUTS = ("features", "dates", "categories", "text", "text_chars", "text_tags")


@dataclass
class End:
    """One end of the edges of a table: the type of its nodes, and the column of their ids, that of the end's name by
    default.
    """

    type: str = ""
    column: str | None = None


@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type.

    Attributes:
        columns: of their table.
        path: of the table; none: the nodes are the ids that edges name.
        labels: the columns of the labels that are learned, each with its key.
        split: how labelled nodes are divided: "column", "group", "random" or "time".
        by: the column of splits, of groups or of times.
        metric: of the labels.
        ends: the columns of both ends of labelled edges between nodes of one type; none of others.
        are_edges: whether they are labelled edges.
    """

    columns: NodeColumns
    path: Path | None
    labels: list[Named] = field(default_factory=list)
    split: str = "random"
    by: str | None = None
    metric: str | None = None
    ends: tuple[str, str] | None = None
    are_edges: bool = False

    @property
    def key(self) -> str:
        """The part of the configuration that names the columns: of labelled edges their own."""
        return "data.edges" if self.are_edges else "data.nodes"

    @property
    def named(self) -> list[Named]:
        """Every column that is read, with the key that names it."""
        option = {"column": f"{self.key}.split_column", "group": "data.split_by"}.get(
            self.split, "data.time_column" if self.key == "data.nodes" else "data.edges.time"
        )
        own = [(f"{self.key}.id", self.columns.id)] if self.columns.id != ROW else []
        own += [(f"{self.key}.{n}", name) for n in INPUTS for name in getattr(self.columns, n)]
        own += [(f"{self.key}.{name}", column) for name, column in self.labels]
        return own + [(option, self.by)] * (self.by is not None)  # type: ignore[list-item]


@dataclass(frozen=True)
class EdgeTable:
    """A table of edges.

    Attributes:
        columns: of the table.
        path: of the table.
        source, target: types of the nodes at both ends.
        place: how links are divided by a column, "time", "column" or "group", and the column; none: by none.
    """

    columns: EdgeColumns
    path: Path
    source: str
    target: str
    place: Named | None = None

    key = "data.edges"

    @property
    def named(self) -> list[Named]:
        """Every column that is read, with the key that names it."""
        ends = ("source", "target", "relation", "time", "split_column")
        found = [(f"data.edges.{name}", getattr(self.columns, name)) for name in ends]
        found += [(f"data.edges.{name}", column) for name, column in self.columns.value_columns()]
        if self.place is not None and self.place[0] == "group":
            found.append(("data.split_by", self.place[1]))
        return [(key, column) for key, column in found if column not in (None, ROW)]


@dataclass(frozen=True)
class TableSchema:
    """The tables of a graph.

    Attributes:
        nodes, edges: the tables by the names of their types and relations.
        is_typed: whether the graph has types of nodes and relations.
        labelled: type of the nodes with labels, if there is one.
        unread: types with labels, if there are several of which none was chosen.
        rows: the label table, if there is one.
    """

    nodes: dict[str, NodeTable]
    edges: dict[str, EdgeTable]
    is_typed: bool
    labelled: str | None = None
    unread: list[str] = field(default_factory=list)
    rows: RowTable | None = None

    @property
    def divided(self) -> list[str]:
        """The tables of edges that have a column of splits."""
        return [name for name, own in self.edges.items() if own.columns.split_column is not None]

    @property
    def labels_edges(self) -> bool:
        """Tell whether the labels that are learned are of edges."""
        return self.labelled is not None and self.nodes[self.labelled].are_edges

    def tables(self) -> list[NodeTable | EdgeTable]:
        """Return all tables."""
        return [*self.nodes.values(), *self.edges.values()]

    def files(self) -> list[list[Path]]:
        """Return the files of each table."""
        return [[] if own.path is None else heads.members(own.path) for own in self.tables()]

    def describe(self) -> dict[str, Any]:
        """Return what the graph depends on beside the content of the files, as JSON can hold it."""
        return {
            "nodes": [[name, _chosen(own.columns, ("path",))] for name, own in self.nodes.items()],
            "edges": [
                [name, own.source, own.target, _chosen(own.columns, ("path",))]
                for name, own in self.edges.items()
            ],
        }

    def inputs(self) -> dict[str, Any]:
        """Return the keys that say what the columns are which a model reads, as JSON can hold them."""
        ends = {
            name: {"source": own.source, "target": own.target} for name, own in self.edges.items()
        }
        return {
            "nodes": [[name, _chosen(own.columns, NO_INPUTS)] for name, own in self.nodes.items()],
            "edges": [
                [name, _chosen(own.columns, NO_INPUTS) | ends[name]]
                for name, own in self.edges.items()
            ],
        }


def _chosen(columns: NodeColumns | EdgeColumns, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a table; those that came later are there only if they are given, as graphs keep their hash."""
    is_edges = isinstance(columns, EdgeColumns)
    later = ("split_column", "label", "id") if is_edges else ()
    own = {
        name: value
        for name, value in dataclasses.asdict(columns).items()
        if ((before := meaning_of(type(columns), name).before) is None or value != before)
        and not (name in later and value is None)
    }
    own |= OF_EDGES if is_edges else OF_NODES
    return {name: value for name, value in own.items() if name not in left_out}


@dataclass
class _Draft:
    """Tables before it is known whose labels are learned: columns, and of edges the types of both ends."""

    nodes: dict[str, NodeColumns]
    edges: dict[str, tuple[EdgeColumns, str, str]]
    times: dict[str, str | None] = field(default_factory=dict)
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_schema(config: TableKeys) -> TableSchema:
    """Make the schema of a configuration. Paths in a file are relative to its folder, unless data.folder is given.

    Raises:
        ValueError: the schema cannot be read, a key is unknown or of the wrong type, or a table does not fit the
            others; the message begins with "data.schema".
    """
    folder = config.folder
    if config.schema is None:
        own = config.edges
        ends = (own.source, own.target) if own.bipartite else (NODE_TYPE, NODE_TYPE)
        draft = _Draft(
            dict.fromkeys(ends, config.nodes), {EDGE_TYPE: (replace(own, bipartite=False), *ends)}
        )
    else:
        draft = _read(config)
        if folder is None and isinstance(config.schema, str):
            folder = str(Path(config.schema).parent)
    rows = _describe_rows(config, draft)
    of_edges = [name for name, (own, *_) in draft.edges.items() if own.has_labels]
    of_nodes = [name for name, own in draft.nodes.items() if own.label_columns()]
    is_typed = bool(
        config.schema is not None or of_edges or rows is not None or config.edges.bipartite
    )
    if rows is not None:
        of_nodes, of_edges = [TYPE], []
        _add_rows(config, draft, rows)
    wanted = TYPE if rows is not None else config.label_type
    found = [*of_nodes, *of_edges] if wanted is not None or not of_edges else of_edges
    if config.reads_labels and wanted is not None and wanted not in found:
        raise ValueError(
            f"task.type={wanted}: {config.origin()} names no label of this type; there are labels of "
            f"{', '.join(found) or 'no type'}"
        )
    labelled = wanted
    # Without times of nodes, data.split=time divides links alone, which need no labels; a column of edges does so, too.
    divides_links = is_typed and (
        config.split == "time"
        and config.time_column is None
        or config.split == "column"
        and any(own.split_column is not None for own, *_ in draft.edges.values())
    )
    if wanted is None and len(found) == 1 and (of_edges or not divides_links):
        labelled = found[0]
    for name in of_edges:
        own, source, target = draft.edges[name]
        if name == labelled:
            _add_labelled(draft, name)
        else:
            draft.edges[name] = without_labels(own), source, target
    nodes = {
        name: _node_table(
            config,
            own,
            folder,
            rows if name == TYPE else None,
            is_labelled=name == labelled,
            time=draft.times.get(name, config.time_column),
            ends=draft.ends.get(name),
            are_edges=name in draft.times,
        )
        for name, own in draft.nodes.items()
    }
    edges = {
        name: EdgeTable(
            own,
            _resolve(folder, str(own.path)),
            source,
            target,
            _place(own, None if is_typed or found else config.split_by, config.split),
        )
        for name, (own, source, target) in draft.edges.items()
    }
    unread = found if wanted is None and len(found) > 1 else []
    return TableSchema(nodes, edges, is_typed, labelled, unread, rows)


def _node_table(
    config: TableKeys,
    own: NodeColumns,
    folder: str | None,
    rows: RowTable | None,
    *,
    is_labelled: bool,
    time: str | None,
    ends: tuple[str, str] | None,
    are_edges: bool,
) -> NodeTable:
    """Complete the columns of a type by how its labels are divided; of other types no labels are read."""
    path = None if own.path is None else _resolve(folder, own.path)
    if not is_labelled:
        features = "hashed" if own.text_features == "scores" else own.text_features
        plain = replace(own, label=None, split_column=None)
        return NodeTable(replace(plain, text_features=features), path)
    labels = own.label_columns() if config.reads_labels else []
    if rows is not None:
        return NodeTable(own, path, labels, "time", TIME, config.metric)
    split = config.split or ("column" if own.split_column is not None else "random")
    by = {"column": own.split_column, "random": config.split_by, "time": time}[split]
    if split == "random" and by is not None:
        split = "group"
    by = by if labels else None
    return NodeTable(own, path, labels, split, by, config.metric, ends, are_edges)


def _place(own: EdgeColumns, group: str | None, split: str | None) -> Named | None:
    """Return the kind of the column of edges that divides links, "time", "column" or "group", and its name."""
    by_group, column, time = ("group", group), ("column", own.split_column), ("time", own.time)
    fits = {"time": [time], "column": [column], "random": [by_group, column, time]}
    found = fits.get(str(split), [column, by_group, time])
    return next(((kind, column) for kind, column in found if column is not None), None)


def _resolve(folder: str | None, path: str) -> Path:
    return Path(folder or "", path).expanduser()


def without_labels(edges: EdgeColumns) -> EdgeColumns:
    """Return the columns of a table of edges whose labels are not learned."""
    return replace(edges, id=None, label=None, categories=[], text=[])


def _add_labelled(draft: _Draft, name: str) -> None:
    """Let the rows of a table of edges be nodes of a type of their own, with an edge to the node at either end.

    An account that sends money to another becomes ``account <- transaction -> account``. The columns of the edge are
    features of its node, so that all that nodes can have, edges have too, and two rows between the same nodes stay two.
    """
    own, *kinds = draft.edges.pop(name)
    _refuse_names(draft, [name], [f"{name}_source", f"{name}_target"])
    draft.times[name] = own.time
    if kinds[0] == kinds[1]:
        draft.ends[name] = own.source, own.target
    draft.nodes[name] = NodeColumns(
        path=own.path,
        csv=own.csv,
        id=own.id or ROW,
        features=[*([] if own.weight is None else [own.weight]), *own.features],
        log1p=own.log1p,
        standardize=own.standardize,
        dates=own.dates,
        text=own.text,
        label=own.label,
        categories=[*([] if own.relation is None else [own.relation]), *own.categories],
        split_column=own.split_column,
    )
    for end, column, kind in zip(("source", "target"), (own.source, own.target), kinds):
        columns = EdgeColumns(path=own.path, csv=own.csv, source=own.id or ROW, target=column)
        draft.edges[f"{name}_{end}"] = columns, name, str(kind)


def _refuse_names(draft: _Draft, types: list[str], relations: list[str]) -> None:
    """Refuse names of tables that rows need for themselves."""
    if taken := [*(draft.nodes.keys() & set(types)), *(draft.edges.keys() & set(relations))]:
        raise ValueError(
            f"data.schema: {sorted(taken)[0]} is the name of a table, and of what rows with labels become. "
            "Rename the table"
        )


def _describe_rows(config: TableKeys, draft: _Draft) -> RowTable | None:
    """Describe the label table of a schema; none without one.

    Raises:
        ValueError: it is not said which nodes it is about.
    """
    if config.label_table is None:
        return None
    only = next(iter(draft.nodes)) if len(draft.nodes) == 1 else None
    entity, within = config.rows.type or only, config.rows.within
    if entity not in draft.nodes:
        raise ValueError(
            f"data.rows.type={entity or 'null'} must name the type of the nodes that the label table is about: one "
            f"of {', '.join(draft.nodes)}"
        )
    timed = [
        (name, end)
        for name, (own, *kinds) in draft.edges.items()
        for end, kind in zip(("source", "target"), kinds)
        if kind == entity and own.time is not None
    ]
    names = [name for name, _ in timed]
    found = [
        Events(
            name,
            end,
            name if names.count(name) == 1 else f"{name} {end}",
            [own for own in draft.edges[name][0].value_columns() if own[0] != "dates"],
        )
        for name, end in timed
    ]
    length = 0.0 if within is None else length_of(within)
    return RowTable(entity, found, within, length)


def _add_rows(config: TableKeys, draft: _Draft, rows: RowTable) -> None:
    """Let the rows of a label table be nodes of a type, with an edge from the node that each is about."""
    _refuse_names(draft, [TYPE], [RELATION])
    path = config.label_table
    for name, (own, source, target) in draft.edges.items():
        draft.edges[name] = replace(without_labels(own), split_column=None), source, target
    draft.nodes[TYPE] = NodeColumns(
        path=path,
        id=ROWS,
        features=rows.columns(),
        log1p=rows.logarithms(),
        standardize=True,
        label="label",
    )
    columns = EdgeColumns(path=path, source=ROWS, target="id")
    draft.edges[RELATION] = columns, TYPE, rows.entity


def _read(config: TableKeys) -> _Draft:
    """Read the tables of data.schema."""
    content = _load(config.schema)
    usual = {"text_features": config.nodes.text_features}
    types = {
        name: _merge(NodeColumns, usual | _mapping(keys, f"nodes.{name}"), f"nodes.{name}")
        for name, keys in _section(content, "nodes").items()
    }
    edges = {name: _read_edges(name, keys) for name, keys in _section(content, "edges").items()}
    if unknown := sorted(set(content) - {"nodes", "edges"}):
        raise ValueError(f"data.schema: {unknown[0]} is unknown; the schema has nodes and edges")
    if not edges:
        raise ValueError("data.schema names no table of edges. Give one or more below edges")
    ends = [(name, end) for name, (_, *own) in edges.items() for end in own]
    for name, end in ends:
        if end not in types:
            raise ValueError(
                f"data.schema: the edges {name} end at nodes of the type {end}, and nodes has "
                f"{', '.join(types) or 'no types'}. Add it there; {{}} is enough for a type without a "
                "table"
            )
    for name, nodes in types.items():
        if nodes.path is None and name not in [end for _, end in ends]:
            raise ValueError(
                f"data.schema: the type {name} has no table and no edges. Leave it out, or give its path"
            )
    return _Draft(types, edges)


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that names a key twice, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                raise ValueError(
                    f"data.schema: {key.value} is there twice, in line {key.start_mark.line + 1} and "
                    "before. Give each table a name of its own"
                )
        return super().construct_mapping(node, deep)


def _load(value: object) -> dict[str, Any]:
    """Return the content of a schema."""
    if isinstance(value, str):
        path = Path(value)
        if not files.is_there(path) or path.is_dir():
            raise ValueError(
                f"data.schema={value} is not a file. Give a file in YAML that names the tables"
            )
        text = files.read_text(path)
        try:
            limits.check_yaml(text, path.name)
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"data.schema={path} is not YAML: {one_line(error)}") from None
    return _mapping(value, "the schema")


def _section(content: Mapping, name: str) -> dict[str, Any]:
    section = _mapping(content.get(name) or {}, name)
    return {key: {} if part is None else part for key, part in section.items()}


def _read_edges(name: str, keys: object) -> tuple[EdgeColumns, str, str]:
    keys, ends = _mapping(keys, f"edges.{name}"), dict[str, End]()
    for end in ("source", "target"):
        value = keys.pop(end, None)
        where = f"edges.{name}.{end}"
        ends[end] = End(value) if isinstance(value, str) else _merge(End, value or {}, where)
        if not ends[end].type:
            raise ValueError(
                f"data.schema: {where} names no type of nodes. Give it as {end}: TYPE, or as {end}: "
                "{type: TYPE, column: COLUMN}"
            )
        keys[end] = ends[end].column or end
    columns = _merge(EdgeColumns, keys, f"edges.{name}")
    if columns.path is None:
        raise ValueError(f"data.schema: edges.{name} has no path. Give that of its table")
    return columns, ends["source"].type, ends["target"].type


def _mapping(keys: object, where: str) -> dict[str, Any]:
    if not isinstance(keys, Mapping):
        raise ValueError(
            f"data.schema: {where} must be a mapping of keys, not {type(keys).__name__}"
        )
    return {str(key): value for key, value in keys.items()}


# Names of the kinds of values that are no texts.
VALUES: dict[Any, str] = {
    bool: "true or false",
    bool | None: "true or false",
    int: "a whole number",
    float: "a number",
    list[str]: "a list of names",
}


def _merge(kind: type[Keys], keys: object, where: str) -> Keys:
    """Make an object of keys in a schema."""
    given = _mapping(keys, where)
    for name, value in (OF_NODES | UNHASHED).items():
        if name in given and given[name] == value:
            del given[name]
    if "${" in str(given):  # OmegaConf would read variables of the environment
        raise ValueError(
            f"data.schema: {where} holds ${{...}}, which is not replaced here. Write the value itself"
        )
    types = {field.name: field.type for field in dataclasses.fields(cast(Any, kind))}
    if unknown := [name for name in given if name not in types]:
        raise ValueError(
            f"data.schema: {where}.{unknown[0]} is unknown; choose among {', '.join(types)}"
        )
    merged = OmegaConf.structured(kind)
    for name, value in given.items():
        try:
            OmegaConf.update(merged, name, value)
        except OmegaConfBaseException:
            raise ValueError(
                f"data.schema: {where}.{name}={value} must be {VALUES.get(types[name], 'a text')}"
            ) from None
    return cast(Keys, OmegaConf.to_object(merged))


def check_inputs(schema: TableSchema, known: dict[str, Any]) -> None:
    """Refuse tables whose columns are not those of a training.

    Args:
        known: what :meth:`TableSchema.inputs` returned for the training.

    Raises:
        ValueError: names the table and the key.
    """
    for part, found in schema.inputs().items():
        names, expected = ([name for name, _ in tables] for tables in (found, known[part]))
        if names != expected:
            raise ValueError(
                f"data.schema: {part} has {', '.join(names)}, and the model was trained on "
                f"{', '.join(expected)}, in this order"
            )
        for (name, keys), (_, old) in zip(found, known[part]):
            if other := [key for key in keys | old if keys.get(key) != old.get(key)]:
                raise ValueError(
                    f"data.schema: {part}.{name}.{other[0]} is {keys.get(other[0])}, and the model was trained "
                    f"on {old.get(other[0])}"
                )


def with_paths(schema: object, others: Iterator[object]) -> dict[str, Any]:
    """Return the content of a schema with other paths, or tables, in their order."""
    content = _load(schema)
    return {
        part: {
            name: keys | ({"path": next(others)} if "path" in keys else {})
            for name, keys in _section(content, part).items()
        }
        for part in ("nodes", "edges")
    }


def check_tables(config: TableKeys) -> None:
    """Refuse tables that are not there, and columns that they do not have or that cannot be what the keys say.

    Raises:
        ValueError: names the type or the table of edges.
    """
    schema = read_schema(config)
    if config.label_table is not None:
        path = cast(Path, schema.nodes[TYPE].path)
        if not heads.is_there(path):
            raise ValueError(
                f"data.label_table={config.label_table} does not exist; its full path is "
                f"{path.absolute()}"
            )
        names = ("id", "time", "label") if config.reads_labels else ("id", "time")
        heads.check("data.rows", path, [("data.label_table", name) for name in names])
    for part, tables in (("nodes", schema.nodes), ("edges", schema.edges)):
        for name, own in tables.items():
            if is_made(own):
                continue
            try:
                _check(own, f"data.{part}")
            except ValueError as error:
                where = "" if config.schema is None else f"data.schema: {part}.{name}: "
                raise ValueError(f"{where}{error}") from None


def _check(own: NodeTable | EdgeTable, part: str) -> None:
    path, columns, key = own.path, own.columns, own.key
    for name in (*INPUTS, "label"):
        given = getattr(columns, name, None)
        if path is None and given:
            raise ValueError(f"{key}.{name}={given} needs a table of nodes: give {key}.path")
    if path is None:
        return
    if not heads.is_there(path):
        raise ValueError(
            f"{part}.path={columns.path} does not exist; its full path is {path.absolute()}"
        )
    if wrong := set(columns.log1p) - set(columns.features):
        raise ValueError(f"{key}.log1p names {min(wrong)}, which is not in {key}.features")
    if isinstance(own, NodeTable):
        labels = {column for _, column in own.labels}
        for name in INPUTS:
            if known := labels & set(getattr(columns, name)):
                raise ValueError(
                    f"{key}.{name} names {min(known)}, which is the label: the model would read what it "
                    "is to predict. Leave it out"
                )
        if own.split in ("column", "time") and labels and own.by is None:
            time = "data.time_column" if key == "data.nodes" else "data.edges.time"
            wanted = time if own.split == "time" else f"{key}.split_column"
            raise ValueError(f"data.split={own.split} needs {wanted}, a column of {path}")
    if wrong := columns.csv.keys() - CSV:
        raise ValueError(f"{key}.csv names {min(wrong)}; choose among {', '.join(CSV)}")
    heads.check(key, path, own.named, columns.csv)


def is_made(own: NodeTable | EdgeTable) -> bool:
    """Tell whether a table is that of the rows of a label table, or of the edges from them."""
    columns = own.columns
    first = columns.id if isinstance(columns, NodeColumns) else columns.source
    return first == ROWS
