"""Keys of earlier versions in the config.yaml of a run."""

import json
import re

import pytest

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import gone, schema


def test_no_gone_key_is_known():
    assert not gone.KEYS.keys() & schema.all_keys()


@pytest.mark.parametrize("name", gone.KEYS)
def test_a_saved_run_may_hold_the_value_that_is_fixed_now(name, configure, tmp_path):
    config, path = configure(), tmp_path / "config.yaml"
    part, _, last = name.rpartition(".")
    for value, opens in ((next(iter(gone.KEYS[name]), 7), True), ("other", not gone.KEYS[name])):
        text = keys.to_yaml(config)
        shown = json.dumps(value)
        line = f"{part}:\n  {last}: {shown}" if part else f"{last}: {shown}"
        assert text.count(f"\n{part}:\n") <= 1
        text = (
            text.replace(f"\n{part}:\n", f"\n{line}\n")
            if f"\n{part}:\n" in text
            else f"{text}{line}\n"
        )
        if opens:
            assert schema.parse(text, path) == config
        else:
            with pytest.raises(ValueError, match=re.escape(f"{name}=other") + ".*version 0.6.0"):
                schema.parse(text, path)


def test_a_saved_run_whose_softmax_did_not_learn_t_is_refused(configure, tmp_path):
    text = keys.to_yaml(configure()).replace("\nmodel:\n", "\nmodel:\n  learn_t: false\n")
    with pytest.raises(ValueError, match="model.learn_t=False.*version 0.6.0"):
        schema.parse(text, tmp_path)


def test_a_saved_run_had_seconds_by_its_epochs(configure, tmp_path):
    text = re.sub("base_seconds: .*", "base_seconds: auto", keys.to_yaml(configure()))
    assert "auto" in text and schema.parse(text, tmp_path) == configure()


@pytest.mark.parametrize("value, opens", [("auto", True), (1, True), (4, False)])
def test_a_saved_knowledge_graph_had_parts(value, opens, configure, tmp_path):
    config, path = configure("trainer=knowledge", "data=math"), tmp_path / "config.yaml"
    text = keys.to_yaml(config).replace("\ntrainer:\n", f"\ntrainer:\n  num_parts: {value}\n")
    if opens:
        assert schema.parse(text, path) == config
    else:
        with pytest.raises(ValueError, match="trainer.num_parts=4 .*version 0.6.0"):
            schema.parse(text, path)
