"""Spark's event log, for runs and stages alike."""

from collections.abc import Mapping
from pathlib import Path


def event_log_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings by which Spark logs its UI's data in the folder that WEIR_SPARK_EVENT_LOG names. Creates the folder."""
    folder = environment.get("WEIR_SPARK_EVENT_LOG")
    if not folder:
        return {}
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # JSON lines, for people and scripts
        "spark.eventLog.dir": Path(folder).resolve().as_uri(),
    }
