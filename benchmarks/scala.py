"""Compiles programs of the benchmark in Scala with the compiler that Spark contains: a Java runtime has none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from stack.launch.java import ADVICE, find_java

JARS: Final = Path(pyspark.__file__).parent / "jars"


def java() -> str:
    """The program `java`.

    Raises:
        SystemExit: there is none.
    """
    home = find_java(os.environ)
    if home is None:
        raise SystemExit(ADVICE)
    return f"{home}/bin/java"


def compile_program(source: Path, classes: Sequence[Path], folder: Path) -> None:
    """Compiles `source` against the jars `classes` into `folder`, unless the folder is there."""
    if folder.exists():
        return
    unfinished = folder.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    compiler = [java(), "-cp", str(JARS / "*"), "scala.tools.nsc.Main", "-cp", os.pathsep.join(map(str, classes))]
    subprocess.run([*compiler, "-d", str(unfinished), str(source)], check=True, stdout=sys.stderr)
    unfinished.rename(folder)
