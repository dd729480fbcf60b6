"""Server mode: one native client, the same arrivals for every contestant, host latency of each request."""
