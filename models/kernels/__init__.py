"""Compiled kernels: the compiling and loading of C++, code that several kernels share, and the LayerNorm kernel."""
