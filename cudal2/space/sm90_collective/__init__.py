"""Kernels that CUTLASS's CollectiveBuilder puts together."""
