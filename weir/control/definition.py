"""The definition of a job as a YAML document, which `weirctl export` writes and `weirctl apply` reads.

The console validates the values, as it does for its own forms. To apply a document twice has no further effect.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from weir.control.console import Console, Refused, Row

_FACTS: Final = ("description", "owner", "tags", "runbook")  #: about the job, without versions
_VALUES: Final = ("parallelism", "max_parallelism", "params", "settings")  #: of a version
_REQUIRED: Final = ("name", "pipeline", "parallelism", "params")
_FIELDS: Final = ("name", "pipeline", *_FACTS, *_VALUES)
_WORDS: Final = {dict: "a mapping", list: "a list", int: "a whole number", str: "a text"}
_KINDS: Final = {"params": dict, "settings": dict, "tags": list, "parallelism": int, "name": str, "pipeline": str}


def export(job: Row, version: Row) -> str:
    """The document of a job with the values of `version`. Secrets are masked; a mask keeps the stored secret."""
    document = {**{name: job[name] for name in ("name", "pipeline", *_FACTS)}, **{v: version[v] for v in _VALUES}}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def read(path: Path) -> dict[str, Any]:
    """The document in a file. Raises Refused, naming the field, before anything is sent."""
    try:
        document = yaml.safe_load(path.read_text())
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


def apply(console: Console, document: Mapping[str, Any], message: str) -> list[str]:
    """Makes the job equal to the document. Returns a line for each change; none: the job is equal.

    Raises:
        Refused: the console refuses a value, or the job has another pipeline. A version that was created stays.
    """
    done: list[str] = []
    name, pipeline = document["name"], document["pipeline"]
    version = {**{value: document[value] for value in _VALUES if value in document}, "message": message}
    job = next(console.rows("jobs/", 1, name=name), None)
    if job is None:
        job = console.post("jobs/", {"name": name, "pipeline": pipeline, "version": version})
        done.append(f"{name}: created, with version 1")
    elif job["pipeline"] != pipeline:
        raise Refused(f"pipeline: {name} has the pipeline {job['pipeline']!r}, which cannot change")
    else:
        made = console.post(f"jobs/{job['id']}/versions/", {**version, "skip_if_equal": True})
        if made["id"] != job["newest_version"]:
            done.append(f"{name}: version {made['number']} created")
    changed = {fact: document[fact] for fact in _FACTS if fact in document and job[fact] != document[fact]}
    if changed:
        console.patch(f"jobs/{job['id']}/", changed)
        done.append(f"{name}: {', '.join(changed)} changed")
    return done
