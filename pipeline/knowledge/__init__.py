"""Knowledge graph embeddings (trainer=knowledge): vectors of entities and relations, learned from triples."""
