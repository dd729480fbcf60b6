"""Memory, race and barrier faults of our own kernels: compute-sanitizer over one launch after the other."""
