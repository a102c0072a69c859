"""Sources and sinks as a job author passes them: bound to their PySpark stage, checked, with their guarantee."""

from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from math import isfinite
from numbers import Integral, Real
from types import UnionType
from typing import Final, TypeVar, Union, get_args, get_origin, get_type_hints

from runtime.core.job.graph import Guarantee
from runtime.dataflow.checks import with_uid_in_errors
from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error, check_folder
from runtime.ports import BindsUid, HasParts, Sink, Source, StageFolders, UsesFolders

#: Types of fields that are checked, with the words for them.
_SCALARS: Final = {
    int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None",
}  # fmt: skip

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
    for name, part in connector.parts.items() if isinstance(connector, HasParts) else ():
        _check_instance(uid, f"{argument}.{name}", part)
        _check_scalars(uid, part)
    _check_instance(uid, argument, connector)
    _check_scalars(uid, connector)
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
    role = argument.partition(".")[0]
    missing = [name for name in _ATTRIBUTES[role] if not hasattr(connector, name)]
    if missing:
        problem = f"must be a {role}, not {type(connector).__name__}, which has no {', '.join(missing)}"
        raise argument_error(uid, argument, problem)


def _check_scalars(uid: str, connector: object) -> None:
    """Raises JobRejected if a number, switch or text of a connector that is a dataclass has another type."""
    if not is_dataclass(connector):
        return
    try:
        types = get_type_hints(type(connector))
    except NameError:  # an author's class with a type that is imported for type checks only
        return
    for field in fields(connector):
        declared, value = types[field.name], getattr(connector, field.name)
        kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
        is_checked = all(isinstance(kind, type) and kind in _SCALARS for kind in kinds)
        if is_checked and not any(_is_scalar(value, kind) for kind in kinds):
            forms = " or ".join(_SCALARS[kind] for kind in kinds)
            text = repr(value) if field.repr else type(value).__name__  # it may be a secret
            raise argument_error(uid, field.name, f"must be {forms}, not {text}")


def _is_scalar(value: object, kind: type) -> bool:
    """Whether `value` is a text, a switch, a finite number, or a whole number of 64 bits. Numbers of numpy count."""
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return isinstance(value, Integral) and -(1 << 63) <= int(value) < 1 << 63
    if kind is float:
        return isinstance(value, Real) and isfinite(value)
    return isinstance(value, kind)


def guarantee_of(uid: str, connector: Source | Sink) -> Guarantee:
    """The guarantee of a source or sink. Raises JobRejected: its name is unknown."""
    return as_guarantee(uid, connector.guarantee)


def as_guarantee(field: str, text: str) -> Guarantee:
    """The guarantee of this name. Raises JobRejected, naming `field`: there is no such guarantee."""
    try:
        return Guarantee(text)
    except ValueError as error:
        names = ", ".join(Guarantee)
        raise JobRejected("bad-guarantee", field, f"guarantee must be one of {names}, not {text!r}") from error
