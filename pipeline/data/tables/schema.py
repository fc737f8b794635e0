"""The schema of several tables of nodes and edges: data.schema, a file in YAML or the same as a mapping of keys."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallel_epochs.pipeline.data.relation import REVERSE, choose_relation, show
from parallel_epochs.pipeline.data.tables import label_table, labelled_edges
from parallel_epochs.pipeline.data.tables.heads import ROW, is_there
from parallel_epochs.pipeline.data.tables.label_table import RowTable
from parallel_epochs.pipeline.keys import meaning_of
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import one_line

if TYPE_CHECKING:
    from parallel_epochs.pipeline.data.tables.config import EdgeColumns, NodeColumns, TablesConfig

Keys = TypeVar("Keys")

# Keys of a table that do not say what a model reads: other tables may have others.
NO_INPUTS = (
    "path",
    "table",
    "id",
    "label",
    "labels",
    "log_label",
    "split_column",
    "max_categories",
    "source",
    "target",
    "time",
)

# The kind of value that a key takes, by a word of its type.
KINDS = {
    "list[int]": "a list of whole numbers",
    "list": "a list of names",
    "bool": "true or false",
    "int": "a whole number",
    "str": "a text",
}


@dataclass
class End:
    """One end of the edges of a table.

    Attributes:
        type: of the nodes.
        column: that holds their ids; none: that of the name of the end, "source" or "target".
    """

    type: str = ""
    column: str | None = None


@dataclass
class EdgeTable:
    """A table of edges.

    Attributes:
        config: of its columns, as of a graph with one type of nodes.
        source, target: types of the nodes at both ends.
    """

    config: "TablesConfig"
    source: str
    target: str


@dataclass
class TableSchema:
    """The tables of a graph with several types of nodes.

    Attributes:
        nodes: of each type, the columns of its table, as of a graph with one type of nodes.
        edges: the tables of edges, by their names.
        labelled: type of the nodes with labels, if there is one.
        unread: types with labels, if there are several of which none was chosen.
        rows: the label table, if there is one.
    """

    nodes: "dict[str, TablesConfig]"
    edges: dict[str, EdgeTable]
    labelled: str | None
    unread: list[str] = field(default_factory=list)
    rows: RowTable | None = None

    @property
    def divided(self) -> list[str]:
        """The tables of edges that have a column of splits."""
        return [
            name
            for name, table in self.edges.items()
            if table.config.edges.split_column is not None
        ]

    def tables(self) -> "list[TablesConfig]":
        """Return the configuration of every table."""
        return [*self.nodes.values(), *(edges.config for edges in self.edges.values())]

    def describe(self) -> dict[str, Any]:
        """Return what the graph depends on beside the content of the files, as JSON can hold it."""
        return {
            "nodes": [
                [name, _chosen(config.nodes, ("path",))] for name, config in self.nodes.items()
            ],
            "edges": [
                [name, edges.source, edges.target, _chosen(edges.config.edges, ("path",))]
                for name, edges in self.edges.items()
            ],
        }

    def inputs(self) -> dict[str, Any]:
        """Return the keys that say what the columns are which a model reads, as JSON can hold them."""
        return {
            "nodes": [
                [name, _chosen(config.nodes, NO_INPUTS)] for name, config in self.nodes.items()
            ],
            "edges": [
                [
                    name,
                    _chosen(edges.config.edges, NO_INPUTS)
                    | {"source": edges.source, "target": edges.target},
                ]
                for name, edges in self.edges.items()
            ],
        }


def _chosen(columns: "NodeColumns | EdgeColumns", left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a table; those that came later are there only if they are given, as graphs keep their hash."""
    later = ("split_column", "label") if hasattr(columns, "source") else ()  # those of edges
    return {
        name: value
        for name, value in dataclasses.asdict(columns).items()
        if name not in left_out
        and ((before := meaning_of(type(columns), name).before) is None or value != before)
        and not (name in later and value is None)
    }


def read_schema(config: "TablesConfig") -> TableSchema:
    """Read the schema of a configuration. Paths in a file are relative to its folder, unless data.folder is given.

    Without a schema, the edges of one table have labels, which are nodes of a type of their own, or different ends.

    Raises:
        ValueError: it cannot be read, a key is unknown or of the wrong type, or a table does not fit the others; the
            message begins with "data.schema".
    """
    asked, config = config, _replace(config, label_table=None, events=type(config.events)())
    if config.schema is None:
        ends, usual = [labelled_edges.NODE_TYPE] * 2, type(config)()
        if config.edges.bipartite:
            ends = [config.edges.source, config.edges.target]
        table = _replace(
            config,
            nodes=usual.nodes,
            split=None,
            split_by=None,
            time_column=None,
            edges=dataclasses.replace(config.edges, bipartite=False),
        )
        return _choose_labels(
            asked,
            TableSchema(
                {end: _replace(config, edges=usual.edges) for end in ends},
                {labelled_edges.EDGE_TYPE: EdgeTable(table, *ends)},
                None,
            ),
        )
    content = _load(config.schema)
    if config.folder is None and isinstance(config.schema, str):
        config, asked = (
            _replace(own, folder=str(Path(config.schema).parent)) for own in (config, asked)
        )
    types = {
        name: _read_nodes(config, name, keys) for name, keys in _section(content, "nodes").items()
    }
    edges = {
        name: _read_edges(config, name, keys) for name, keys in _section(content, "edges").items()
    }
    if unknown := sorted(set(content) - {"nodes", "edges"}):
        raise ValueError(f"data.schema: {unknown[0]} is unknown; the schema has nodes and edges")
    if not edges:
        raise ValueError("data.schema names no table of edges. Give one or more below edges")
    for name, table in edges.items():
        for end in (table.source, table.target):
            if end not in types:
                raise ValueError(
                    f"data.schema: the edges {name} end at nodes of the type {end}, and nodes has "
                    f"{', '.join(types) or 'no types'}. Add it there; {{}} is enough for a type without a "
                    "table"
                )
    ends = {end for table in edges.values() for end in (table.source, table.target)}
    for name, nodes in types.items():
        if nodes.nodes.path is None and name not in ends:
            raise ValueError(
                f"data.schema: the type {name} has no table and no edges. Leave it out, or give its path"
            )
    return _choose_labels(asked, TableSchema(types, edges, None))


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
            _refuse_twice(text)
            value = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"data.schema={path} is not YAML: {one_line(error)}") from None
    if not isinstance(value, Mapping):
        raise ValueError(
            f"data.schema holds {type(value).__name__}, and it must hold nodes and edges"
        )
    return {str(key): part for key, part in value.items()}


def _refuse_twice(text: str) -> None:
    """Refuse a mapping that names a key twice, of which YAML keeps the last."""
    pending = [yaml.compose(text, yaml.SafeLoader)]
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise ValueError(
                    f"data.schema: {key.value} is there twice, in line {key.start_mark.line + 1} and "
                    "before. Give each table a name of its own"
                )
            seen.add(key.value)
            pending.append(value)


def _section(content: Mapping, name: str) -> dict[str, Any]:
    section = content.get(name) or {}
    if not isinstance(section, Mapping):
        raise ValueError(
            f"data.schema: {name} must be a mapping of names to tables, not {type(section).__name__}"
        )
    return {str(key): {} if part is None else part for key, part in section.items()}


def _read_nodes(config: "TablesConfig", name: str, keys: object) -> "TablesConfig":
    usual = type(config)()
    chosen = {"text_features": config.nodes.text_features} | _require_mapping(keys, f"nodes.{name}")
    return _replace(
        config,
        schema=None,
        edges=usual.edges,
        nodes=_merge(type(usual.nodes), chosen, f"nodes.{name}"),
    )


def _replace(config: "TablesConfig", **changes: Any) -> "TablesConfig":
    """Replace fields of a configuration, and keep whether it reads labels, which is no field."""
    found = dataclasses.replace(config, **changes)
    found.reads_labels = config.reads_labels
    return found


def _read_edges(config: "TablesConfig", name: str, keys: object) -> EdgeTable:
    usual, keys = type(config)(), _require_mapping(keys, f"edges.{name}")
    ends = {
        end: _read_end(f"edges.{name}.{end}", keys.pop(end, None)) for end in ("source", "target")
    }
    for end, value in ends.items():
        if not value.type:
            raise ValueError(
                f"data.schema: edges.{name}.{end} names no type of nodes. Give it as {end}: TYPE, or as "
                f"{end}: {{type: TYPE, column: COLUMN}}"
            )
    keys |= {end: value.column or end for end, value in ends.items()}
    columns = _merge(type(usual.edges), keys, f"edges.{name}")
    if columns.path is None:
        raise ValueError(f"data.schema: edges.{name} has no path. Give that of its table")
    if columns.directed_relations:
        raise ValueError(
            f"data.schema: edges.{name}.directed_relations is for graphs with one type of nodes. Leave it "
            "out: here reverse edges have relations of their own (data.reverse_relations)"
        )
    return EdgeTable(
        _replace(
            config,
            schema=None,
            nodes=usual.nodes,
            edges=columns,
            split=None,
            split_by=None,
            time_column=None,
        ),
        ends["source"].type,
        ends["target"].type,
    )


def _read_end(where: str, value: object) -> End:
    """Read one end of the edges: a type, or its type and column."""
    return (
        End(value) if isinstance(value, str) else _merge(End, {} if value is None else value, where)
    )


def _require_mapping(keys: object, where: str) -> dict[str, Any]:
    if not isinstance(keys, Mapping):
        raise ValueError(
            f"data.schema: {where} must be a mapping of keys, not {type(keys).__name__}"
        )
    return {str(key): value for key, value in keys.items()}


def _merge(kind: type[Keys], keys: object, where: str) -> Keys:
    """Make an object of keys in a schema."""
    given = _require_mapping(keys, where)
    if "${" in str(given):  # OmegaConf would read variables of the environment
        raise ValueError(
            f"data.schema: {where} holds ${{...}}, which is not replaced here. Write the value itself"
        )
    types = {field.name: str(field.type) for field in dataclasses.fields(cast(Any, kind))}
    if unknown := [name for name in given if name not in types]:
        raise ValueError(
            f"data.schema: {where}.{unknown[0]} is unknown; choose among {', '.join(types)}"
        )
    merged = OmegaConf.structured(kind)
    for name, value in given.items():
        try:
            OmegaConf.update(merged, name, value)
        except OmegaConfBaseException:
            wanted = next(text for word, text in KINDS.items() if word in types[name])
            raise ValueError(f"data.schema: {where}.{name}={value} must be {wanted}") from None
    return cast(Keys, OmegaConf.to_object(merged))


def _choose_labels(config: "TablesConfig", schema: TableSchema) -> TableSchema:
    """Keep the labels of one type of nodes, or of one table of edges, whose rows become nodes."""
    of_edges = [
        name
        for name, table in schema.edges.items()
        if labelled_edges.has_labels(table.config.edges)
    ]
    of_nodes = [
        name
        for name, table in schema.nodes.items()
        if table.nodes.label is not None or table.nodes.labels
    ]
    wanted, rows = config.label_type, _describe_rows(config, schema) if config.has_rows else None
    if rows is not None:
        of_nodes, of_edges = [], []
    found = [*of_nodes, *of_edges] if wanted is not None or not of_edges else of_edges
    if config.reads_labels and rows is None:
        _check_labels(wanted, found, schema)
    labelled = wanted
    # Without times of nodes, data.split=time divides links alone, which need no labels; a column of edges does so, too.
    if wanted is None and (
        of_edges
        or not (config.split == "time" and config.time_column is None)
        and not (config.split == "column" and schema.divided)
    ):
        labelled = found[0] if len(found) == 1 else None
    for name, nodes in schema.nodes.items():
        if name != labelled:
            columns = dataclasses.replace(
                nodes.nodes,
                label=None,
                labels=[],
                log_label=False,
                split_column=None,
                text_features="hashed"
                if nodes.nodes.text_features == "scores"
                else nodes.nodes.text_features,
            )
            schema.nodes[name] = _replace(
                nodes, nodes=columns, split=None, split_by=None, time_column=None
            )
    if rows is not None:
        _add_rows(config, schema, rows)
        for table in schema.edges.values():
            columns = dataclasses.replace(
                labelled_edges.without_labels(table.config.edges), split_column=None
            )
            table.config = _replace(table.config, edges=columns)
        return dataclasses.replace(schema, labelled=label_table.TYPE, rows=rows)
    for name in of_edges:
        table = schema.edges.pop(name)
        if name == labelled:
            _add_labelled(config, schema, name, table)
        else:
            schema.edges[name] = dataclasses.replace(
                table,
                config=_replace(
                    table.config, edges=labelled_edges.without_labels(table.config.edges)
                ),
            )
    return dataclasses.replace(
        schema, labelled=labelled, unread=found if wanted is None and len(found) > 1 else []
    )


def _describe_rows(config: "TablesConfig", schema: TableSchema) -> RowTable:
    """Describe the label table of a schema.

    Raises:
        ValueError: it is not said which nodes or edges it is of.
    """
    events, labels, made = config.events, config.rows, None
    if events.table is not None and config.label_table is None:
        if events.table not in schema.edges:
            raise ValueError(
                f"data.events names {events.table}, which is no table of edges; there are "
                f"{', '.join(schema.edges)}"
            )
        made = events.table, events.of
    key, within = (
        ("data.events.within", events.within)
        if events.within
        else ("data.rows.within", labels.within)
    )
    of_events = (
        getattr(schema.edges[events.table], events.of) if events.table in schema.edges else None
    )
    entity = (
        labels.type or of_events or (next(iter(schema.nodes)) if len(schema.nodes) == 1 else None)
    )
    if entity not in schema.nodes or made is not None and entity != of_events:
        raise ValueError(
            f"data.rows.type={entity or 'null'} must name the type of the nodes that the label table is "
            f"about: one of {', '.join(schema.nodes) if made is None else of_events}"
        )
    ends = [
        (name, end)
        for name, table in schema.edges.items()
        if table.config.edges.time is not None
        for end in ("source", "target")
        if getattr(table, end) == entity
    ]
    if made is not None and made not in ends:
        raise ValueError(
            f"data.events: the table {made[0]} needs a column of times. Name it by "
            + ("data.edges.time" if config.schema is None else f"time, below edges.{made[0]}")
        )
    found = [
        label_table.Events(
            name,
            end,
            name if [name for name, _ in ends].count(name) == 1 else f"{name} {end}",
            [
                (option, column)
                for option, column in schema.edges[name].config.value_columns("edges")
                if option != "dates"
            ],
        )
        for name, end in ends
    ]
    return RowTable(
        str(entity),
        found,
        within,
        0.0 if within is None else label_table.length_of(key, within),
        config.time_column is not None and schema.nodes[str(entity)].nodes.path is not None,
        made,
    )


def _add_rows(config: "TablesConfig", schema: TableSchema, rows: RowTable) -> None:
    """Let the rows of a label table be nodes of a type, with an edge from the node that each is about."""
    usual = type(config)()
    if label_table.TYPE in schema.nodes:
        raise ValueError(
            f"data.schema: {label_table.TYPE} is a type of nodes, and the name of the rows of the label "
            "table. Rename the type"
        )
    if label_table.RELATION in schema.edges:
        raise ValueError(
            f"data.schema: edges.{label_table.RELATION} has the name of the edges from the rows of the "
            "label table. Rename it"
        )
    path = (
        config.label_table
        if rows.labels is None
        else schema.edges[rows.labels[0]].config.edges.path
    )
    table = (
        config.rows.table
        if rows.labels is None
        else schema.edges[rows.labels[0]].config.edges.table
    )
    plain = _replace(
        config,
        schema=None,
        label_table=None,
        events=usual.events,
        nodes=usual.nodes,
        edges=usual.edges,
        split="time",
        time_column=label_table.TIME,
        empty="zero",
        metric=config.metric
        or (None if rows.labels is None else "rmse" if config.events.count else "rocauc"),
    )
    schema.nodes[label_table.TYPE] = _replace(
        plain,
        nodes=dataclasses.replace(
            usual.nodes,
            path=path,
            table=table,
            id=label_table.ROWS,
            features=rows.columns(),
            log1p=rows.logarithms(),
            standardize=True,
            label=config.rows.label,
        ),
    )
    schema.edges[label_table.RELATION] = EdgeTable(
        _replace(
            plain,
            split=None,
            time_column=None,
            edges=(
                dataclasses.replace(
                    usual.edges, path=path, table=table, source=label_table.ROWS, target="id"
                )
            ),
        ),
        label_table.TYPE,
        rows.entity,
    )


def _add_labelled(config: "TablesConfig", schema: TableSchema, name: str, table: EdgeTable) -> None:
    """Let the rows of a table of edges be nodes of a type, with edges to both ends."""
    own, usual = table.config.edges, type(config)()
    if name in schema.nodes:
        raise ValueError(
            f"data.schema: {name} is a type of nodes, and the name of edges with labels. Rename one"
        )
    schema.nodes[name] = _replace(
        table.config,
        edges=usual.edges,
        nodes=labelled_edges.as_nodes(own, usual.nodes),
        split=config.split,
        split_by=config.split_by,
        time_column=own.time,
    )
    for end, kind in (("source", table.source), ("target", table.target)):
        relation = f"{name}_{end}"
        if relation in schema.edges:
            raise ValueError(
                f"data.schema: edges.{relation} has the name of the {end}s of edges.{name}. Rename it"
            )
        columns = labelled_edges.to_end(own, end, usual.edges)
        schema.edges[relation] = EdgeTable(_replace(table.config, edges=columns), name, kind)


def check_inputs(schema: TableSchema, known: dict[str, Any]) -> None:
    """Refuse tables whose columns are not those of a training.

    Args:
        known: what :meth:`TableSchema.inputs` returned for the training.

    Raises:
        ValueError: names the table and the key.
    """
    for part, found in schema.inputs().items():
        names, expected = [name for name, _ in found], [name for name, _ in known[part]]
        if names != expected:
            raise ValueError(
                f"data.schema: {part} has {', '.join(names)}, and the model was trained on "
                f"{', '.join(expected)}, in this order"
            )
        for (name, keys), (_, old) in zip(found, known[part], strict=True):
            for key in keys | old:
                if keys.get(key) != old.get(key):
                    raise ValueError(
                        f"data.schema: {part}.{name}.{key} is {keys.get(key)}, and the model was trained "
                        f"on {old.get(key)}"
                    )


def _check_labels(wanted: str | None, found: list[str], schema: TableSchema) -> None:
    """Refuse to learn labels that are not there."""
    if wanted is not None and wanted not in {*schema.nodes, *found}:
        raise ValueError(
            f"task.type={wanted}: data.schema has no such type of nodes; there are "
            f"{', '.join(schema.nodes)}"
        )
    if wanted is not None and wanted not in found:
        has = f"there are labels of {', '.join(found)}" if found else "no type has some"
        raise ValueError(f"task.type={wanted}: data.schema names no label of this type; {has}")


def without_paths(schema: object, other: str) -> dict[str, Any]:
    """Return the content of a schema with another text for the path of each table."""
    content = _load(schema)
    return {
        part: {
            name: keys | ({"path": other} if "path" in keys else {})
            for name, keys in _section(content, part).items()
        }
        for part in ("nodes", "edges")
    }


def check_schema(config: "TablesConfig") -> None:
    """Refuse tables that are not there, and columns that they do not have.

    Raises:
        ValueError: names the type or the table of edges.
    """
    schema = read_schema(config)
    timed = [name for name, table in schema.edges.items() if table.config.edges.time is not None]
    if timed and schema.divided:
        raise ValueError(
            f"data.schema: edges.{timed[0]}.time and edges.{schema.divided[0]}.split_column exclude each "
            "other: links are divided by times or by a column. Leave one of them out"
        )
    for what, tables in (
        ("the type", schema.nodes),
        ("the edges", {name: table.config for name, table in schema.edges.items()}),
    ):
        for name, table in tables.items():
            path = table.nodes.path if what == "the type" else table.edges.path
            if path is not None and not is_there(table.resolve(path)):
                raise ValueError(
                    f"data.schema: {what} {name}: path={path} does not exist; its full path is "
                    f"{table.resolve(path).absolute()}"
                )
            try:
                table.check_columns()
            except ValueError as error:
                where = "" if config.schema is None else f"data.schema: {what} {name}: "
                raise ValueError(
                    f"{where}{_of_edges(str(error)) if table.nodes.id == ROW else error}"
                ) from None


def _of_edges(message: str) -> str:
    """Name the keys of a table of edges in a message about the nodes that its rows are."""
    return message.replace("data.nodes.", "data.edges.").replace(
        "data.time_column", "data.edges.time"
    )


def check_relation(config: "TablesConfig", wanted: object) -> None:
    """Refuse to learn links of a relation that the schema does not have, or without times, before the tables are read.

    Relations in a column of a table are known only when it is read.

    Args:
        wanted: the relation, as task.relation names it.

    Raises:
        ValueError: names the relations, or the table that has no times.
    """
    schema = read_schema(config)
    known = {
        (table.source, name, table.target): name
        for name, table in schema.edges.items()
        if table.config.edges.relation is None
    }
    columns = [
        f"column {table.config.edges.relation} of edges.{name}"
        for name, table in schema.edges.items()
        if table.config.edges.relation is not None
    ]
    if columns and wanted is None:
        more = f", and {', '.join(show(relation) for relation in known)}" if known else ""
        raise ValueError(
            f"task=link learns the links of one relation, and {config.origin()} has several. Choose one "
            f"by task.relation; there are those in {' and '.join(columns)}{more}"
        )
    tables = [table.config.edges for table in schema.edges.values()]
    if not columns:
        forward = list(known)
        reverse = [(target, f"{REVERSE}{name}", source) for source, name, target in forward]
        chosen = choose_relation(
            [*forward, *reverse] if config.reverse_relations else forward, wanted, config.origin()
        )
        tables = [schema.edges[known[forward[chosen]]].config.edges]
    if (
        config.link_split() == "column"
        and schema.divided
        and all(edges.split_column is None for edges in tables)
    ):
        raise ValueError(
            f"task.relation={show(wanted)}: the links of edges.{schema.divided[0]} are divided by a "
            "column of splits, and those of this relation have none. Name it by split_column, in its "
            "part of data.schema, or set data.split=random"
        )
    if config.split == "time" and all(edges.time is None for edges in tables):
        raise ValueError(
            f"task.relation={show(wanted)} with data.split=time needs times. Name their column by time, "
            "in the part of data.schema of this relation, or set data.split=random"
        )
