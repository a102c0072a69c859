"""Pipelines: named, parameterised jobs that installed packages offer, and the registry in which they are found."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints, distributions, entry_points
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from runtime.access.data_roots import DataRoots
from runtime.access.job_package import package_folder
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.errors import JobRejected
from runtime.ports import Sink, Source, StageFolders, UsesFolders

ENTRY_POINT_GROUP: Final = "weir.pipelines"
MAX_QUERY_NAME_LENGTH: Final = 100
MAX_QUERY_LENGTH: Final = 20_000  #: characters of SQL
IMPORT_TIMEOUT_S: Final = 20.0  #: per entry point

P = TypeVar("P", bound=msgspec.Struct)


@dataclass(frozen=True)
class PipelineContext:
    """The environment of a pipeline: the paths that it may use.

    Args:
        input_root: folder of the run with the output of PySpark stages for bounded sources; "": none, as in BATCH.
        column_root: folder of the version with the columns that Spark reported.
        stream_root: folder of the output of standing PySpark stages; "": none yet, as at compilation.
    """

    input_root: str
    data_roots: DataRoots = DataRoots()
    column_root: str = ""
    stream_root: str = ""

    def check_path(self, parameter: str, path: str) -> None:
        """Checks a path that is used by no source or sink, such as a file that a PySpark stage reads.

        Raises:
            JobRejected: `path` is outside WEIR_DATA_ROOTS; the error names `parameter`.
        """
        self.data_roots.check(parameter, path)

    def is_input(self, path: str) -> bool:
        """Whether `path` lies below the folder of the run's inputs, with symbolic links resolved."""
        return bool(self.input_root) and Path(path).resolve().is_relative_to(Path(self.input_root).resolve())


@dataclass(frozen=True, kw_only=True)
class Pipeline(Generic[P]):
    """A named, parameterised job, offered through the entry point group `weir.pipelines`.

    Args:
        params: a msgspec Struct. The console validates against its JSON schema, and renders its form.
        build: creates the dataflow; must have no side effects.
        queries: SQL by name, which the console runs against any checkpoint of a job. Each state is a view named
            `operator_state`, with `_` for characters other than letters and digits; `contents` lists the states.

    Raises:
        JobRejected: a query has no name or no SQL, or is not a SELECT; the error names the query.
    """

    name: str
    description: str
    params: type[P]
    build: Callable[[P, PipelineContext], Dataflow]
    queries: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, sql in self.queries.items():
            _check_query(name, sql)

    def parse(self, raw: Mapping[str, Any]) -> P:
        """The parameters as a Struct. Raises JobRejected naming the parameter, or all that the pipeline lacks."""
        fields = [each.encode_name for each in msgspec.structs.fields(self.params)]
        if unknown := sorted(raw.keys() - fields):
            raise JobRejected("bad-params", ", ".join(unknown), f"is unknown; {self.name} has {', '.join(fields)}")
        try:
            return msgspec.convert(dict(raw), self.params, strict=True)
        except msgspec.ValidationError as error:
            text = str(error)
            where = text.rsplit("`$.", 1)[1].rstrip("`") if "`$." in text else "params"
            raise JobRejected("bad-params", where, text.split(" - at", maxsplit=1)[0]) from error

    def dataflow(self, raw: Mapping[str, Any], context: PipelineContext) -> Dataflow:
        """The job for the parameters `raw`.

        Raises:
            JobRejected: naming the parameter or operator at fault, also for a folder outside WEIR_DATA_ROOTS.
        """
        params = self.parse(raw)
        shared = STAGE_FOLDERS.set(StageFolders(context.column_root, context.stream_root, context.input_root))
        try:
            flow = self.build(params, context)
        finally:
            STAGE_FOLDERS.reset(shared)
        for uid, source in flow.sources.items():
            folders = {name: path for name, path in _folders(source) if not context.is_input(path)}
            _check_folders(uid, folders, raw, context)
        for uid, sink in flow.sinks.items():
            _check_folders(uid, dict(_folders(sink)), raw, context)
        return flow


_SELECT_PREFIX: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(?:select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL
)


def _check_query(name: object, sql: object) -> None:
    """Checks the name and the SQL without Spark. Raises JobRejected naming the query."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_QUERY_NAME_LENGTH:
        detail = f"a query needs a name: one line of 1 to {MAX_QUERY_NAME_LENGTH} printable characters, not {name!r}"
        raise JobRejected("bad-query", "queries", detail)
    if not isinstance(sql, str) or not sql.strip() or len(sql) > MAX_QUERY_LENGTH or "\0" in sql:
        detail = f"a query needs SQL: 1 to {MAX_QUERY_LENGTH} characters"
        raise JobRejected("bad-query", f"queries[{name!r}]", detail)
    if _SELECT_PREFIX.match(sql) is None:
        detail = "a query must only read: begin it with SELECT, WITH, FROM, VALUES or TABLE"
        raise JobRejected("bad-query", f"queries[{name!r}]", detail)


def _folders(end: Source | Sink) -> Iterable[tuple[str, str]]:
    return end.folders().items() if isinstance(end, UsesFolders) else ()


def _check_folders(uid: str, folders: Mapping[str, str], raw: Mapping[str, Any], context: PipelineContext) -> None:
    """Checks folders against WEIR_DATA_ROOTS. The error names the parameter with this path, or else the operator."""
    for name, path in folders.items():
        parameter = next((key for key, value in raw.items() if value == path), f"{uid}.{name}")
        context.data_roots.check(parameter, path)


class Package(NamedTuple):
    """An installed package (distribution); both are "" if it is unknown."""

    name: str
    version: str


@dataclass(frozen=True)
class Registry:
    """The usable pipelines by name, and the packages that offer them.

    `broken` holds the reason why a pipeline is unusable, by name.
    """

    pipelines: Mapping[str, Pipeline[Any]]
    packages: Mapping[str, Package]
    broken: Mapping[str, str]

    def pipeline(self, name: str) -> Pipeline[Any]:
        """The pipeline called `name`. Raises JobRejected: no installed package offers it, or it is broken."""
        if name in self.broken:
            raise JobRejected("broken-pipeline", "pipeline", self.broken[name])
        if name not in self.pipelines:
            names = ", ".join(sorted(self.pipelines))
            raise JobRejected("unknown-pipeline", "pipeline", f"{name!r} is not installed; known: {names}")
        return self.pipelines[name]


def registry() -> Registry:
    """All pipelines. An entry point that fails, hangs or repeats a name makes only that name unusable."""
    return _registry(offered_points())


def pipeline(name: str) -> Pipeline[Any]:
    """A pipeline of the registry, by name; a dotted path is never accepted.

    Only entry points of this name are loaded, so that a slow or broken package affects its own pipelines only. If none
    of them offers the pipeline, all entry points are loaded: an entry point's name may differ from the pipeline's.

    Raises:
        JobRejected: no installed package offers it, or it is broken.
    """
    return _registry_with(name).pipeline(name)


def package_of(name: str) -> Package:
    """The installed package that offers the pipeline `name`. Raises JobRejected as `pipeline`."""
    registry = _registry_with(name)
    registry.pipeline(name)
    return registry.packages[name]


def _registry_with(name: str) -> Registry:
    candidate = _registry(offered_points().select(name=name))
    return candidate if name in candidate.pipelines or name in candidate.broken else registry()


def offered_points() -> EntryPoints:
    """The entry points of the package of this process; without a package, those of all that is installed."""
    folder = package_folder()
    if folder is None:
        return entry_points(group=ENTRY_POINT_GROUP)
    points = (point for each in distributions(path=[str(folder)]) for point in each.entry_points)
    return EntryPoints(points).select(group=ENTRY_POINT_GROUP)


def _registry(points: Iterable[EntryPoint]) -> Registry:
    offers: dict[str, tuple[Pipeline[Any], EntryPoint]] = {}
    broken: dict[str, str] = {}
    for point in points:
        place = _origin(point)
        try:
            with _import_timeout():
                offered = _load(point)
        except (Exception, SystemExit, _TooSlow) as error:  # noqa: BLE001 - any package's code; its error is shown
            broken[point.name] = f"{place} cannot be used: {type(error).__name__.strip('_')}: {error}"
            continue
        other, first = offers.setdefault(offered.name, (offered, point))
        if other is not offered:
            origins = f"{_origin(first)} and {place}"
            broken[offered.name] = f"two packages offer {offered.name!r}: {origins}. Remove one of them"
    usable = {name: each for name, each in offers.items() if name not in broken}
    packages = {name: _package(point) for name, (_, point) in usable.items()}
    return Registry({name: offered for name, (offered, _) in usable.items()}, packages, broken)


class _TooSlow(BaseException):
    """An import exceeded `IMPORT_TIMEOUT_S`. A BaseException, so that no `except Exception` of the package stops it."""


@contextlib.contextmanager
def _import_timeout() -> Iterator[None]:
    """Interrupts the `with` body after `IMPORT_TIMEOUT_S`. Only the main thread can be interrupted; in other threads,
    there is no limit.

    The import stays in the calling thread, because only the main thread may set signal handlers, as some packages do.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def stop(*_: object) -> None:
        raise _TooSlow(f"its import takes longer than {IMPORT_TIMEOUT_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, IMPORT_TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def parameter_schema(offered: Pipeline[Any]) -> dict[str, Any]:
    """The JSON schema of the parameters, with the root object inlined, so that a form has no `$ref` to resolve."""
    (top,), components = msgspec.json.schema_components((offered.params,), ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(top["$ref"].rsplit("/", 1)[-1])
    return schema | {"$defs": components} if components else schema


def _load(point: EntryPoint) -> Pipeline[Any]:
    offered = point.load()
    if not isinstance(offered, Pipeline):
        raise TypeError(f"it is not a Pipeline but {type(offered).__name__}")
    try:
        parameter_schema(offered)
    except (TypeError, KeyError) as error:
        raise TypeError(f"its params must be a msgspec.Struct with a JSON schema: {error}") from error
    return offered


def _package(point: EntryPoint) -> Package:
    return Package("", "") if point.dist is None else Package(point.dist.name, point.dist.version)


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "unknown package"
    return f"package {package} (entry point {point.name} = {point.value})"
