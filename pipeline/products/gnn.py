"""Graph networks (trainer=gnn) predict labels of nodes, graphs or links."""

from parallel_epochs.pipeline.gnn import build, memory
from parallel_epochs.pipeline.gnn.base import answers, candidates, label_scores
from parallel_epochs.pipeline.gnn.explain.command import explain
from parallel_epochs.pipeline.gnn.predict import command, export, new_data
from parallel_epochs.pipeline.gnn.predict.warm import Warm
from parallel_epochs.pipeline.products.base import Product

PRODUCT: Product = Product(
    check=build.check,
    open_data=build.open_data,
    build=build.build_trainer,
    prepare=build.prepare,
    memory_of=memory.describe,
    report=build.report,
    write_start=new_data.write_start,
    write_best=label_scores.write_best,
    finish=answers.finish,
    train_parts=candidates.train_parts,
    evaluate=command.evaluate,
    predict=export.predict,
    open_warm=Warm,
    explain=explain,
    export=export.export,
    learns_vectors=False,
    baselines=lambda part: (part.task.metric, part.kind.baselines(part.data, part.task)),
)
