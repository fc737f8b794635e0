"""Composes configurations as the command line does, without reading the same files of conf/ for every test.

Hydra reads and merges them once for each choice of groups, and OmegaConf looks at each dataclass, and at each instance
of one, once. Everything else stays their own: they parse the arguments, find which of them choose a group, refuse what
does not exist, and set the other keys in a copy of what the groups gave.
"""

import copy
import dataclasses
import functools
import io
import os
import pickle
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import Overrides
from omegaconf import OmegaConf

from parallel_epochs.pipeline.command import cli, schema


def compose_config(overrides: tuple[str, ...], name: str = "config") -> schema.RunConfig:
    """Compose a configuration; the same overrides are composed once.

    A run that names no simple method has none here, so that a test trains one network.
    """
    return copy.deepcopy(_compose(without_base(overrides), name, os.path.expanduser("~")))


def without_base(overrides: Sequence[str]) -> tuple[str, ...]:
    """Add task.base=none to the overrides of a run of trainer=gnn that say nothing of it."""
    named = ("task.base=", "trainer=", "resume=", "+experiment=", "task=link")
    return (
        tuple(overrides)
        if any(text.startswith(named) for text in overrides)
        else (*overrides, "task.base=none")
    )


@functools.cache
def _compose(overrides: tuple[str, ...], name: str, home: str) -> schema.RunConfig:
    with initialize_config_dir(cli.CONF, version_base="1.3"):
        return schema.to_object(compose(name, list(overrides)), overrides)


# Dataclasses that are made while the program runs, which no module holds for pickle to find.
MADE: dict[int, type] = {}


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, type) and value.__module__ == "types":
            MADE[id(value)] = value
            return id(value)


class Unpickler(pickle.Unpickler):
    def persistent_load(self, number):
        return MADE[number]


def freeze(value) -> bytes:
    """Pickle a value: many copies of it are made faster than by ``copy.deepcopy``."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def thaw(content: bytes):
    return Unpickler(io.BytesIO(content)).load()


def remember_choices() -> None:
    """Change Hydra in this process, and in those that are forked from it from now on."""
    list_defaults, merge = (
        config_loader_impl.create_defaults_list,
        ConfigLoaderImpl._compose_config_from_defaults_list,
    )
    load, structured = ConfigRepository.load_config, OmegaConf.structured
    files, lists, merged, structures = {}, {}, {}, {}

    def places(repo) -> str:
        return repr([(source.scheme(), source.path) for source in repo.get_sources()])

    def load_once(self, config_path):
        key = places(self), config_path
        if key not in files:
            files[key] = freeze(load(self, config_path))
        return thaw(files[key])

    def list_once(repo, config_name, overrides_list, **options):
        others = Overrides(repo, overrides_list).config_overrides
        choices = [
            override
            for override in overrides_list
            if not any(override is other for other in others)
        ]
        key = places(repo), config_name, repr(options), *(choice.input_line for choice in choices)
        if key not in lists:
            lists[key] = list_defaults(repo, config_name, choices, **options)
        return dataclasses.replace(lists[key], config_overrides=others)

    def merge_once(self, defaults, repo):
        if id(defaults) not in merged:
            # As long as the list is kept, so is its id.
            merged[id(defaults)] = defaults, freeze(merge(self, defaults, repo))
        return thaw(merged[id(defaults)][1])

    def share_sources(self, delegate):
        # Hydra copies all that they hold. It may change which they are, but no source.
        self.delegate, self.cache = copy.copy(delegate), {}

    def structure_once(schema, *args, **options):
        kind = schema if isinstance(schema, type) else type(schema)
        if args or options or not kind.__module__.startswith("parallel_epochs."):
            return structured(schema, *args, **options)
        key = kind, "" if schema is kind else repr(schema)
        if key not in structures:
            structures[key] = freeze(structured(schema))
        return thaw(structures[key])

    OmegaConf.structured = staticmethod(structure_once)
    config_loader_impl.create_defaults_list = list_once
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_once
    ConfigRepository.load_config = load_once
    CachingConfigRepository.__init__ = share_sources
