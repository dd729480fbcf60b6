"""Is it right and how fast is it: operands, checks, stopwatch, baselines, and the process that runs them apart."""
