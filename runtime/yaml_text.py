"""YAML documents of people: mappings, lists and scalars, without what a reader would not expect."""

from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64  #: levels of mappings and lists; the time of a parser grows with their square


class _Loader(yaml.CSafeLoader):
    """Refuses keys that repeat: the last value would count, in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in names:
                    problem = f"the key {key.value!r} repeats"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                names.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The value of a document.

    Raises:
        yaml.YAMLError: it is not YAML, is nested deeper than 64 levels, repeats a key, or has an alias (`*name`), a few
            lines of which expand to gigabytes.
        ValueError: it has an impossible date or number.
    """
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {MAX_DEPTH} levels")
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
