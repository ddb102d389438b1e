"""Pipelines as files: a stream, decoded, through SQL, into a sink (docs/SPARK.md)."""
