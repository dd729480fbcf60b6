"""The latency family: what a configuration of it implies, and which are legal."""
