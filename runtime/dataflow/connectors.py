"""Sources and sinks as a job author passes them: bound to their PySpark stage, checked, with their guarantee."""

from contextvars import ContextVar
from typing import Final, TypeVar

from runtime.core.job.graph import Guarantee
from runtime.dataflow.checks import with_uid_in_errors
from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error, check_folder
from runtime.ports import BindsUid, Sink, Source, StageFolders, UsesFolders

C = TypeVar("C", Source, Sink)

#: Set while a pipeline builds its dataflow. A dataflow built elsewhere has no PySpark stages.
STAGE_FOLDERS: Final[ContextVar[StageFolders | None]] = ContextVar("stage_folders", default=None)


#: The attributes of the ports `Source` and `Sink`.
_ATTRIBUTES: Final = {
    "source": ("bounded", "guarantee", "reader", "check"),
    "sink": ("guarantee", "writer", "committer", "check"),
}


def prepare_connector(uid: str, argument: str, connector: C) -> C:
    """The source or sink of step `uid`, bound to the folders of its PySpark stage, if it has such a stage.

    Args:
        argument: "source" or "sink".

    Raises:
        JobRejected: it is no source or sink, or a setting or folder is invalid; the error names step and field.
    """
    _check_instance(uid, argument, connector)
    folders = STAGE_FOLDERS.get()
    if folders is not None and isinstance(connector, BindsUid):
        connector = connector.bind(uid, folders)
    with_uid_in_errors(uid, connector.check)
    if isinstance(connector, UsesFolders):
        for name, path in connector.folders().items():
            check_folder(uid, name, path)
    return connector


def _check_instance(uid: str, argument: str, connector: object) -> None:
    """Raises JobRejected for a class, and for an object without the attributes of its port."""
    if isinstance(connector, type):
        name = connector.__name__
        raise argument_error(uid, argument, f"must be an instance, not the class {name}: write {name}(...)")
    missing = [name for name in _ATTRIBUTES[argument] if not hasattr(connector, name)]
    if missing:
        problem = f"must be a {argument}, not {type(connector).__name__}, which has no {', '.join(missing)}"
        raise argument_error(uid, argument, problem)


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
