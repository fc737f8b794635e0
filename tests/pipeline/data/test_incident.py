"""Node features that are made of edges."""

import numpy as np
import torch

from parallel_epochs.pipeline.data.incident import incident_features


def test_moments_of_another_graph_stand_for_its_own():
    values, moments = torch.tensor([[9.0], [-7.0], [-3.0]]), torch.tensor([[3.0], [1.0]]).double()
    found = incident_features(torch.tensor([0, 2, 3]), values, "log_sum", moments)
    np.testing.assert_allclose(found.numpy(), [[np.log1p(2) - 3], [-np.log1p(3) - 3]], rtol=1e-6)
