"""Hardware counters: Nsight Compute over one launch of each contestant."""
