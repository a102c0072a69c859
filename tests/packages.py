"""Projects of pipelines with a build backend of their own, so that no index is needed to package them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_BACKEND = """
import pathlib, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    name = {name!r} + "-" + {version!r}
    about = name + ".dist-info/"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name + "-py3-none-any.whl"), "w") as wheel:
        for path in sorted((here / {name!r}).rglob("*")):
            if path.is_file():
                wheel.write(path, path.relative_to(here).as_posix())
        wheel.writestr(about + "METADATA", {metadata!r})
        wheel.writestr(about + "entry_points.txt", {points!r})
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(about + "RECORD", "")
    return name + "-py3-none-any.whl"
"""


def write_project(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    version: str = "1.0",
    pipelines: Mapping[str, str] | None = None,
    requires: Sequence[str] = ("weir-streams",),
) -> Path:
    """Writes a project with one package of modules. `pipelines`: entry point -> object; default: one in `job`."""
    points = {name: f"{name}.job:PIPELINE"} if pipelines is None else pipelines
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    facts = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    texts = {
        "name": name,
        "version": version,
        "metadata": "\n".join(["Metadata-Version: 2.1", *facts]) + "\n",
        "points": f"[weir.pipelines]\n{lines}" if lines else "",
    }
    (folder / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    )
    (folder / "backend.py").write_text(_BACKEND.format(**texts))
    for path, text in {"__init__.py": "", **files}.items():
        (folder / name / path).write_text(text)
    return folder


def word_job(word: str, name: str = "wordjob") -> str:
    """The module of a pipeline that writes the lines of a folder behind `word`, which it reads from a data file."""
    return f'''
from importlib.resources import files
from typing import Any

import msgspec
import pyarrow as pa

import weir
from {name} import MARK


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lines_dir: str
    output_dir: str
    bounded: bool = True


def mark(row: dict[str, Any]) -> dict[str, Any]:
    text = files("{name}").joinpath("word.txt").read_text().strip()
    return {{"line": MARK + " " + text + " " + row["line"]}}


def build(params: Params, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("{name}")
    lines = flow.source("lines", weir.DirectorySource(params.lines_dir, weir.LineFormat(), bounded=params.bounded))
    marked = lines.map("mark", mark, pa.schema([("line", pa.string())]), repeatable=True)
    marked.sink("output", weir.ParquetSink(params.output_dir))
    return flow


PIPELINE = weir.Pipeline(name="{name}", description="Marks lines with {word}.", params=Params, build=build)
'''


def stream_job(word: str, name: str) -> str:
    """As `word_job`, with lines that a standing stage reads and a Python worker of Spark marks."""
    job = word_job(word, name)
    begin, source = job.index("    lines = flow.source"), job.index("    marked = ")
    stream = """    def lines_of(spark: Any) -> Any:
        from pyspark.sql.functions import udf

        return spark.readStream.text(params.lines_dir).select(udf(behind_mark, "string")("value").alias("value"))

    context.check_path("lines_dir", params.lines_dir)
    lines = flow.source("lines", weir.from_spark_stream(lines_of))
"""
    marked = """def behind_mark(line: str) -> str:
    return MARK + " " + line


def build("""
    job = job[:begin] + stream + job[source:]
    job = job.replace("def build(", marked, 1)
    return job.replace('MARK + " " + text + " " + row["line"]', 'text + " " + row["value"]')


def compiled_mark(library: str) -> str:
    """The module of a mark that a compiled library writes: its version, and the folder that it is imported from."""
    return f"""
from pathlib import Path

import {library}

MARK = {library}.dumps([{library}.__version__, Path({library}.__file__).parent.name])
"""


def word_files(word: str, name: str = "wordjob") -> dict[str, str]:
    """The files of a project whose output has `word` twice: from a module and from a data file."""
    return {"__init__.py": f"MARK = {word!r}\n", "word.txt": f"{word}\n", "job.py": word_job(word, name)}
