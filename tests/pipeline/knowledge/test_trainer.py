"""Vectors of knowledge graphs: what is learned, resumed and shared out to ranks."""

import contextlib

import pytest
import torch

from parallel_epochs.models.embedding.triples import MODELS, TripleTables, first_rows
from parallel_epochs.pipeline import config as effects
from parallel_epochs.pipeline.data.cache import read
from parallel_epochs.pipeline.data.config import MathConfig
from parallel_epochs.pipeline.knowledge import (
    build as build_knowledge,
    predictions,
    steps as triple_steps,
)
from parallel_epochs.pipeline.knowledge.steps import NegativeSteps, OneVsAllSteps, Penalty
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.ranks import Ranks
from tests.helpers import building as build
from tests.helpers.files import SHARED, needs_shared, write_triples
from tests.helpers.running import ROOT, finish, summary_of, train

TOY = [
    "trainer=knowledge",
    "data=math",
    "data.num_entities=60",
    "data.num_operands=6",
    "data.num_train=1400",
    "data.num_valid=150",
    "data.num_test=150",
    "trainer.dim=40",
    "trainer.batch_size=200",
    "trainer.num_negatives=30",
    "train.epochs=4",
    "train.eval_every=1",
]
NEGATIVES = ["trainer.loss=negatives", "trainer.optimizer=adam", "train.lr=0.02"]
ADAGRAD = ["trainer.loss=negatives", "trainer.optimizer=adagrad", "trainer.l3=0.001"]
ALL = ["trainer.loss=one_vs_all", "trainer.n3=0.1"]
SGD = [
    "trainer.loss=negatives",
    "trainer.optimizer=sgd",
    "train.lr=50",
    "trainer.init_scale=0.1",
    "trainer.relation_lr=0.5",
]


def tables_of(data, name, *, reciprocal=False, dim=8):
    model = MODELS[name]
    rows = first_rows(
        model,
        data.num_nodes,
        data.num_relations * (1 + reciprocal),
        dim,
        margin=2.0,
        scale=0.5,
        rng=torch.Generator().manual_seed(0),
    )
    return TripleTables(model, *(part.double() for part in rows), reciprocal=reciprocal)


def small():
    return read(
        MathConfig(num_entities=30, num_operands=2, num_train=130, num_valid=10, num_test=10)
    )


def steps_of(data, kind, penalty=Penalty()):
    if kind == "all":
        return OneVsAllSteps(
            data.triples[:130],
            data.num_relations,
            batch_size=50,
            penalty=penalty,
            seed=3,
        )
    return NegativeSteps(
        data.triples[:130],
        data.num_nodes,
        batch_size=50,
        chunk_size=8,
        num_negatives=6,
        margin=2.0,
        temperature=1.0,
        penalty=penalty,
        seed=3,
    )


def gradients(tables, steps, ranks, step):
    tables.zero_grad(set_to_none=True)
    loss, count = steps.backward(tables, steps.order(2), 2, step, ranks)
    return (
        loss,
        count,
        [
            torch.zeros_like(table) if table.grad is None else table.grad.to_dense()
            for table in tables.parameters()
        ],
    )


@pytest.mark.parametrize(
    "kind, name",
    [
        ("all", "complex"),
        ("all", "simple"),
        ("all", "quate"),
        ("drawn", "rotate"),
        ("drawn", "transe"),
        ("drawn", "quate"),
    ],
)
@pytest.mark.parametrize("num_ranks", [2, 9])
def test_the_parts_of_the_ranks_are_the_whole_step(kind, name, num_ranks):
    data = small()
    penalty = Penalty(n3=0.1, l3=0.2) if not MODELS[name].is_distance else Penalty()
    tables, steps = tables_of(data, name, reciprocal=kind == "all"), steps_of(data, kind, penalty)
    for step in range(steps.num_steps):
        whole = gradients(tables, steps, Ranks(), step)
        parts = [
            gradients(tables, steps, Ranks(rank, num_ranks), step) for rank in range(num_ranks)
        ]
        assert sum(part[0] for part in parts) == pytest.approx(whole[0])
        assert sum(part[1] for part in parts) == whole[1]
        for place, grad in enumerate(whole[2]):
            assert bool(grad.any())
            torch.testing.assert_close(sum(part[2][place] for part in parts), grad)


@pytest.mark.parametrize("kind", ["all", "drawn"])
def test_a_round_sees_every_triple_once_in_a_new_order(kind, monkeypatch):
    data = small()
    steps, tables = steps_of(data, kind), tables_of(data, "complex", reciprocal=kind == "all")
    counts = [
        steps.backward(tables, steps.order(0), 0, step, Ranks())[1]
        for step in range(steps.num_steps)
    ]
    assert sum(counts) == (260 if kind == "all" else 130)
    first, second = steps.order(0), steps.order(1)
    assert not torch.equal(first, second) and torch.equal(first.sort().values, second.sort().values)
    assert torch.equal(first, steps_of(data, kind).order(0))


def test_the_loss_of_a_step_of_negatives_is_that_of_its_triples_one_by_one():
    data, model = small(), MODELS["rotate"]
    tables, steps = tables_of(data, "rotate"), steps_of(data, "drawn")
    drawn = triple_steps.stream("negatives", 3, 2, 1).integers(30, size=(7, 2, 6))
    batch = data.triples[:130][steps.order(2)[50:100]]
    total = torch.zeros((), dtype=torch.float64)
    for place, (h, r, t) in enumerate(batch.tolist()):
        head, tail, relation = tables.entities[h], tables.entities[t], tables.relations[r]
        for side in (0, 1):
            others = [tables.entities[int(number)] for number in drawn[place // 8, side]]
            scores = torch.stack(
                [
                    model.score(head, relation, other)
                    if side
                    else model.score(other, relation, tail)
                    for other in others
                ]
            )
            apart = -(
                scores.softmax(0).detach() * torch.nn.functional.logsigmoid(-2 - scores)
            ).sum()
            near = -torch.nn.functional.logsigmoid(2 + model.score(head, relation, tail))
            total = total + (apart + near) / 4
    expected = torch.autograd.grad(total / 50, list(tables.parameters()))
    loss, count, found = gradients(tables, steps, Ranks(), 1)
    assert count == 50 and loss == pytest.approx(total.item())
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)


def test_the_loss_of_one_vs_all_is_that_of_its_answers_one_by_one():
    data, model = small(), MODELS["complex"]
    tables, steps = (
        tables_of(data, "complex", reciprocal=True),
        steps_of(data, "all", Penalty(n3=0.3)),
    )
    total = torch.zeros((), dtype=torch.float64)
    train = data.triples[:130]
    both = torch.cat(
        [train, torch.stack([train[:, 2], train[:, 1] + data.num_relations, train[:, 0]], 1)]
    )
    for h, r, t in both.tolist():
        rows = tables.entities[h], tables.relations[r], tables.entities[t]
        scores = model.score_tails(rows[0][None], rows[1][None], tables.entities)[0]
        total = total - scores.log_softmax(0)[t]
        for row in rows:
            total = total + 0.3 * (row[:4] ** 2 + row[4:] ** 2).pow(1.5).sum()
    found = [gradients(tables, steps, Ranks(), step) for step in range(steps.num_steps)]
    assert sum(part[0] for part in found) == pytest.approx(total.item())
    expected = torch.autograd.grad(total / (260 / steps.num_steps), list(tables.parameters()))
    for place, grad in enumerate(expected):
        torch.testing.assert_close(sum(part[2][place] for part in found), grad)


# Chance is .08: a filtered rank among 60. Each was measured above the second number with room to spare.
def test_arithmetic_is_learned(configure, tmp_path):
    summary = train(
        configure(*TOY, *ALL, "train.epochs=20", "train.eval_every=20"), tmp_path / "run"
    )
    assert summary["test"] > 0.5 and summary["metric"] == "mrr"
    scores = summary["scores"]
    assert scores["hits@1"] <= summary["test"] <= scores["hits@10"] <= 1 <= scores["mr"] < 20
    assert summary["test"] == pytest.approx((scores["mrr@heads"] + scores["mrr@tails"]) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [NEGATIVES, ADAGRAD, ALL, SGD],
    ids=["sparse_adam", "sparse_adagrad", "adagrad", "sgd"],
)
def test_two_ranks_train_what_one_process_trains(overrides, configure, tmp_path):
    more = [*TOY, *overrides, "train.epochs=2"]
    one = train(configure(*more), tmp_path / "one")
    code, output = finish([*more, "parallel.num_ranks=2"], tmp_path / "two", tmp_path / "cache")
    assert code == 0, output
    two = summary_of(tmp_path / "two")
    assert two["num_ranks"] == 2 and two["data_epochs"] == one["data_epochs"] == 2
    assert two["test"] == pytest.approx(one["test"], abs=0.005)
    ours, theirs = (
        checkpoint.load(tmp_path / name / "checkpoints" / "last.pt")["tables"]
        for name in ("one", "two")
    )
    for name, table in ours.items():
        torch.testing.assert_close(theirs[name], table, atol=2e-3, rtol=1e-3)


def test_a_loss_that_is_no_number_ends_the_run_before_the_tables_move(
    configure, tmp_path, monkeypatch
):
    config = configure(*TOY, *ALL)
    backward, tables_of_last = OneVsAllSteps.backward, []

    def broken(self, tables, order, round_, step, ranks):
        loss, count = backward(self, tables, order, round_, step, ranks)
        if step == 2:
            tables_of_last[:] = [tables, tables.entities.detach().clone()]
            tables.entities.grad[0, 0] = float("nan")
        return loss, count

    monkeypatch.setattr(OneVsAllSteps, "backward", broken)
    with pytest.raises(
        FloatingPointError, match=r"in epoch 1, step 3; the tables have not moved. Try a lower"
    ):
        train(config, tmp_path / "run")
    assert torch.equal(*(getattr(table, "entities", table) for table in tables_of_last))


def test_the_learning_rate_falls(configure, tmp_path):
    config = configure(*TOY, *ALL, "trainer.last_lr=0.5")
    data = build.open_graph(config).data
    with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
        rates = []
        while trainer.progress.round < trainer.num_rounds:
            for _ in trainer.steps():
                rates.append(trainer.tables.optimizer.param_groups[0]["lr"])
            scores = trainer.evaluate()
        last = trainer.test()
    assert rates[0] == 0.1 and rates[len(rates) // 2] == pytest.approx(0.075)
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0.05
    assert set(scores) == {
        "train",
        "valid",
        "valid_mr",
        "valid_hits@1",
        "valid_hits@3",
        "valid_hits@10",
    }
    assert {"test", "mr", "hits@1"} <= set(last)


def test_the_test_is_ranked_with_the_best_checkpoint(configure, tmp_path):
    config = configure(*TOY, *ALL)
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, torch.device("cpu"))
    ) as trainer:
        last = {name: table.clone() for name, table in trainer.weights().items()}
        trainer.load_weights({name: table.flip(0) for name, table in last.items()})
        expected = trainer.test()
        (tmp_path / "checkpoints").mkdir()
        checkpoint.save(
            tmp_path / "checkpoints" / "best.pt", {"model": trainer.weights(), "epoch": 3}
        )
        trainer.load_weights(last)
        assert trainer.test() != expected
        found = predictions.finish(None, trainer, tmp_path)
    assert {"test": found["test"], **found["scores"]} == expected


@pytest.mark.parametrize("loss", ["negatives", "one_vs_all"])
@pytest.mark.parametrize("fraction", [0.25, 1])
def test_sgd_moves_by_the_gradient_and_relations_by_a_fraction_of_it(
    loss, fraction, configure, monkeypatch
):
    config = configure(
        *TOY,
        f"trainer.loss={loss}",
        "trainer.optimizer=sgd",
        f"trainer.relation_lr={fraction}",
        "train.lr=3",
        "trainer.init_scale=0.3",
    )
    kind, grads = OneVsAllSteps if loss == "one_vs_all" else NegativeSteps, []
    backward = kind.backward

    def keeping(self, tables, *args):
        result = backward(self, tables, *args)
        grads.append([table.grad.to_dense().clone() for table in tables.parameters()])
        return result

    monkeypatch.setattr(kind, "backward", keeping)
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, torch.device("cpu"))
    ) as trainer:
        before = [table.clone() for table in trainer.weights().values()]
        next(trainer.steps())
        for table, old, grad, lr in zip(
            trainer.weights().values(), before, grads[0], (3, 3 * fraction), strict=True
        ):
            assert bool(grad.any())
            torch.testing.assert_close(table, old - lr * grad)


@pytest.mark.parametrize(
    "typed, loss, optimizer, lr",
    [
        ("", "one_vs_all", "adagrad", 0.1),
        ("trainer.model=quate", "one_vs_all", "adagrad", 0.1),
        ("trainer.model=rotate", "negatives", "adam", 0.001),
        ("trainer.model=transe", "negatives", "adam", 0.001),
        ("trainer.model=rotate trainer.optimizer=adagrad", "negatives", "adagrad", 0.1),
        ("trainer.model=complex trainer.loss=negatives train.lr=0.3", "negatives", "adagrad", 0.3),
    ],
)
def test_loss_optimizer_and_learning_rate_follow_from_the_model(
    typed, loss, optimizer, lr, configure
):
    config = configure("trainer=knowledge", "data=math", *typed.split())
    build.check(config)
    assert (config.trainer.loss, config.trainer.optimizer, config.train.lr) == (loss, optimizer, lr)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["trainer.dim=41"],
            "trainer.dim=41 must be a multiple of 2 for trainer.model=complex.* set it to 42",
        ),
        (
            ["trainer.model=quate", "trainer.dim=42"],
            "trainer.dim=42 must be a multiple of 4.* set it to 44",
        ),
        (
            ["trainer.model=rotate", "trainer.loss=one_vs_all"],
            "trainer.loss=one_vs_all needs .*trainer.model=rotate.* Set trainer.loss=negatives",
        ),
        (
            ["trainer.model=transe", "trainer.loss=negatives", "trainer.n3=0.1"],
            "trainer.n3=0.1 needs .*=transe",
        ),
        (["trainer.dim=900000000"], "trainer.dim must be less than"),
        (
            ["data.num_train=10000"],
            "data.num_train, data.num_valid and data.num_test ask for 10,300 triples",
        ),
        (
            ["data.components=largest"],
            "data.components=largest: trainer=knowledge trains on all components",
        ),
    ],
)
def test_impossible_options_are_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        config = configure(*TOY, *overrides)
        config.data.check()
        build.check(config)


@pytest.mark.parametrize(
    "overrides, idle",
    [
        (
            [
                "trainer.margin=3",
                "trainer.num_negatives=7",
                "trainer.temperature=2",
            ],
            [
                "trainer.num_negatives=7 with trainer.loss=one_vs_all",
                "trainer.temperature=2.0 with trainer.loss=one_vs_all",
                "trainer.margin=3.0 with trainer.model=complex",
            ],
        ),
        (
            [
                "trainer.loss=negatives",
                "trainer.model=rotate",
                "trainer.init_scale=1",
                "trainer.margin=3",
            ],
            ["trainer.init_scale=1.0 with trainer.model=rotate"],
        ),
        (["trainer.n3=0.1", "trainer.batch_size=7", "trainer.dim=8"], []),
    ],
)
def test_keys_that_do_nothing_are_named(overrides, idle, configure):
    said = effects.explain_idle_keys(configure("trainer=knowledge", "data=math", *overrides))
    assert sorted((said or "").removeprefix("without effect: ").split(", ")) == (
        sorted(idle) or [""]
    )


def test_other_trainers_do_not_take_triples(configure):
    with pytest.raises(
        ValueError, match=r"trainer=gnn cannot train on data=math, which holds triples"
    ):
        configure("data=math")
    with pytest.raises(
        ValueError,
        match=r"trainer=knowledge cannot train on data=digits, which holds a graph. Choose "
        r"one of data=triples, math",
    ):
        configure("trainer=knowledge", "data=digits")


@pytest.mark.parametrize("name", ["complex_fb15k237", "complex_math", "rotate_fb15k237"])
def test_experiments_train_at_toy_size(name, configure, tmp_path):
    folder = write_triples(tmp_path / "triples")
    data = "data.num_train=2000" if name.endswith("math") else f"data.folder={folder}"
    config = configure(f"+experiment={name}", data, "train.epochs=2", "trainer.dim=20")
    summary = train(config, tmp_path / "run")
    assert summary["experiment"] == name and 0 < summary["test"] < 1 and summary["data_epochs"] == 2


@needs_shared("fb15k237")
def test_the_experiments_of_the_real_graph_open_it(configure):
    config = configure("+experiment=rotate_fb15k237", f"data.folder={SHARED / 'fb15k237'}")
    assert (ROOT / "conf" / "experiment" / "complex_fb15k237.yaml").is_file()
    data = build.open_graph(config).data
    assert data.num_nodes == 14_541 and data.triple_ptr.diff().tolist() == [272_115, 17_535, 20_466]
    assert (
        "28 test triples with an entity that occurs in no training triple"
        in build_knowledge.describe(data)
    )
