"""Labels of whole graphs: batches, models, evaluation, ranks, resume."""

import pytest
import torch
from torch_geometric.data import Batch

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.heads import pool_graphs
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.models.networks.reversible import RevGNN
from parallel_epochs.pipeline.data.cache import load, prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.gnn.tasks.graph import GraphTask
from parallel_epochs.pipeline.graph.union import select_graphs
from parallel_epochs.pipeline.run.schedule import Schedule
from parallel_epochs.scripts.report.document import page
from parallel_epochs.scripts.report.runs import read_run
from tests.helpers import building as build, official
from tests.helpers.graph_toys import write_graphs
from tests.helpers.pyg_molecules import PyGMolecules, split_into_list
from tests.helpers.running import train

pytestmark = pytest.mark.usefixtures("importable")
SMALL = ["model.num_layers=3", "model.hidden_channels=16", "train.epochs=6", "loader.batch_size=7"]


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A folder with a small dataset in the manner of each."""
    folder = tmp_path_factory.mktemp("toys")
    return {
        name: write_graphs(folder / name, name)
        for name in ("ogbg-molhiv", "ogbg-molpcba", "ogbg-ppa")
    }


@pytest.fixture
def config_of(toys, configure):
    def compose(name: str, *overrides: str):
        return configure(
            f"+experiment={name.replace('-', '_')}", f"data.folder={toys[name]}", *SMALL, *overrides
        )

    return compose


@pytest.fixture(scope="module")
def molecules(toys):
    config = OGBGraphConfig(folder=str(toys["ogbg-molhiv"]))
    return prepare_as(config, read(config))


@pytest.mark.parametrize("conv", ["GINEConv", "ResGatedGraphConv", "GATConv", "GatedGCNConv"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_layers_of_pyg_pool_the_nodes_of_each_graph(conv, pool, molecules):
    model = PyGModel(
        9,
        16,
        2,
        2,
        edge_dim=3,
        node_tables=molecules.x_tables,
        edge_tables=molecules.edge_tables,
        pool=pool,
        conv=conv,
        norm="batch",
    ).eval()
    batch = select_graphs(molecules, torch.arange(12))
    out = model(batch.x, batch.edge_index, batch.edge_attr, batch.ptr)
    for number in range(12):
        one = select_graphs(molecules, torch.tensor([number]))
        torch.testing.assert_close(
            model(one.x, one.edge_index, one.edge_attr), out[number : number + 1]
        )
    model.pool, model.head = "none", torch.nn.Identity()
    rows = model(batch.x, batch.edge_index, batch.edge_attr)
    pooled = [
        getattr(torch, "amax" if pool == "max" else pool)(rows[first:last], 0)
        for first, last in zip(batch.ptr[:-1], batch.ptr[1:])
    ]
    torch.testing.assert_close(torch.stack(pooled), pool_graphs(rows, batch.ptr, pool))
    changed = batch.edge_attr.clone()
    changed[:, 2] = 1 - changed[:, 2]
    assert not torch.equal(model(batch.x, batch.edge_index, changed), rows), "bonds are read"


@pytest.mark.parametrize(
    "split,num_ranks", [(False, 1), (False, 3), (True, 2), (True, 3), (True, 8)]
)
def test_batches_cover_each_training_graph_once(split, num_ranks, molecules):
    loader = GraphLoader(molecules, batch_size=7, seed=3)
    wanted = molecules.train_mask.nonzero().squeeze(1).tolist()
    seen = []
    for rank in range(num_ranks):
        schedule = Schedule(
            num_epochs=num_ranks,
            num_batches=loader.num_batches,
            rank=rank,
            num_ranks=num_ranks,
            split=split,
        )
        mine = [batch.graph_id.tolist() for batch in loader.batches(0, schedule.share(0))]
        assert len(mine) <= schedule.num_steps
        seen.append(sum(mine, []))
    if split:
        assert sorted(sum(seen, [])) == wanted
    else:
        assert all(sorted(each) == wanted for each in seen)
        assert num_ranks == 1 or seen[0] != seen[1]


def test_orders_are_a_function_of_seed_round_and_draw(molecules):
    def order(seed, round_, draw):
        schedule = Schedule(num_epochs=99, num_batches=4, rank=draw, num_ranks=3)
        return (
            GraphLoader(molecules, batch_size=7, seed=seed)
            .draw(round_, schedule.share(0))
            .perm.tolist()
        )

    assert order(0, 0, 0) == order(0, 0, 0)
    assert len({tuple(order(*path)) for path in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))}) == 4


def test_a_batch_is_what_pyg_makes_of_the_same_graphs(molecules):
    graphs = split_into_list(molecules)
    chosen = torch.tensor([5, 0, 39, 17, 17, 2])
    ours, theirs = (
        select_graphs(molecules, chosen),
        Batch.from_data_list([graphs[i] for i in chosen.tolist()]),
    )
    for key in ("x", "edge_attr", "y", "ptr"):
        assert torch.equal(ours[key].to(theirs[key].dtype), theirs[key]), key
    assert (
        torch.equal(ours.edge_index.as_tensor(), theirs.edge_index)
        and ours.num_nodes == theirs.num_nodes
    )
    ours.edge_index.validate()
    (rowptr, dst), perm = ours.edge_index.get_csr()
    assert torch.equal(dst, theirs.edge_index[1][perm])
    assert torch.equal(
        rowptr.diff(), torch.bincount(theirs.edge_index[0], minlength=ours.num_nodes)
    )
    assert torch.equal(theirs.edge_index[0][perm].sort().values, theirs.edge_index[0][perm])
    assert torch.equal(molecules.x[ours.n_id], ours.x)


def build_molecules(**options) -> DeeperGCN:
    torch.manual_seed(0)
    return DeeperGCN(
        9,
        16,
        1,
        3,
        edge_dim=3,
        node_tables=[119, 5, 12, 12, 10, 6, 6, 2, 2],
        edge_tables=[5, 6, 2],
        **{"pool": "mean", "norm": "batch", "num_mlp_layers": 1, "dropout": 0.0, **options},
    )


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_a_batch_is_predicted_and_learned_as_by_pygs_layers_and_ogbs_encoders(kernel, molecules):
    graphs, chosen = split_into_list(molecules), torch.tensor([1, 2, 30, 14])
    ours, theirs = (
        select_graphs(molecules, chosen),
        Batch.from_data_list([graphs[i] for i in chosen.tolist()]),
    )
    model = build_molecules(kernel=kernel)
    other = PyGMolecules(model)
    for mode in (False, True):
        a = model.train(mode)(ours.x, ours.edge_index, ours.edge_attr, ptr=ours.ptr)
        b = other.train(mode)(theirs.x, theirs.edge_index, theirs.edge_attr, theirs.batch)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    weights = torch.randn(a.shape)
    (a * weights).sum().backward(), (b * weights).sum().backward()
    for tables, embeddings in (
        (model.node_encoder, other.atom_encoder),
        (model.edge_lins[1], other.bond_encoders[1]),
    ):
        theirs = torch.cat([embedding.weight.grad for embedding in embeddings])
        torch.testing.assert_close(tables.weight.grad, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "kind,options",
    [
        (DeeperGCN, {"virtual_node": "add"}),
        (DeeperGCN, {"virtual_node": "mean"}),
        (DeeperGCN, {}),
        (RevGNN, {}),
    ],
)
@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
def test_graphs_of_a_batch_know_nothing_of_each_other(kind, options, pool, molecules):
    torch.manual_seed(0)
    sizes = {"num_layers": 3, **options}
    model = kind(
        9,
        16,
        2,
        edge_dim=3,
        node_tables=molecules.x_tables,
        edge_tables=molecules.edge_tables,
        pool=pool,
        **sizes,
    ).eval()
    for (
        parameter
    ) in model.parameters():  # a virtual node begins at zero, where none could be told from another
        parameter.data += 0.05 * torch.randn_like(parameter)
    chosen = torch.tensor([3, 8, 21])
    together, alone = (
        select_graphs(molecules, chosen),
        [select_graphs(molecules, chosen[i : i + 1]) for i in range(3)],
    )
    out, *each = (model(b.x, b.edge_index, b.edge_attr, ptr=b.ptr) for b in (together, *alone))
    torch.testing.assert_close(out, torch.cat(each), rtol=1e-3, atol=1e-4)
    assert out.shape == (3, 2)
    torch.testing.assert_close(
        model(alone[0].x, alone[0].edge_index, alone[0].edge_attr), each[0]
    )  # one graph: no ptr


def test_a_category_outside_of_its_table_is_refused():
    tables = TableEncoder([3, 2], 4)
    assert torch.equal(tables(torch.tensor([[2, 1]])), (tables.weight[2] + tables.weight[4])[None])
    assert torch.equal(
        tables.one_hot(torch.tensor([[2, 1]])) @ tables.weight, tables(torch.tensor([[2, 1]]))
    )
    for wrong in ([[3, 0]], [[0, 2]], [[-1, 0]]):
        with pytest.raises(IndexError, match="column [01] holds the category"):
            tables(torch.tensor(wrong))


def test_pools():
    h, ptr = torch.tensor([[1.0, -2.0], [3.0, -4.0], [5.0, 6.0]]), torch.tensor([0, 2, 3])
    for pool, first in (("mean", [2.0, -3.0]), ("sum", [4.0, -6.0]), ("max", [3.0, -2.0])):
        assert pool_graphs(h, ptr, pool).tolist() == [first, [5.0, 6.0]]
    assert pool_graphs(h, ptr, "none") is h


def test_exact_evaluation_is_that_of_the_batches_of_training_in_evaluation_mode(config_of):
    config = config_of("ogbg-molpcba")
    data = load(config.data, config.cache_dir)
    task, loader = build.build_task(config, data), build.build_loader(config, data)
    torch.manual_seed(0)
    model = build.build_model(config, data, task)
    for batch in loader.batches(
        0, Schedule(1, loader.num_batches).share(0)
    ):  # running statistics of batch norms
        task.loss(model.train(), batch, torch.Generator())
    rows = build.predict_all(config, data, model=model)
    assert rows.shape == (40, 4)
    seen = 0
    for batch in loader.batches(1, Schedule(1, loader.num_batches).share(0)):
        ids, logits = task.predict(model.eval(), batch)
        torch.testing.assert_close(rows[ids], logits, rtol=1e-4, atol=1e-5)
        seen += len(ids)
    assert seen == int(data.train_mask.sum())


@pytest.mark.parametrize("name", ["ogbg-molhiv", "ogbg-molpcba", "ogbg-ppa"])
def test_scores_are_those_of_ogbs_evaluator(name, config_of):
    config = config_of(name)
    data = load(config.data, config.cache_dir)
    task = GraphTask(data)
    logits = torch.randn(40, data.out_channels, generator=torch.Generator().manual_seed(0))
    assert task.metric == {"ogbg-molhiv": "rocauc", "ogbg-molpcba": "ap", "ogbg-ppa": "acc"}[name]
    for split, found in task.scores(None, logits).items():
        mask = data[f"{split}_mask"]
        expected = official.score(task.metric, data.y[mask], logits[mask])
        assert found == pytest.approx(expected, nan_ok=True)


class Zeros(torch.nn.Module):
    """Predicts a probability of a half."""

    def forward(self, x, edge_index, edge_attr, ptr):
        return torch.zeros(len(ptr) - 1, 4)


def test_missing_labels_are_left_out_of_the_loss(config_of):
    config = config_of("ogbg-molpcba")
    data = load(config.data, config.cache_dir)
    batch = next(GraphLoader(data, batch_size=40).batches(0, Schedule(1, 1).share(0)))
    batch.target = torch.ones(len(batch.graph_id), dtype=torch.bool)
    loss, count = GraphTask(data).loss(Zeros(), batch, torch.Generator())
    known = int((~data.y[data.train_mask].isnan()).sum())
    assert int(count) == known < data.y[data.train_mask].numel()
    assert float(loss) == pytest.approx(known * 0.693147, rel=1e-4)


def test_the_report_shows_batches_and_no_partition_or_components(config_of, tmp_path):
    train(config_of("ogbg-molhiv", "train.epochs=1", "model.num_layers=1"), tmp_path / "run")
    text = page([read_run(tmp_path / "run")])
    assert (
        "24 training graphs in 4 batches of 6 to 6 graphs" in text and "Batches of graphs" in text
    )
    assert not (tmp_path / "run" / "components.json").exists()
    assert 'id="components"' not in text and "Partition" not in text.replace("Partitions", "")
