"""The class of each kind of operation, and Django's check that there is exactly one."""

import pkgutil
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import msgspec
from django.core.checks import CheckMessage, Error, register

from console.accounts.refusals import Forbidden, Refused
from console.accounts.rights import AnyUser, operate_refusal
from console.operations.models import OperationKind
from console.operations.operation_type import JobOperation, OperationType, SnapshotOperation

_KINDS = "console.operations.kinds"

T = TypeVar("T", bound=OperationType)


@cache
def operation_types() -> tuple[OperationType, ...]:
    """An instance of the class of each kind, in the order of `OperationKind`."""
    order = list(OperationKind)
    return tuple(sorted((each() for each in _classes()), key=lambda each: order.index(each.kind)))


def types_of(base: type[T]) -> tuple[T, ...]:
    """The classes of `operation_types` below `base`."""
    return tuple(each for each in operation_types() if isinstance(each, base))


def operation_type(kind: str) -> OperationType:
    """Raises KeyError: no kind of operation is called so."""
    return _by_kind()[kind]


def operation_of(base: type[T], kind: str) -> T:
    """As `operation_type`, of a kind whose class is below `base`."""
    operation = operation_type(kind)
    assert isinstance(operation, base), f"{kind} is no {base.__name__}"
    return operation


def requestable_types() -> tuple[OperationType, ...]:
    return tuple(each for each in operation_types() if not each.is_record)


def requested_type(user: AnyUser, kind: object) -> OperationType:
    """The class of the kind of a request.

    Raises:
        Forbidden: the user may not request this kind.
        Refused: no request has this kind.
    """
    requestable = {each.kind.value: each for each in requestable_types()}
    operation = requestable.get(str(kind))
    if refused := operation.right_refusal(user) if operation else operate_refusal(user):
        raise Forbidden(refused)
    if operation is None:
        raise Refused("unknown-kind", f"kind: must be one of {', '.join(requestable)}, not {kind!r}.", field="kind")
    return operation


def params_schemas() -> dict[tuple[OperationKind, ...], dict[str, Any]]:
    """The JSON schema of the parameters, by the kinds of operations that have them."""
    kinds: dict[type[msgspec.Struct], tuple[OperationKind, ...]] = {}
    for each in requestable_types():
        assert each.params is not None, "checked"
        kinds[each.params] = (*kinds.get(each.params, ()), each.kind)
    return {group: msgspec.json.schema(struct) for struct, group in kinds.items()}


@cache
def _by_kind() -> dict[str, OperationType]:
    return {each.kind: each for each in operation_types()}


def _classes() -> list[type[OperationType]]:
    """The classes with a kind in all modules of `console.operations.kinds`."""
    package = import_module(_KINDS)
    modules = [import_module(info.name) for info in pkgutil.walk_packages(package.__path__, f"{_KINDS}.")]
    members = [(module.__name__, each) for module in modules for each in vars(module).values()]
    classes = [each for name, each in members if isinstance(each, type) and each.__module__ == name]
    return [each for each in classes if issubclass(each, OperationType) and "kind" in vars(each)]


@register()
def check_kinds(**_: Any) -> list[CheckMessage]:
    """Each kind has one class, and each class the parts that its target and its work need."""
    classes = _classes()
    number = Counter(each.kind for each in classes)
    places = Counter(
        each.button.place for each in classes if issubclass(each, JobOperation) and hasattr(each, "button")
    )
    problems = [f"{kind} has {number[kind]} classes, not one" for kind in OperationKind if number[kind] != 1]
    problems += [f"{each.__name__} {problem}" for each in classes for problem in _problems(each)]
    problems += [f"{count} buttons have the place {place}" for place, count in places.items() if count > 1]
    return [Error(problem, id="operations.E001") for problem in problems]


def _problems(each: type[OperationType]) -> Iterator[str]:
    if (each.params is None) is not each.is_record:
        yield "must have parameters, or be a record"
    if bool(each.message) is each.is_record:
        yield "must have a message, or be a record"
    if issubclass(each, SnapshotOperation) and "checkpoint" not in getattr(each.params, "__struct_fields__", ()):
        yield "must have a parameter `checkpoint`"
    if issubclass(each, JobOperation) and not hasattr(each, "button"):
        yield "must have a button"
    requirements = {"accept": not each.is_record, "advance": each.due, "advance_files": each.files_due}
    for method, need in requirements.items():
        if need not in (None, False) and getattr(each, method) is getattr(OperationType, method):
            yield f"must have a method `{method}`"
