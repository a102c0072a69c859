"""Parameters that the examples share.

The folders of the examples are `examples` in the first folder of WEIR_DATA_ROOTS, which is `var/data` unless set.
"""

import os
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

Folder = Annotated[str, Meta(pattern="^/", max_length=1024)]
Bounded = Annotated[
    bool, Meta(title="Bounded", description="Read the input that is there, then end; needed for BATCH.")
]
#: The database of the examples: the stack makes this connection for the pipelines that use it.
EXAMPLES_URL: Final = "${connection:examples}"


def sample_folder(name: str) -> str:
    """The absolute path of a folder of an example."""
    roots = os.environ.get("WEIR_DATA_ROOTS", "").split(os.pathsep)[0]
    return str(Path(roots or Path(os.environ.get("WEIR_VAR") or "var", "data")).absolute() / "examples" / name)
