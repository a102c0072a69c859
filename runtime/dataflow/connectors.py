"""Sources and sinks as a job author passes them: bound to their PySpark stage, checked, with their guarantee."""

from contextvars import ContextVar
from typing import Final, TypeVar

from runtime.core.job.graph import Guarantee
from runtime.errors import JobRejected
from runtime.operators.arguments import check_folder
from runtime.ports import BindsUid, Sink, Source, StageFolders, UsesFolders

C = TypeVar("C", Source, Sink)

#: Set while a pipeline builds its dataflow. A dataflow built elsewhere has no PySpark stages.
STAGE_FOLDERS: Final[ContextVar[StageFolders | None]] = ContextVar("stage_folders", default=None)


def prepare_connector(uid: str, connector: C) -> C:
    """The source or sink of step `uid`, bound to the folders of its PySpark stage, if it has such a stage.

    Raises:
        JobRejected: a setting or folder is invalid; the error names the field.
    """
    folders = STAGE_FOLDERS.get()
    if folders is not None and isinstance(connector, BindsUid):
        connector = connector.bind(uid, folders)
    connector.check()
    if isinstance(connector, UsesFolders):
        for name, path in connector.folders().items():
            check_folder(uid, name, path)
    return connector


def guarantee_of(uid: str, connector: Source | Sink) -> Guarantee:
    """The guarantee of a source or sink. Raises JobRejected: its name is unknown."""
    return as_guarantee(uid, connector.guarantee)


def as_guarantee(field: str, text: str) -> Guarantee:
    """The guarantee of this name. Raises JobRejected, naming `field`: there is no such guarantee."""
    try:
        return Guarantee(text)
    except ValueError as error:
        known = ", ".join(Guarantee)
        raise JobRejected("bad-guarantee", field, f"guarantee must be one of {known}, not {text!r}") from error
