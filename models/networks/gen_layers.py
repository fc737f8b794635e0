"""The convolution of DeeperGCN and RevGNN, from the options that they have in common."""

from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.networks.options import ModelOptions


def create_conv(options: ModelOptions, in_channels: int, out_channels: int) -> GENConv:
    """Create a convolution with these options."""
    return GENConv(
        in_channels,
        out_channels,
        options.aggr,
        t=options.t,
        learn_t=options.aggr != "softmax_sg",
        norm=options.norm,
        num_layers=options.num_mlp_layers,
        bias=True,
        kernel=options.kernel,
    )
