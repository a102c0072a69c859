"""The Spark settings that a job version may choose: an allow-list of names, with a pattern for each value.

PySpark joins name and value by `=` on the command line of the JVM, so a name can hold any option of it. Values of the
form `${env:NAME}` are replaced from the environment of the driver. A setting is therefore allowed only if its whole
name is listed and its whole value has the form of its kind.

An administrator adds names in `WEIR_SPARK_SETTINGS`, separated by spaces, and should add no name that loads code. Names
that tell so by a word such as `class`, and settings that would break the runtime, belong into spark-defaults.conf.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SETTINGS_VARIABLE: Final = "WEIR_SPARK_SETTINGS"
REMOTE_VARIABLE: Final = "SPARK_REMOTE"  #: URL of the Spark Connect server that runs the slots; unset: see SPARK_MASTER
#: Of PySpark: the token of that server, which SPARK_REMOTE may have as ;token= too.
TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of a variable


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The form of a value. `pattern` matches the whole value."""

    name: str
    form: str  #: for errors
    pattern: re.Pattern[str]


_SIZE: Final = ValueKind("size", "a size such as 512m", re.compile(r"[0-9]{1,12}(?:[kmgtKMGT]?[bB]?)"))
_LIMIT: Final = ValueKind("limit", "a size such as 10m, or -1 for none", re.compile(rf"{_SIZE.pattern.pattern}|-1"))
_TIME: Final = ValueKind("time", "a time such as 30s", re.compile(r"[0-9]{1,12}(?:us|ms|s|m|min|h|d)?"))
_COUNT: Final = ValueKind("count", "a whole number from 1 on", re.compile(r"[1-9][0-9]{0,8}"))
_FRACTION: Final = ValueKind("fraction", "a number from 0 to 1", re.compile(r"0?\.[0-9]{1,9}|0|1(?:\.0{1,9})?"))
_SWITCH: Final = ValueKind("switch", "true or false", re.compile(r"true|false"))
#: Of a name that an administrator has added. `$` would begin a reference to the environment.
_TEXT: Final = ValueKind("text", "text without control characters and `$`", re.compile(r"[^$\x00-\x1f\x7f]{0,1000}"))
_NAME: Final = re.compile(r"spark(?:\.[A-Za-z][A-Za-z0-9_-]*)+")

VALUES: Final[Mapping[str, ValueKind]] = {
    "spark.default.parallelism": _COUNT,
    "spark.driver.memory": _SIZE,
    "spark.executor.cores": _COUNT,
    "spark.executor.heartbeatInterval": _TIME,
    "spark.executor.memory": _SIZE,
    "spark.executor.memoryOverhead": _SIZE,
    "spark.executor.pyspark.memory": _SIZE,
    "spark.locality.wait": _TIME,
    "spark.locality.wait.node": _TIME,
    "spark.locality.wait.process": _TIME,
    "spark.locality.wait.rack": _TIME,
    "spark.memory.fraction": _FRACTION,
    "spark.memory.storageFraction": _FRACTION,
    "spark.network.timeout": _TIME,
    "spark.network.timeoutInterval": _TIME,
    "spark.rpc.askTimeout": _TIME,
    "spark.rpc.lookupTimeout": _TIME,
    "spark.sql.adaptive.enabled": _SWITCH,
    "spark.sql.autoBroadcastJoinThreshold": _LIMIT,
    "spark.sql.files.maxPartitionBytes": _SIZE,
    "spark.sql.shuffle.partitions": _COUNT,
    "spark.storage.blockManagerHeartbeatTimeoutMs": _TIME,
    "spark.task.cpus": _COUNT,
}
#: Names that cannot be added, with the reason. A name that ends with a dot is a prefix.
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
    "spark.local.dir": "the installation chooses its folders",
    "spark.ui.": "the run page links Spark's UI",
    "spark.eventLog.": "WEIR_SPARK_EVENT_LOG chooses the folder",
    "spark.authenticate": "secrets belong to the installation",
    "spark.authenticate.": "secrets belong to the installation",
    "spark.network.crypto.": "secrets belong to the installation",
    "spark.ssl.": "secrets belong to the installation",
    "spark.acls.": "rights belong to the installation",
    "spark.files": "it loads code",
    "spark.metrics.": "it loads code",
    "spark.kryo.": "it loads code",
    "spark.shuffle.manager": "it loads code",
    "spark.io.compression.codec": "it loads code",
    "spark.executorEnv.": "it loads code",
    "spark.yarn.appMasterEnv.": "it loads code",
}
#: Words in the names of settings whose value is a class, a path of code, a command or options of the JVM.
_CODE: Final = re.compile(
    r"java_?options|class|library_?path|jars|archives|pyfiles|packages|plugin|listener|extensions|serializer|registrator"
    r"|script|command|provider|factory|catalog|podtemplate|featuresteps|\.impl\b",
    re.IGNORECASE,
)


_added: set[str] = set()  #: names that the administrator has added, in this process
_server: dict[str, str] = {}  #: URL and token of the Spark Connect server of the slots, in this process, by variable


def set_added_settings(names: str) -> None:
    """Sets the names that versions may choose too, at the start of the process: `WEIR_SPARK_SETTINGS`."""
    _added.clear()
    _added.update(names.split())


def set_slot_server(url: str, token: str = "") -> None:
    """Sets the Spark Connect server of the slots, at the start of the process.

    Args:
        url: `SPARK_REMOTE`, or "": an application per run.
        token: `SPARK_CONNECT_AUTHENTICATE_TOKEN`, or "".
    """
    _server.update({REMOTE_VARIABLE: url.strip(), TOKEN_VARIABLE: token})


def slot_server() -> str:
    """The URL of the Spark Connect server of the slots; "" if there is none."""
    return _server.get(REMOTE_VARIABLE, "")


def slot_server_token() -> str:
    """The token for that server; "" if there is none, or only that of the URL."""
    return _server.get(TOKEN_VARIABLE, "")


def check_spark_settings(settings: Mapping[str, str], *, for_slots: bool = False) -> None:
    """Raises ValueError if a version may not choose a setting; the error names the setting and the reason.

    `for_slots`: the application may be that of slots. On a Spark Connect server it exists before the run.
    """
    for name, value in settings.items():
        if for_slots and slot_server():
            raise ValueError(
                f"`{name}` cannot be chosen here: slots run on the Spark Connect server of {REMOTE_VARIABLE}, whose "
                "application has its own settings"
            )
        if not name.startswith("spark."):
            raise ValueError(f"`{name}` is not a Spark setting: their names begin with 'spark.'")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"`{name}` is not the name of a Spark setting: a name has letters, digits, '.', '_' and '-'"
            )
        if (reason := _refusal(name)) is not None:
            raise ValueError(f"`{name}` cannot be chosen here: {reason}")
        kind = VALUES.get(name) or (_TEXT if name in _added else None)
        if kind is None:
            allowed = ", ".join(sorted({*VALUES, *_added}))
            advice = f"Allowed are: {allowed}; an administrator adds names in {SETTINGS_VARIABLE}"
            raise ValueError(f"`{name}` cannot be chosen here. {advice}")
        if not kind.pattern.fullmatch(value):
            raise ValueError(f"`{name}` must be {kind.form}, not {value!r}")


def _refusal(name: str) -> str | None:
    if name not in VALUES and _CODE.search(name):
        return "it loads code"
    return next((reason for setting, reason in _RESERVED_SETTINGS.items() if _matches(name, setting)), None)


def _matches(name: str, setting: str) -> bool:
    return name.startswith(setting) if setting.endswith(".") else name == setting
