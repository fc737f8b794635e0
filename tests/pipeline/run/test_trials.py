"""Settings are compared by short trainings, once each, also when a run was killed in between."""

import logging

import pytest

from parallel_epochs.pipeline.run import trials
from parallel_epochs.pipeline.run.trials import Trials

VALID = {"a": 0.5, "b": 0.9, "c": 0.7, "d": 0.6}


def recorder(valid=VALID, metric="acc", stops_at=None):
    calls = []

    def train(name, epochs):
        if len(calls) == stops_at:
            raise KeyboardInterrupt
        calls.append((name, epochs))
        if valid[name] == "diverges":
            raise FloatingPointError("the loss is not finite")
        return {"best_valid": valid[name], "metric": metric}

    return train, calls


def test_the_better_half_goes_on_until_one_is_left(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    train, calls = recorder()
    assert Trials(tmp_path, train).choose(list("abcd"), first=1, most=8) == "b"
    assert calls[:4] == [(name, 1) for name in "abcd"] and calls[4:8] == [
        (name, 8) for name in "abcd"
    ]
    assert len(calls) == 8, "with as many epochs, the halves are told by what is known"
    assert (
        caplog.text.index("  b ") < caplog.text.index("  a ")
        and "setting b is trained" in caplog.text
    )


@pytest.fixture
def clock(monkeypatch):
    """Each trial takes two seconds."""
    ticks = iter(range(0, 10_000, 2))
    monkeypatch.setattr(trials.time, "perf_counter", lambda: float(next(ticks)))


def test_the_time_is_shared_out_to_the_rounds(tmp_path, clock):
    train, calls = recorder()
    assert Trials(tmp_path, train).choose(list("abcd"), first=1, most=100, seconds=40) == "b"
    assert calls == [
        *((name, 1) for name in "abcd"),
        *((name, 3) for name in "abcd"),
        *((name, 12) for name in "bc"),
    ]


def test_settings_for_which_there_is_no_time_are_left_out(tmp_path, clock, caplog):
    caplog.set_level(logging.INFO)
    train, calls = recorder()
    assert Trials(tmp_path, train).choose(list("abcd"), first=1, most=8, seconds=1) == "a"
    assert (
        calls == [("a", 1)]
        and "setting d is left out: 1 seconds are over (tune.seconds)" in caplog.text
    )


@pytest.mark.parametrize(
    "valid, metric, best",
    [
        ({"a": 1.0, "b": 2.0}, "rmse", "a"),
        ({"a": 1.0, "b": 2.0}, "acc", "b"),
        ({"a": 1.0, "b": 1.0}, "acc", "a"),
        ({"a": "diverges", "b": 0.1}, "acc", "b"),
        ({"a": None, "b": 0.1}, "acc", "b"),
        ({"a": float("nan"), "b": 0.1}, "acc", "b"),
        ({"a": None, "b": None}, "acc", "a"),
    ],
)
def test_the_best_validation_metric_wins(valid, metric, best, tmp_path):
    assert Trials(tmp_path, recorder(valid, metric)[0]).choose(["a", "b"], first=1, most=2) == best


@pytest.mark.parametrize("number", range(8))
def test_what_has_ended_is_not_trained_again_after_a_kill(number, tmp_path):
    train, before = recorder(stops_at=number)
    with pytest.raises(KeyboardInterrupt):
        Trials(tmp_path, train).choose(list("abcd"), first=1, most=8)
    again, after = recorder()
    assert Trials(tmp_path, again).choose(list("abcd"), first=1, most=8) == "b"
    assert len(before) == number and not set(before) & set(after) and len(before) + len(after) == 8


@pytest.mark.parametrize("number", range(10))
def test_a_kill_changes_no_decision_that_the_time_makes(number, tmp_path, clock):
    def choose(folder, train):
        return Trials(tmp_path / folder, train).choose(list("abcd"), first=1, most=100, seconds=40)

    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    whole, expected = recorder()
    assert choose("whole", whole) == "b" and len(expected) == 10
    train, before = recorder(stops_at=number)
    with pytest.raises(KeyboardInterrupt):
        choose("killed", train)
    again, after = recorder()
    assert choose("killed", again) == "b" and before + after == expected


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "{}",
        '{"trials": [1]}',
        '{"trials": [{"setting": 3}]}',
        '{"trials": [{"setting": "a"}]}',
    ],
)
def test_a_damaged_file_is_written_again(content, tmp_path):
    (tmp_path / trials.FILE).write_text(content)
    train, calls = recorder()
    assert Trials(tmp_path, train).choose(list("abcd"), first=1, most=1) == "b" and len(calls) == 4
