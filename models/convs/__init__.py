"""Layers with the arguments and state_dict of PyG's, which aggregate messages without a tensor of edges x channels."""
