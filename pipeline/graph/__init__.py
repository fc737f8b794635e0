"""Edges, their structure, connected components, induced subgraphs and partitions."""
