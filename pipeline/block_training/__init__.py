"""Node embeddings and layouts share a trainer of tables, block by block, and the files of vectors."""
