"""Sources in, cubins out: toolchain, cache, compiler and the pool that runs them on all cores."""
