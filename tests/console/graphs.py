"""Graphs and their operators as the compile stage returns them."""

from typing import Any, Final

#: Code of an unknown package.
CODE: Final = {"package": "", "version": "", "graph": "a"}


def operator(
    uid: str, name: str, role: str, parallelism: int, *, most: int = 128, bounded: bool = False, **fields: Any
) -> dict[str, Any]:
    return {
        "uid": uid, "name": name, "role": role, "parallelism": parallelism, "most": most, "bounded": bounded,
        "guarantee": "exactly-once", "commits": role == "sink", "durations": {}, "aggregates": [],
        "times": [], "exclusive": False, "dead_letters": "",
        **fields,
    }  # fmt: skip


def edge(
    source: str, target: str, input: int = 0, partitioning: str = "forward", *keys: str, build: bool = False,
    feedback: bool = False,
) -> dict[str, Any]:  # fmt: skip
    return {
        "source": source, "target": target, "input": input, "partitioning": partitioning, "keys": list(keys),
        "key_types": [], "value_types": [], "build": build, "feedback": feedback, "output": "",
    }  # fmt: skip
