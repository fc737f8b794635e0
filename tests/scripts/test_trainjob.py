"""The job for Kubernetes cannot be run here. Its fields and its arguments are checked."""

import pytest
import yaml

from tests.helpers.composing import compose_config
from tests.helpers.running import ROOT

JOB = yaml.safe_load((ROOT / "scripts" / "trainjob.yaml").read_text())


def test_its_arguments_compose():
    trainer = JOB["spec"]["trainer"]
    assert trainer["command"] == ["torchrun", "-m", "parallel_epochs.pipeline.train"]
    config = compose_config(
        tuple(argument for argument in trainer["args"] if not argument.startswith("hydra."))
    )
    mounts = JOB["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
        "replicatedJobs"
    ][0]["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    paths = [
        config.cache_dir,
        config.data.root,
        *(a.partition("=")[2] for a in trainer["args"] if "run.dir=" in a),
    ]
    assert config.resume == "auto" and len(paths) == 3
    assert all(path.startswith(f"{mounts[0]['mountPath']}/") for path in paths)


@pytest.mark.system
def test_it_has_the_fields_of_kubeflows_schema():
    models = pytest.importorskip("kubeflow_trainer_api.models")

    def known(job: dict) -> dict:
        return models.TrainerV1alpha1TrainJob.from_dict(
            job
        ).to_dict()  # which leaves out the fields it does not know

    assert known(JOB) == JOB
    trainer = JOB["spec"]["trainer"]
    wrong = JOB | {"spec": JOB["spec"] | {"trainer": trainer | {"numNode": 2}}}
    assert known(wrong) != wrong
    with pytest.raises(ValueError, match="numNodes"):
        known(JOB | {"spec": JOB["spec"] | {"trainer": trainer | {"numNodes": "2"}}})
