"""The definition of a job as a YAML document, which `weir export` writes and `weir apply` reads.

The console validates the values, as it does for its own forms. To apply a document twice has no further effect, unless
the package of the pipeline was installed in another version meanwhile.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from runtime.yaml_text import load_yaml
from weir.control.console import Console, Refused, Row

_FACTS: Final = ("description", "owner", "tags", "runbook", "max_silence_s")  #: about the job, without versions
_VALUES: Final = ("parallelism", "max_parallelism", "params", "settings", "package")  #: of a version
_REQUIRED: Final = ("name", "pipeline", "parallelism", "params")
_FIELDS: Final = ("name", "pipeline", *_FACTS, *_VALUES)
_WORDS: Final = {dict: "a mapping", list: "a list", int: "a whole number", str: "a text"}
_KINDS: Final = {
    "params": dict,
    "settings": dict,
    "tags": list,
    "parallelism": int,
    "max_silence_s": int,
    "name": str,
    "pipeline": str,
    "package": str,
}


def export(job: Row, version: Row) -> str:
    """The document of a job with the values of `version`. Secrets are masked; a mask keeps the stored secret."""
    document = {
        **{name: job[name] for name in ("name", "pipeline", *_FACTS)},
        **{v: version[v] for v in _VALUES if v != "package"},
    }
    if version["package"]:
        document["package"] = version["package"]
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def read(path: Path) -> dict[str, Any]:
    """The document in a file. Raises Refused, naming the field, before anything is sent."""
    try:
        document = load_yaml(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: an impossible date or number
        raise Refused(f"{path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise Refused(f"{path}: a definition has the fields {', '.join(_FIELDS)}")
    for name in document:
        if name not in _FIELDS:
            raise Refused(f"{path}: {name}: a definition has no such field; it has {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in document:
            raise Refused(f"{path}: {name}: this field is required")
    for name, kind in _KINDS.items():
        if name in document and type(document[name]) is not kind:
            raise Refused(f"{path}: {name}: must be {_WORDS[kind]}, not {document[name]!r}")
    try:
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Refused(f"{path}: has a value that JSON does not have: {error}") from error
    return document


def differences(console: Console, document: Mapping[str, Any]) -> list[Row]:
    """The differences from the job to the document: `part`, `name`, `before` and `after`; none: the job is equal.

    A job that does not exist differs in one row with the part "job".

    Raises:
        Refused: the console would refuse a value, or the job has another pipeline.
    """
    job = _job(console, document)
    if job is None:
        return [{"part": "job", "name": document["name"], "before": None, "after": document["pipeline"]}]
    rows = console.post(f"jobs/{job['id']}/versions/difference/", _version(document))["differences"]
    facts = [{"part": "fact", "name": n, "before": job[n], "after": new} for n, new in _changed(job, document).items()]
    return [*rows, *facts]


def apply(console: Console, document: Mapping[str, Any], message: str) -> list[str]:
    """Makes the job equal to the document. Returns a line for each change; none: the job is equal.

    Raises:
        Refused: the console refuses a value, or the job has another pipeline. A version that was created stays.
    """
    lines: list[str] = []
    name, version = document["name"], {**_version(document), "message": message}
    job = _job(console, document)
    if job is None:
        job = console.post("jobs/", {"name": name, "pipeline": document["pipeline"], "version": version})
        lines.append(f"{name}: created, with version 1")
    else:
        new_version = console.post(f"jobs/{job['id']}/versions/", {**version, "skip_if_equal": True})
        if new_version["id"] != job["newest_version"]:
            cause = f": {new_version['message']}" if new_version["message"] != message.strip() else ""
            lines.append(f"{name}: version {new_version['number']} created{cause}")
    present, tag = console.get_with_tag(f"jobs/{job['id']}/")
    if changed := _changed(present, document):
        console.patch(f"jobs/{job['id']}/", changed, tag)
        lines.append(f"{name}: {', '.join(changed)} changed")
    return lines


def _job(console: Console, document: Mapping[str, Any]) -> Row | None:
    """The job with the name of the document. Raises Refused if it has another pipeline."""
    job = next(console.rows("jobs/", 1, name=document["name"]), None)
    if job is not None and job["pipeline"] != document["pipeline"]:
        raise Refused(f"pipeline: {job['name']} has the pipeline {job['pipeline']!r}, which cannot change")
    return job


def _version(document: Mapping[str, Any]) -> dict[str, Any]:
    return {value: document[value] for value in _VALUES if value in document}


def _changed(job: Row, document: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the document that the job does not have."""
    return {fact: document[fact] for fact in _FACTS if fact in document and job[fact] != document[fact]}
