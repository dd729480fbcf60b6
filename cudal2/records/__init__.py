"""What was measured, on disk and in memory: shards while recording, Parquet to publish, arrays to replay."""
