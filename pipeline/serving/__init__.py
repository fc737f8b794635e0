"""A trained model behind HTTP: known rows from a table, new rows from their neighbourhood, and limits for clients."""
