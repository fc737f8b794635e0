"""The configuration of a run, from Hydra's composition and from config.yaml to the dataclass of its product.

Hydra composes into a schema that has every key of every product. :func:`to_object` keeps those that the run's product
reads, and refuses any other that was given.
"""

import dataclasses
import functools
import glob
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import arguments, gone
from parallel_epochs.pipeline.config import (
    AskConfig,
    ExplainConfig,
    OpenConfig,
    RunConfig,
    TrainerConfig,
)
from parallel_epochs.pipeline.data.config import DataConfig
from parallel_epochs.pipeline.gnn.config import ModelConfig
from parallel_epochs.pipeline.names import check_device
from parallel_epochs.pipeline.products import PRODUCTS, Keys, keys_of
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import DamagedFile, one_line
from parallel_epochs.pipeline.run.words import command_of, listed

log = logging.getLogger(__name__)

# Keys that name the data of a run.
PATHS = (
    "data.path",
    "data.nodes.path",
    "data.edges.path",
    "data.folder",
    "data.root",
    "data.schema",
    "data.labels",
)

# The folder of a checkout and of an installation alike.
CONF: str = str(Path(__file__).resolve().parents[2] / "conf")
# The parts of a configuration that hold the keys of one of several members, whichever is chosen.
OPEN_PARTS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "trainer": TrainerConfig}


def _join(name: str, classes: Iterable[type], open_parts: Mapping[str, type]) -> type:
    """Make a dataclass that has every key of some dataclasses; of parts of one name the most derived one.

    Args:
        open_parts: the class of each part that stays open for the keys of one of its members.
    """
    joined: dict[str, dataclasses.Field] = {}
    for part in (part for class_ in classes for part in dataclasses.fields(class_)):
        known = joined.setdefault(part.name, part)
        if (
            part.name not in open_parts
            and isinstance(part.type, type)
            and isinstance(known.type, type)
            and issubclass(part.type, known.type)
        ):
            joined[part.name] = part
    made = dataclasses.make_dataclass(
        name, [(part.name, open_parts.get(part.name, part.type), part) for part in joined.values()]
    )
    made.__module__ = __name__  # where other processes find it
    return made


AnyRun = _join("AnyRun", (product.config for product in PRODUCTS.values()), OPEN_PARTS)
AnyEvaluation = _join(
    "AnyEvaluation",
    (part for product in PRODUCTS.values() for part in (product.evaluate, product.predict)),
    {},
)


def members() -> dict[str, dict[str, type]]:
    """Return the dataclasses of each part that has several members, by the members' names."""
    found: dict[str, dict[str, type]] = {
        "trainer": {name: type(product.config().trainer) for name, product in PRODUCTS.items()}
    }
    for product in PRODUCTS.values():
        found |= {part: schemas for part, (_, schemas) in product.config.members.items()}
    return found


def open_schema() -> DictConfig:
    """Return the schema of all products with places for any dataset, model and trainer, for Hydra to compose into."""
    schema = OmegaConf.structured(AnyRun)
    for part, kind in OPEN_PARTS.items():
        schema[part] = kind
        OmegaConf.set_struct(schema[part], False)
    return schema


def open_node(schema: type) -> DictConfig:
    """Return a schema that takes other keys, too, which :func:`to_object` looks at; its mappings take any names."""
    node = OmegaConf.structured(schema)
    for part in (node, *(node._get_node(name) for name in node)):
        if isinstance(part, DictConfig):
            OmegaConf.set_struct(part, False)
    return node


def variants(product: Keys) -> Iterator[RunConfig]:
    """Go through the usual configuration of a product with each member of each of its parts."""
    usual = product.config()
    yield usual
    for part, (_, schemas) in usual.members.items():
        for kind in schemas.values():
            yield dataclasses.replace(usual, **{part: kind()})


@functools.cache
def known_keys() -> dict[str, tuple[keys.Entry, list[str]]]:
    """Return every key of a run: its usual value and meaning, and who reads it, as on the command line: trainer=gnn."""
    found: dict[str, tuple[keys.Entry, list[str]]] = {}
    for name, product in PRODUCTS.items():
        for entry in (entry for config in variants(product) for entry in keys.entries(config)):
            readers = found.setdefault(entry.name, (entry, []))[1]
            if f"trainer={name}" not in readers:
                readers.append(f"trainer={name}")
    return found


def all_keys() -> set[str]:
    """Return the names of the keys of all products, datasets and models."""
    return set(known_keys())


def keys_without_numbers() -> set[str]:
    """Return the keys of all products that say where things lie and how long a run trains."""
    return {name for name, (entry, _) in known_keys().items() if not entry.meaning.changes_numbers}


def check_readers(product: str, names: Iterable[str]) -> None:
    """Refuse keys that a product does not read.

    Args:
        product: its name.
        names: of the keys that were given, each as "key" or "key=value".

    Raises:
        ValueError: names the first such key, and the products that read it.
    """
    for name in names:
        _, owners = known_keys().get(name.partition("=")[0], (None, []))
        if owners and f"trainer={product}" not in owners:
            raise ValueError(
                f"{name} is read by {listed(owners)} only; this command has trainer={product}. Leave it "
                "out, or name the trainer that reads it, also that of a run to resume"
            )


def to_object(
    cfg: DictConfig, arguments: Iterable[str] = (), *, is_saved: bool = False
) -> RunConfig:
    """Turn a composed configuration into the dataclass of its product, every interpolation resolved.

    Args:
        arguments: of the command. Where one chooses a dataset, model or trainer, an experiment may have written keys
            for another, which are left out.
        is_saved: whether it is the config.yaml of a run, in which older versions wrote keys that its product does not
            read. They are left out.

    Raises:
        ValueError: the dataset is unknown, or a key is missing, unknown, of the wrong type or read by other products
            only; the message names it.
    """
    usual = _usual_of(cfg)
    if is_saved:
        usual = keys.replaced(
            usual,
            {
                entry.name: entry.meaning.before
                for entry in keys.entries(usual)
                if entry.meaning.before is not None
            },
        )
    typed = {argument.lstrip("+").partition("=")[0] for argument in arguments}
    replaced = [part for part in OPEN_PARTS if part in typed]
    typed |= {f"{name}.name" for name in typed - {"data"}}  # data.name is another key
    try:
        values = _flatten(
            cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True)),
            all_keys() | gone.KEYS.keys(),
        )
        if is_saved:
            values = gone.leave_out(values)
        read = {entry.name: entry.value for entry in keys.entries(usual)}
        unread = {
            name: values.pop(name) for name in list(values) if name in all_keys() - read.keys()
        }
        config = _merge(
            usual,
            {
                name: value
                for name, value in values.items()
                if value != read.get(name, ...) or type(value) is not type(read[name])
            },
        )
    except OmegaConfBaseException as error:
        # Typed values have been checked before: only for a file the message may lack the key.
        message, key = one_line(error), error.full_key
        where = f"{key}: " if is_saved and key and f"'{key}'" not in message else ""
        raise ValueError(where + message) from None
    left_out: dict[str, Any] = {}
    if not is_saved:
        left_out = {
            name: value
            for name, value in unread.items()
            if name in typed or value != known_keys()[name][0].value
        }
        _refuse_unread(
            usual,
            {name: value for name, value in left_out.items() if name in typed or not replaced},
        )
    odd = {
        name: value
        for name, value in keys.refused(config).items()
        if name not in typed and name.partition(".")[0] in replaced
    }
    if left_out or odd:
        log.info(
            "left out, as the experiment means them for another %s: %s",
            " and ".join(replaced),
            ", ".join(f"{name}={value}" for name, value in [*left_out.items(), *odd.items()]),
        )
    config = keys.replaced(config, {name: read[name] for name in odd})
    config = dataclasses.replace(config, data=config.data.completed())
    config = config if is_saved else config.read_as(typed)
    config.check()
    return keys.expand_paths(config)


def _usual_of(cfg: DictConfig) -> RunConfig:
    """Return the usual configuration of the product, dataset and model that a composed one chooses.

    Raises:
        ValueError: there is no such member.
    """
    product = keys_of(OmegaConf.select(cfg, "trainer.name"))
    chosen: dict[str, Any] = {}
    for part, (name, schemas) in product.config.members.items():
        value = OmegaConf.select(cfg, f"{part}.{name}")
        if value not in schemas:
            raise ValueError(
                f"{part}.{name}={value} is unknown; choose one of {', '.join(schemas)}"
            )
        chosen[part] = schemas[value]()
    return product.config(**chosen)


def _refuse_unread(config: RunConfig, refused: dict[str, Any]) -> None:
    """Refuse keys that a run does not read.

    Raises:
        ValueError: names the first one.
    """
    check_readers(config.trainer.name, (f"{name}={value}" for name, value in refused.items()))
    for name in refused:
        part = name.partition(".")[0]
        owners = [
            f"{part}={member}"
            for member, kind in members()[part].items()
            if name in {entry.name for entry in keys.entries(kind(), f"{part}.")}
        ]
        raise ValueError(f"{name} is a key of {listed(owners)} alone")


def _flatten(values: dict[str, Any], known: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Name the keys of nested mappings in full; a known key whose value is a mapping stays whole."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_part = (
            isinstance(value, dict)
            and name not in known
            and (value or any(key.startswith(f"{name}.") for key in known))
        )
        found |= _flatten(value, known, f"{name}.") if is_part else {name: value}
    return found


def _merge(usual: RunConfig, values: dict[str, Any]) -> RunConfig:
    """Give a configuration other values, of the types of its keys.

    Args:
        values: those that are not the usual ones: it takes .2 ms for each, changed or not.

    Raises:
        OmegaConfBaseException: a key is unknown, or its value of the wrong type.
        ValueError: a key has no value.
    """
    merged = OmegaConf.structured(usual)
    for name, value in values.items():
        OmegaConf.update(merged, name, value)
    try:
        return cast(RunConfig, OmegaConf.to_object(merged))
    except MissingMandatoryValue:
        missing = ", ".join(sorted(OmegaConf.missing_keys(merged)))
        raise ValueError(f"no value for {missing}: give it on the command line") from None


def load(path: Path) -> RunConfig:
    """Read the config.yaml of a run, which :func:`pipeline.keys.to_yaml` wrote.

    Raises:
        ValueError: there is no such file, or it is not a configuration.
    """
    if not files.is_there(path):
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    return parse(files.read_text(path), path)


def _from_start(cfg: DictConfig, text: str) -> None:
    """Look for the data of a run in the folder in which it was started, if all are there and some are not here.

    Args:
        text: of config.yaml; see :func:`pipeline.config.write_config`.
    """
    started = re.search(r"^# started in (/.*)$", text, re.MULTILINE)
    if started is None or (start := Path(started[1])) == Path.cwd():
        return
    given = {
        name: value
        for name in PATHS
        if isinstance(value := OmegaConf.select(cfg, name), str) and value
    }
    if "data.folder" in given:  # to which the others are relative
        given = {"data.folder": given["data.folder"]}
    given = {name: value for name, value in given.items() if not Path(value).is_absolute()}
    if _are_there(Path.cwd(), given.values()) or not _are_there(start, given.values()):
        return
    for name, value in given.items():
        OmegaConf.update(cfg, name, str(start / value))
        log.info("%s=%s is %s, since the run was started there", name, value, start / value)


def _are_there(folder: Path, paths: Iterable[str]) -> bool:
    """Tell whether all paths, which may be patterns, name something in a folder."""
    return all((folder / path).exists() or any(glob.iglob(str(folder / path))) for path in paths)


def parse(text: str, origin: Path) -> RunConfig:
    """Read what :func:`pipeline.keys.to_yaml` wrote.

    Args:
        origin: the file that it is from, for messages.

    Raises:
        ValueError: it is not a configuration.
    """
    try:
        limits.check_yaml(text, origin.name)
        cfg = OmegaConf.create(text)
        if not isinstance(cfg, DictConfig) or not cfg:
            raise ValueError("it holds no keys")
        _refuse_interpolations(OmegaConf.to_container(cfg))
        _from_start(cfg, text)
        return to_object(cfg, is_saved=True)
    except DamagedFile:
        raise
    except (
        yaml.YAMLError,
        OmegaConfBaseException,
        ValueError,
        RecursionError,
        AssertionError,
    ) as error:
        reason = one_line(error) or "it holds no keys"  # OmegaConf asserts that without a word
        raise ValueError(f"{origin} is not the configuration of a run: {reason}") from error


def _refuse_interpolations(value: object, name: str = "") -> None:
    """Refuse ${...}, which could read the environment of whoever opens the file. Runs are saved without it.

    Raises:
        ValueError: names the key.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_interpolations(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for item in value:
            _refuse_interpolations(item, name)
    elif isinstance(value, str) and "${" in value:
        raise ValueError(
            f"{name}={value} is an interpolation, and interpolations in a saved run are not resolved. "
            "Write its value instead"
        )


def to_options(cfg: DictConfig, config: RunConfig, command: str) -> Any:
    """Turn the composed configuration of `evaluate`, `predict` or `explain` into the dataclass of a run's product.

    Args:
        config: of the run.
        command: one of the three.

    Raises:
        ValueError: a key is of the wrong type, not allowed, or read for other runs only; the message names it.
    """
    product = config.trainer.name
    kind = ExplainConfig if command == "explain" else getattr(keys_of(product), command)
    own, usual = (
        {entry.name: entry.value for entry in keys.entries(schema())}
        for schema in (kind, ExplainConfig if command == "explain" else AnyEvaluation)
    )
    given = _flatten(cast(dict[str, Any], OmegaConf.to_container(cfg)), usual)
    for name in (name for name in usual if name not in own):
        if (value := given.pop(name)) != usual[name]:
            owners = [
                f"trainer={other}"
                for other, known in PRODUCTS.items()
                if name in {entry.name for entry in keys.entries(known.predict())}
            ]
            if f"trainer={product}" in owners:
                raise ValueError(
                    f"{name}={value} is read by {command_of('predict')} only. Leave it out"
                )
            raise ValueError(
                f"{name}={value} is read for runs of {listed(owners)} only; {given['run']} "
                f"has trainer={product}. Leave it out"
            )
    options = OmegaConf.structured(kind)
    for name, value in given.items():
        if value != usual[name]:  # whose usual value may be that of another product
            OmegaConf.update(options, name, value)
    asked = cast(AskConfig, OmegaConf.to_object(options))
    check_options(asked)
    return keys.expand_paths(asked)


def check_options(asked: OpenConfig) -> None:
    """Refuse values of keys that are not allowed, of a command that asks a run; a ValueError names the first one."""
    keys.check(asked)
    check_device(asked.device)


def named_keys(
    options: OpenConfig, given: Mapping[str, object], taken: Collection[str]
) -> dict[str, object]:
    """Return keys of `evaluate` or `predict` that Python was given, by their full names.

    Args:
        options: of the run.
        given: keys and values; a key that no other ends with may be named by its end. Tables stay as they are.
        taken: the keys that are keys there too, in addition to those of other data.

    Raises:
        ValueError: there is no such key, or it takes no such value.
    """
    from parallel_epochs.pipeline.data.objects import is_table  # imports torch
    from parallel_epochs.pipeline.run.read_back import shown

    names = [entry.name for entry in keys.entries(options)]
    known = [name for name in names if name in taken or name.startswith("data.")]
    config, found = OmegaConf.structured(options), {}
    for name, value in given.items():
        full = [key for key in (name, f"data.{name}") if key in known][:1] or [
            key for key in known if key.rpartition(".")[2] == name
        ]
        if len(full) != 1:
            raise ValueError(f"{name} is unknown; choose one of {', '.join(full or known)}")
        if is_table(value) and not full[0].startswith("data."):
            raise ValueError(f"{name} takes no table")
        if not is_table(value):
            try:
                OmegaConf.update(config, full[0], str(value) if isinstance(value, Path) else value)
            except (OmegaConfBaseException, ValueError) as error:
                raise ValueError(
                    f"{name}={shown(value)}: {arguments.explain(error) or one_line(error)}"
                ) from None
        found[full[0]] = value
    return found
