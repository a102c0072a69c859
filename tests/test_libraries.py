"""Libraries that connectors need and Weir does not install by itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import JobRejected
from runtime.libraries import import_library, require_libraries


def test_a_missing_library_names_the_extra_to_install() -> None:
    """By the name of the distribution: on the public package index another one has the name `weir`."""
    with pytest.raises(JobRejected, match=r"needs the library no_such_library.*pip install 'weir-streams\[kafka\]'"):
        import_library("no_such_library.producer", "kafka")


def test_threads_never_get_half_of_a_library(tmp_path: Path) -> None:
    """Slots that are threads open their Kafka sources at a time; the modules of kafka-python import each other."""
    (tmp_path / "cyclic").mkdir()
    for name, other in ("ab", "ba"):
        program = f"import time\ntime.sleep(0.2)\nimport cyclic.{other}\ntime.sleep(0.4)\nNAME = 1\n"
        (tmp_path / "cyclic" / f"{name}.py").write_text(program)
    program = (
        "import sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from runtime.libraries import import_library\n"
        "def name_of_the_other(pair):\n"
        "    import_library(f'cyclic.{pair[0]}', 'kafka')\n"
        "    return sys.modules[f'cyclic.{pair[1]}'].NAME\n"
        "print(list(ThreadPoolExecutor(2).map(name_of_the_other, ('ab', 'ba'))))\n"
    )
    paths = f"{tmp_path}:{Path(__file__).parents[1]}"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": paths}
    )
    assert process.stdout == "[1, 1]\n", process.stderr


def test_all_missing_extras_are_named_at_once() -> None:
    """They were named one at a time, each after another installation."""
    with pytest.raises(JobRejected) as refused:
        require_libraries({"no_django": "console", "json": "base", "no_spark": "spark"})
    detail = "needs the libraries no_django, no_spark: on every host, run pip install 'weir-streams[console,spark]'"
    assert str(refused.value) == f"console,spark: {detail}"


def test_a_name_of_the_face_that_needs_a_missing_library_names_the_extra() -> None:
    """In a process without psycopg, as after an installation without extras."""
    program = "import sys; sys.modules['psycopg'] = None; import weir; weir.DirectorySource; weir.PostgresSource"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "JobRejected" in process.stderr.splitlines()[-1]
    assert process.stderr.rstrip().endswith("pip install 'weir-streams[postgres]'")


@pytest.mark.parametrize(
    ("library", "extra", "step"),
    [
        ("confluent_kafka", "kafka", "source('in', weir.KafkaSource('h:9092', 't', weir.KafkaText('line')))"),
        ("confluent_kafka", "kafka", "sink('out', weir.KafkaSink('h:9092', 't', weir.KafkaJson()))"),
        ("deltalake", "delta", "sink('out', weir.DeltaSink('/tmp/t'))"),
        ("fastavro", "avro", "source('in', weir.DirectorySource('/tmp/t', weir.AvroFormat()))"),
    ],
)
def test_a_dataflow_whose_connector_lacks_its_library_does_not_compile(library: str, extra: str, step: str) -> None:
    flow = "weir.Dataflow('job')"
    lines = f"{flow}.source('in', weir.DirectorySource('/tmp/in', weir.LineFormat()))"
    program = f"import sys; sys.modules[{library!r}] = None; import weir; {flow if 'source' in step else lines}.{step}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stderr.rstrip().endswith(f"pip install 'weir-streams[{extra}]'"), process.stderr


def test_a_library_that_misses_a_library_of_its_own_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        import_library("half_installed", "kafka")


def test_a_library_that_is_there_is_imported() -> None:
    assert import_library("json.decoder", "x").JSONDecoder


def test_no_text_advises_to_install_the_foreign_package() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "docker").glob("*.md")]
    code = [
        file
        for package in ("runtime", "spark_jobs", "console", "weir", "stack")
        for file in (root / package).rglob("*.py")
    ]
    texts = {file: file.read_text() for file in (*pages, *code)}
    assert [str(file) for file, text in texts.items() if re.search(r"install [\"'`]?weir(?!-)\b", text)] == []
