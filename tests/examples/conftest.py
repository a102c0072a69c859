"""The Spark session of the tests of `spark_jobs`."""

from tests.spark_jobs.conftest import spark

__all__ = ["spark"]
