"""What the judge compares with: libraries and compilers, each bound to the same buffers; cuBLASLt's own autotuning."""
