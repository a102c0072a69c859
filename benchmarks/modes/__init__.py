"""W15: a bounded job in BATCH and in STREAMING, and the same query in Spark SQL."""
