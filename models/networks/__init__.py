"""Whole models: DeeperGCN and its relatives, stacks of PyG's layers, models of typed graphs, and link predictors."""
