"""From a cubin to work on a stream: launch plans, tensor maps, the driver calls. No torch, no measuring."""
