"""A run folder: spool, Parquet files, manifest; written once, read by everything after it."""
