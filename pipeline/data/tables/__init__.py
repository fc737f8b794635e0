"""Tables of nodes and edges (data=tables): DuckDB reads, joins and sorts them into a store of the prepared graph."""
