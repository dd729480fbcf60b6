"""Kernels that are not ours: each in a process of its own that only launches, judged from outside."""
