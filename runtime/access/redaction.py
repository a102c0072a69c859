"""Detects and redacts secrets among the parameters of a version.

A parameter is secret if its schema marks it (`format: password`, `writeOnly`) or its name does (`password`, `api_key`,
`auth_token`, at any depth). A password inside a URL or a libpq connection string is a secret, too. The version's row
keeps the value, because the job needs it. Pages, API and admin mask the value, unless it is a reference to a secret.
The job master redacts every failure text that it records.

A process of a single job registers the value of each reference that it resolves. Until the process ends, `redact` masks
these values in every text, since an error of a client library may quote them. A process of many jobs registers none and
gives `redact` the values of a job (`access.secrets.resolved_texts`). A value below 8 characters is masked as a whole
word only. A longer one is masked within words and in any case: a definer writes text around a reference, and clients
print names of hosts in lower case.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

MASK: Final = "********"
REFERENCE: Final = re.compile(r"\$\{secret:([^}]*)\}")  #: stands for a secret that the place of the job has
_MIN_SECRET_CHARACTERS: Final = 4  #: characters; a shorter secret also occurs in texts by chance
_MIN_PART_CHARACTERS: Final = 8  #: of a resolved value that is masked within words; a shorter one may be a user name
_SECRET_NAMES = re.compile(
    r"(?:^|_)(?:passwords?|passwd|passphrase|pwd|secrets?|tokens?|credentials?|(?:api|access|secret|private|auth)_?key)$"
)
_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_WORD_CHARACTER: Final = re.compile(r"\w")
#: No word character stands before, apart from the end of an escape in JSON, Python or an address.
_WORD_START: Final = r"(?:(?<!\w)|(?<=\\[abfnrtv])|(?<=\\x[0-9a-fA-F]{2})|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2}))"
_URL_PASSWORD = re.compile(  # a user may be a reference, whose colon does not end it
    r"(?P<before>\b[A-Za-z][\w+.-]*://(?:\$\{secret:[^}]*\}|(?!\$\{secret:)[^/\s:@])*:)(?P<secret>[^/\s@]+)(?=@)"
)
_CONNINFO_PASSWORD = re.compile(r"(?P<before>\bpassword\s*=\s*)(?P<secret>'(?:[^'\\]|\\.)*'|[^\s&;]+)", re.IGNORECASE)

Schema = Mapping[str, Any]
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_STRUCTURAL_FIELDS: Final = ("code", "operator", "slot")  #: of a failure
_resolved: set[str] = set()  #: secret texts that this process has resolved


def is_secret(name: str, schema: Schema) -> bool:
    """Whether the parameter `name` with the given JSON schema holds a secret."""
    return is_declared_secret(schema) or _SECRET_NAMES.search(_WORD_BORDER.sub("_", name).lower()) is not None


def is_declared_secret(schema: Schema) -> bool:
    """Whether the JSON schema of a parameter marks it as secret."""
    parts = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return any(part.get("format") == "password" or part.get("writeOnly") for part in parts if isinstance(part, Mapping))


def declared_secrets(params: Mapping[str, Any], schema: Schema) -> Iterator[tuple[str, str]]:
    """Path and text of each parameter that the schema marks as secret, at any depth of objects, maps and lists.

    All texts of a marked object, map or list are secret. Numbers are included. Truth values are not: masks show them,
    too.
    """
    for name, value in params.items():
        yield from _declared_secrets(name, value, _member_schema(schema, schema, name), schema, is_marked=False)


def _declared_secrets(
    path: str, value: Any, schema: Schema, root: Schema, *, is_marked: bool
) -> Iterator[tuple[str, str]]:
    is_marked = is_marked or is_declared_secret(schema)
    match value:
        case dict():
            for name, inner in value.items():
                part = _member_schema(schema, root, name)
                yield from _declared_secrets(f"{path}.{name}", inner, part, root, is_marked=is_marked)
        case list():
            for at, inner in enumerate(value):
                part = _element_schema(schema, root, at)
                yield from _declared_secrets(f"{path}.{at}", inner, part, root, is_marked=is_marked)
        case str() | int() | float() if is_marked and not isinstance(value, bool) and value != "":
            yield path, str(value)


def mask(params: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """`params` with every secret replaced by `MASK`."""
    return {
        name: _mask_value(name, value, _member_schema(schema, schema, name), schema) for name, value in params.items()
    }


def register_resolved(value: str) -> None:
    """Registers the value of a reference: `redact` masks it from now on, and its passwords if it is an address."""
    _resolved.update(secret_texts(value))


def secret_texts(value: str) -> Iterator[str]:
    """The texts to mask for the value of a reference: the value, and its passwords if it is an address."""
    passwords = [match["secret"].strip("'") for match in _matches(value)]
    for text in (value, *passwords):
        written = (text, quote(text, safe="", errors="replace"), unquote(text))
        yield from (each for each in written if len(each) >= _MIN_SECRET_CHARACTERS)


def redact(text: str, params: Mapping[str, Any] = _NONE, schema: Schema = _NONE, resolved: Collection[str] = ()) -> str:
    """`text` without the secrets of `params`, and without registered and `resolved` values of references."""
    literal = set(_secrets(params, mask(params, schema)))
    for secret in sorted({*literal, *_resolved, *resolved}, key=len, reverse=True):
        for written in (secret, _as_json(secret, ascii=True), _as_json(secret, ascii=False)):
            if secret in literal:
                text = text.replace(written, MASK)
            if secret not in literal or secret in _resolved or secret in resolved:
                text = _pattern(written).sub(MASK, text)
    return text


@lru_cache(maxsize=4096)
def _pattern(written: str) -> re.Pattern[str]:
    """Finds a resolved value. A short one within a longer word is none: user names and buckets are secrets, too."""
    if len(written) >= _MIN_PART_CHARACTERS:
        return re.compile(re.escape(written), re.IGNORECASE)
    before = _WORD_START if _WORD_CHARACTER.match(written[0]) else ""
    after = r"(?!\w)" if _WORD_CHARACTER.match(written[-1]) else ""
    return re.compile(before + re.escape(written) + after)


def _as_json(secret: str, *, ascii: bool) -> str:
    """The secret as it stands in a JSON text, such as a line of a log."""
    return json.dumps(secret, ensure_ascii=ascii)[1:-1]


def redact_json(value: Any, params: Mapping[str, Any] = _NONE, schema: Schema = _NONE) -> Any:
    """`value` (JSON) with every text in it redacted."""
    match value:
        case str():
            return redact(value, params, schema)
        case dict():
            return {key: redact_json(inner, params, schema) for key, inner in value.items()}
        case list():
            return [redact_json(inner, params, schema) for inner in value]
        case _:
            return value


def redact_failure(failure: Mapping[str, Any], redact: Callable[[Any], Any]) -> dict[str, Any]:
    """`failure` with every value redacted by `redact`, except names of code, operator and slot, also in its `detail`.

    A secret may be equal to the name of an operator, to which the failure would be attributed no more.
    """
    values: dict[str, Any] = {}
    for name, value in failure.items():
        if name == "detail" and isinstance(value, dict):
            values[name] = redact_failure(value, redact)
        else:
            values[name] = value if name in _STRUCTURAL_FIELDS else redact(value)
    return values


def _mask_value(name: str, value: Any, schema: Schema, root: Schema) -> Any:
    if value is None or isinstance(value, bool) or value == "":
        return value
    if is_secret(name, schema):
        return value if isinstance(value, str) and REFERENCE.fullmatch(value) else MASK
    match value:
        case dict():
            return {
                key: _mask_value(key, inner, _member_schema(schema, root, key), root) for key, inner in value.items()
            }
        case list():
            return [_mask_value("", inner, _element_schema(schema, root, at), root) for at, inner in enumerate(value)]
        case str():
            return _CONNINFO_PASSWORD.sub(_mask_match, _URL_PASSWORD.sub(_mask_match, value))
        case _:
            return value


def _secrets(value: Any, masked_value: Any) -> Iterator[str]:
    """The secret texts: parts of `value` that are masked in `masked_value`."""
    match value, masked_value:
        case dict(), dict():
            for key, inner in value.items():
                yield from _secrets(inner, masked_value[key])
        case list(), list():
            for inner, masked_inner in zip(value, masked_value, strict=True):
                yield from _secrets(inner, masked_inner)
        case _ if value != masked_value:
            texts = [str(value)] if masked_value == MASK else [m["secret"] for m in _matches(str(value))]
            yield from (text for text in texts if len(text) >= _MIN_SECRET_CHARACTERS)


def _matches(text: str) -> Iterator[re.Match[str]]:
    """The literal passwords in `text`."""
    passwords = (*_URL_PASSWORD.finditer(text), *_CONNINFO_PASSWORD.finditer(text))
    yield from (match for match in passwords if not _is_reference(match))


def _mask_match(match: re.Match[str]) -> str:
    return match[0] if _is_reference(match) else match["before"] + MASK


def _is_reference(match: re.Match[str]) -> bool:
    """Whether the password is a reference, with or without quotes."""
    return REFERENCE.fullmatch(match["secret"].strip("'")) is not None


def _member_schema(schema: Schema, root: Schema, name: str) -> Schema:
    """All schemas that the member `name` may have, as `anyOf`: of a property, else of the entries of a map."""
    members = [part.get("properties", {}).get(name, part.get("additionalProperties")) for part in _parts(schema, root)]
    return _any_of(members, root)


def _element_schema(schema: Schema, root: Schema, at: int) -> Schema:
    """All schemas that the element `at` of a list may have, as `anyOf`."""
    parts = _parts(schema, root)
    leading = [part.get("prefixItems", ()) for part in parts]
    return _any_of([*(each[at] for each in leading if at < len(each)), *(part.get("items") for part in parts)], root)


def _any_of(schemas: list[Any], root: Schema) -> Schema:
    _, *alternatives = _parts({"anyOf": schemas}, root)
    return {"anyOf": alternatives}


def _parts(schema: Schema, root: Schema) -> list[Schema]:
    """`schema`, and the schemas that its references and alternatives lead to, each once."""
    parts: list[Schema] = []
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping) and part not in parts:
            parts.append(part)
            waiting += [_resolve(part, root), *part.get("anyOf", ()), *part.get("oneOf", ())]
    return parts


def _resolve(schema: Any, root: Schema) -> Any:
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    target: Any = root
    for step in reference[2:].split("/"):
        target = target.get(step, {}) if isinstance(target, Mapping) else {}
    return target


def storable_json(value: Any) -> str:
    """`value` as JSON, with a replacement character for each character that Postgres cannot store."""
    return storable_text(json.dumps(value, ensure_ascii=False))


def storable_text(value: str) -> str:
    """Replaces what Postgres cannot store, NUL and halves of surrogate pairs: the failure that quotes it is shown."""
    return value.encode(errors="replace").decode().replace("\\u0000", "\\ufffd").replace("\x00", "\ufffd")
