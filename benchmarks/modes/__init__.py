"""W15: a bounded job in BATCH beside the same job in STREAMING beside the query in Spark SQL."""
