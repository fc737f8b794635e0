"""Tables of vectors and the kernels that train them, each beside a plain reference."""
