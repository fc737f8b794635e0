"""Tables of vectors, and the kernels that train them. Each kernel has a plain reference."""
