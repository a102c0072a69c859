"""Checks that no folder of the product has more modules than a reader can survey. Part of `make check`.

`__init__.py` and migrations do not count.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = (
    "runtime",
    "weir",
    "pyspark_weir",
    "pyspark_weir_output",
    "spark_jobs",
    "console",
    "stack",
    "examples",
)
MAX_MODULES: Final = 20


def folders(root: Path) -> dict[str, int]:
    """The number of modules of each folder of the product."""
    counts: dict[str, int] = {}
    for package in PACKAGES:
        for module in (root / package).rglob("*.py"):
            if module.name != "__init__.py" and module.parent.name != "migrations":
                name = module.parent.relative_to(root).as_posix()
                counts[name] = counts.get(name, 0) + 1
    return counts


def faults(counts: Mapping[str, int]) -> Iterator[str]:
    for folder, count in sorted(counts.items()):
        if count > MAX_MODULES:
            yield f"{folder} has {count} modules, more than {MAX_MODULES}: group them"


def main() -> int:
    large = list(faults(folders(ROOT)))
    for fault in large:
        print(fault, file=sys.stderr)  # noqa: T201
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
