"""Compiled kernels: how C++ is compiled and loaded, what several kernels share, and the one of LayerNorm."""
