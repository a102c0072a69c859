"""Refuses Spark settings of a job version that would break the runtime or load code.

A listed name that ends with a dot matches as a prefix; any other name matches as a whole.
"""

from collections.abc import Mapping
from typing import Final

_RESERVED_SETTINGS: Final = {
    "spark.master": "the installation chooses where Spark runs",
    "spark.app.name": "the run is named after its job",
    "spark.submit.": "the job master is the driver",
    "spark.cores.max": "it follows from the parallelism",
    "spark.speculation": "a slot must not run twice",
    "spark.speculation.": "a slot must not run twice",
    "spark.dynamicAllocation.": "slots stay as long as the run",
    "spark.stage.maxConsecutiveAttempts": "restarts begin from the last checkpoint, not from a stage",
    "spark.task.maxFailures": "restarts begin from the last checkpoint, not from a task",
    "spark.barrier.": "slots start together",
    "spark.scheduler.barrier.": "slots start together",
    "spark.python.worker.reuse": "each slot needs a fresh process",
    "spark.python.use.daemon": "slots are forked from a process of the runtime",
    "spark.python.daemon.module": "slots are forked from a process of the runtime",
    "spark.python.worker.module": "slots are forked from a process of the runtime",
    "spark.python.task.killTimeout": "siblings of a dead slot end at once",
    "spark.pyspark.": "slots have the interpreter of the installation",
    "spark.driver.host": "the installation chooses its addresses",
    "spark.driver.bindAddress": "the installation chooses its addresses",
    "spark.driver.port": "the installation chooses its addresses",
    "spark.blockManager.port": "the installation chooses its addresses",
    "spark.driver.defaultJavaOptions": "the job master sets its own options for a fast start",
    "spark.local.dir": "the installation chooses its folders",
    "spark.ui.": "the run page links Spark's UI",
    "spark.eventLog.": "WEIR_SPARK_EVENT_LOG chooses the folder",
    "spark.authenticate": "secrets belong to the installation",
    "spark.authenticate.": "secrets belong to the installation",
    "spark.network.crypto.": "secrets belong to the installation",
    "spark.ssl.": "secrets belong to the installation",
    "spark.acls.": "rights belong to the installation",
}
_CODE_SETTINGS: Final = (
    "spark.jars",
    "spark.jars.",
    "spark.files",
    "spark.archives",
    "spark.plugins",
    "spark.extraListeners",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.extraJavaOptions",
    "spark.executor.extraClassPath",
    "spark.executor.extraLibraryPath",
    "spark.executor.extraJavaOptions",
    "spark.executorEnv.",
)


def check_spark_settings(settings: Mapping[str, str]) -> None:
    """Raises ValueError if a version may not choose a setting; the error names the setting and the reason."""
    for name in settings:
        if not name.startswith("spark."):
            raise ValueError(f"`{name}` is not a Spark setting: their names begin with 'spark.'")
        reason = _refusal(name)
        if reason is not None:
            raise ValueError(f"`{name}` cannot be chosen here: {reason}")


def _refusal(name: str) -> str | None:
    if any(_matches(name, known) for known in _CODE_SETTINGS):
        return "it loads code"
    return next((reason for known, reason in _RESERVED_SETTINGS.items() if _matches(name, known)), None)


def _matches(name: str, known: str) -> bool:
    return name.startswith(known) if known.endswith(".") else name == known
