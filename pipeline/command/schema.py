"""The configuration of a run, from Hydra's composition and from config.yaml to the dataclass of its product.

Hydra composes into a schema that has every key of every product. :func:`to_object` keeps those that the run's product
reads, and refuses any other that was given.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import EvaluateConfig, RunConfig, TrainerConfig
from parallel_epochs.pipeline.data.config import DataConfig
from parallel_epochs.pipeline.gnn.config import ModelConfig
from parallel_epochs.pipeline.names import check_device
from parallel_epochs.pipeline.products import PRODUCTS, Product, product_of
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import DamagedFile, one_line

log = logging.getLogger(__name__)

# The folder of a checkout and of an installation alike.
CONF = str(Path(__file__).resolve().parents[2] / "conf")
# The parts of a configuration that hold the keys of one of several members, whichever is chosen.
OPEN_PARTS: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "trainer": TrainerConfig}
AnyRun = keys.union("AnyRun", [product.config for product in PRODUCTS.values()], OPEN_PARTS)
AnyEvaluation = keys.union("AnyEvaluation", [part for product in PRODUCTS.values()
                                        for part in (product.evaluate_keys, product.predict_keys)], {})
AnyRun.__module__ = AnyEvaluation.__module__ = __name__  # where other processes find them


def members() -> dict[str, dict[str, type]]:
    """Return the dataclasses of each part that has several members, by the members' names."""
    found: dict[str, dict[str, type]] = {"trainer": {
        name: type(product.config().trainer) for name, product in PRODUCTS.items()}}
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


def variants(product: Product) -> Iterator[RunConfig]:
    """Go through the usual configuration of a product with each member of each of its parts."""
    usual = product.config()
    yield usual
    for part, (_, schemas) in usual.members.items():
        for kind in schemas.values():
            yield dataclasses.replace(usual, **{part: kind()})


@dataclasses.dataclass(frozen=True)
class Typed:
    """The parts of a configuration that a command names.

    Attributes:
        names: keys and groups, with the keys that choose the groups' members.
        members: the parts whose member it chooses.
    """

    names: frozenset[str]
    members: tuple[str, ...]

    @classmethod
    def read(cls, arguments: Iterable[str]) -> "Typed":
        """Read the arguments of a command."""
        names = {argument.lstrip("+").partition("=")[0] for argument in arguments}
        chosen = {f"{name}.name" for name in names - {"data"}}  # data.name is another key
        return cls(frozenset(names | chosen), tuple(part for part in OPEN_PARTS if part in names))


@functools.cache
def readers() -> dict[str, list[str]]:
    """Return every key of a run, and the products that read it, as on the command line: trainer=gnn."""
    found: dict[str, list[str]] = {}
    for name, product in PRODUCTS.items():
        for key in dict.fromkeys(entry.name for config in variants(product) for entry in keys.entries(config)):
            found.setdefault(key, []).append(f"trainer={name}")
    return found


def all_keys() -> set[str]:
    """Return the names of the keys of all products, datasets and models."""
    return set(readers())


def keys_without_numbers() -> set[str]:
    """Return the keys of all products that say where things lie and how long a run trains."""
    return {entry.name for product in PRODUCTS.values() for config in variants(product)
            for entry in keys.entries(config) if not entry.meaning.changes_numbers}


def check_readers(product: str, names: Iterable[str]) -> None:
    """Refuse keys that a product does not read.

    Args:
        product: its name.
        names: of the keys that were given, each as "key" or "key=value".

    Raises:
        ValueError: names the first such key, and the products that read it.
    """
    read_by = readers()
    for name in names:
        owners = read_by.get(name.partition("=")[0], [])
        if owners and f"trainer={product}" not in owners:
            raise ValueError(f"{name} is read by {' and '.join(owners)} only; this run has trainer={product}. Leave it "
                             "out")


def owners(key: str) -> str:
    """Name the members of a part that have a key, as on the command line."""
    part = key.partition(".")[0]
    return " and ".join(f"{part}={name}" for name, kind in members()[part].items()
                        if key in {entry.name for entry in keys.entries(kind(), f"{part}.")})


def _check_unread(product: Product, unread: dict[str, Any], typed: Typed) -> list[str]:
    """Refuse keys that a run does not read, unless an experiment wrote them for a member that another has replaced.

    Args:
        unread: the keys with their values.

    Returns:
        Those that an experiment wrote.

    Raises:
        ValueError: names the first other key.
    """
    usual = _defaults()
    given = {name: value for name, value in unread.items() if value != usual[name] or name in typed.names}
    refused = [name for name in given if name in typed.names or not typed.members]
    check_readers(product.name, (f"{name}={given[name]}" for name in refused))
    for name in refused:
        raise ValueError(f"{name} is a key of {owners(name)} alone")
    return [f"{name}={value}" for name, value in given.items()]


def _check_values(config: RunConfig, usual: RunConfig, typed: Typed) -> tuple[RunConfig, list[str]]:
    """Give keys their usual value whose value an experiment chose for a member that another has replaced.

    Args:
        usual: the configuration with the usual values.

    Returns:
        The configuration, and the keys with their values of before.
    """
    odd = {name: value for name, value in keys.refused(config).items()
           if name not in typed.names and name.partition(".")[0] in typed.members}
    defaults = {entry.name: entry.value for entry in keys.entries(usual) if entry.name in odd}
    return keys.replaced(config, defaults), [f"{name}={value}" for name, value in odd.items()]


def to_object(cfg: DictConfig, arguments: Iterable[str] = (), *, is_saved: bool = False) -> RunConfig:
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
    product = product_of(OmegaConf.select(cfg, "trainer.name"))
    chosen: dict[str, Any] = {}
    for part, (name, schemas) in product.config.members.items():
        value = OmegaConf.select(cfg, f"{part}.{name}")
        if value not in schemas:
            raise ValueError(f"{part}.{name}={value} is unknown; choose one of {', '.join(schemas)}")
        chosen[part] = schemas[value]()
    usual, typed = product.config(**chosen), Typed.read(arguments)
    try:
        values = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
        read = {entry.name for entry in keys.entries(usual)}
        unread = _take_out(values, all_keys() - read)
        left_out = [] if is_saved else _check_unread(product, unread, typed)
        config = _merge(usual, values)
    except OmegaConfBaseException as error:
        # Typed overrides were checked before: only for a file may the message lack the key.
        message, key = one_line(error), error.full_key
        where = f"{key}: " if is_saved and key and f"'{key}'" not in message else ""
        raise ValueError(where + message) from None
    config, replaced = _check_values(config, usual, typed)
    if left_out or replaced:
        log.info("left out, as the experiment means them for another %s: %s", " and ".join(typed.members),
                 ", ".join([*left_out, *replaced]))
    config.check()
    return keys.expand_paths(config)


def _merge(usual: RunConfig, values: dict[str, Any]) -> RunConfig:
    """Give a configuration other values, of the types of its keys.

    Raises:
        OmegaConfBaseException: a key is unknown, or its value of the wrong type.
        ValueError: a key has no value.
    """
    merged = OmegaConf.structured(usual)
    merged.merge_with(_changed(values, dataclasses.asdict(usual)))  # it takes .2 ms for each value, changed or not
    try:
        return cast(RunConfig, OmegaConf.to_object(merged))
    except MissingMandatoryValue:
        missing = ", ".join(sorted(OmegaConf.missing_keys(merged)))
        raise ValueError(f"no value for {missing}: give it on the command line") from None


def _changed(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Leave out the values that are the usual ones, also in nested mappings."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        default = usual.get(key, ...)
        if isinstance(value, dict) and isinstance(default, dict):
            if changed := _changed(value, default):
                found[key] = changed
        elif type(value) is not type(default) or value != default:
            found[key] = value
    return found


def _take_out(values: dict[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """Remove keys from nested mappings, and the parts that have no others; returns them with their values."""
    found: dict[str, Any] = {}
    for key, value in list(values.items()):
        name = f"{prefix}{key}"
        if name in names:
            found[name] = values.pop(key)
        elif isinstance(value, dict):
            taken = _take_out(value, names, f"{name}.")
            found |= taken
            if taken and not value:
                del values[key]
    return found


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the values of all keys where they are not given; of the options of a model, those of any model."""
    found: dict[str, Any] = {}
    for product in PRODUCTS.values():
        for config in variants(product):
            for entry in keys.entries(config):
                found.setdefault(entry.name, entry.value)
    return found


def load(path: Path) -> RunConfig:
    """Read the config.yaml of a run, which :func:`pipeline.keys.to_yaml` wrote.

    Raises:
        ValueError: there is no such file, or it is not a configuration.
    """
    if not files.is_there(path):
        raise ValueError(f"{path.parent} is not a run directory: it has no {path.name}")
    return parse(files.read_text(path), path)


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
        if cfg.pop("tensorboard", False):  # the key of version 0.2.0
            cfg.tracker = {"name": "tensorboard"}
        if OmegaConf.select(cfg, "trainer.name") is None:  # before there were several products
            cfg.trainer = {"name": "gnn"}
        return to_object(cfg, is_saved=True)
    except DamagedFile:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError, AssertionError) as error:
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
        raise ValueError(f"{name}={value} is an interpolation, and interpolations in a saved run are not resolved. "
                         "Write its value instead")


def _pop(given: dict[str, Any], name: str) -> Any:
    """Take the value of a key out of nested dicts, with the dicts that it leaves empty."""
    first, _, rest = name.partition(".")
    value = _pop(given[first], rest) if rest else given.pop(first)
    if rest and not given[first]:
        del given[first]
    return value


def to_options(cfg: DictConfig, config: RunConfig, *, predicts: bool) -> EvaluateConfig:
    """Turn the composed configuration of `evaluate` or `predict` into the dataclass of a run's product.

    Args:
        config: of the run.
        predicts: whether it is that of `predict`.

    Raises:
        ValueError: a key is of the wrong type, not allowed, or read for other runs only; the message names it.
    """
    product = product_of(config.trainer.name)
    kind = product.predict_keys if predicts else product.evaluate_keys
    given = cast(dict[str, Any], OmegaConf.to_container(cfg))
    own, usual = {entry.name for entry in keys.entries(kind())}, {
        entry.name: entry.value for entry in keys.entries(AnyEvaluation())}
    for name, expected in usual.items():
        if name not in own and (value := _pop(given, name)) != expected:
            owners = [f"trainer={other.name}" for other in PRODUCTS.values()
                      if name in {entry.name for entry in keys.entries(other.predict_keys())}]
            if f"trainer={product.name}" in owners:
                raise ValueError(f"{name}={value} is read by python -m pipeline.predict only. Leave it out")
            raise ValueError(f"{name}={value} is read for runs of {' and '.join(owners)} only; {given['run']} "
                             f"has trainer={product.name}. Leave it out")
    options = cast(EvaluateConfig, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given)))
    keys.check(options)
    check_device(options.device)
    return keys.expand_paths(options)
