"""The names that an author imports: complete, defined elsewhere, and loaded at their first use."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import weir
import weir.spi

ROOT = Path(__file__).parent.parent
HEAVY = ("django", "numpy", "pandas", "psycopg", "pyarrow", "pyspark")
OWN = (
    "console",
    "examples",
    "pyspark_weir",
    "pyspark_weir_output",
    "runtime",
    "spark_jobs",
    "stack",
    "templates",
    "weir",
)
#: They run a job or Spark, so they load all that it takes.
RUNNING = {"BatchResult", "SavepointWriter", "WrittenSavepoint", "run_batch", "run_local"}


def loaded(program: str, modules: tuple[str, ...]) -> list[str]:
    """Which of `modules` a fresh interpreter has loaded after `program`."""
    command = [sys.executable, "-c", f"import sys\n{program}\nprint([m for m in {modules!r} if m in sys.modules])"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names: list[str] = ast.literal_eval(process.stdout)
    return names


def test_the_import_loads_nothing_heavy() -> None:
    assert loaded("import weir", (*HEAVY, "runtime", "spark_jobs")) == []


def test_the_version_is_that_of_the_distribution() -> None:
    assert weir.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_errors_and_restart_strategies_do_without_arrow() -> None:
    assert loaded("import weir; weir.JobRejected, weir.FixedDelay", HEAVY) == []


def test_what_builds_a_job_loads_neither_spark_nor_the_network() -> None:
    """Slots are forked from a process that has imported pipelines: nothing there may have started threads."""
    names = [name for name in weir.__all__ if name not in RUNNING]
    program = f"import weir\nfor name in {names!r}: getattr(weir, name)"
    assert loaded(program, ("pyspark", "pyarrow", "pyarrow._flight", "pyarrow.flight", "django")) == ["pyarrow"]


@pytest.mark.parametrize("name", weir._HOMES)
def test_a_name_is_that_of_the_module_that_defines_it(name: str) -> None:
    definition, home = getattr(weir, name), weir._HOMES[name]
    assert definition is getattr(import_module(home), name)
    assert (definition.__module__, definition.__name__) == (home, name), "no second name for one thing"
    assert definition.__doc__, "help() describes it"


#: The runtime calls the methods of connectors, formats and records: their interfaces describe these methods.
CALLED_BY_RUNTIME = ("runtime.connectors.", "runtime.io.", "spark_jobs.sinks.")


@pytest.mark.parametrize("name", [name for name, home in weir._HOMES.items() if not home.startswith(CALLED_BY_RUNTIME)])
def test_every_method_that_an_author_calls_or_writes_is_described(name: str) -> None:
    definition = getattr(weir, name)
    bases = [base for base in getattr(definition, "__mro__", ()) if base.__module__.split(".")[0] in OWN]
    public = {
        method
        for base in bases
        for method, value in vars(base).items()
        if not method.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | cached_property))
    }
    assert [method for method in sorted(public) if not inspect.getdoc(getattr(definition, method))] == []


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse((ROOT / "weir/__init__.py").read_text())
    imported = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.asname: node.module
        for node in imported.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert homes == {**weir._HOMES, "spi": "weir"}


def test_no_name_is_in_both_modules() -> None:
    assert not set(weir.__all__) & set(weir.spi.__all__)
    assert [name for name in weir.spi.__all__ if not hasattr(weir.spi, name)] == []


def test_the_names_are_listed() -> None:
    assert dir(weir) == sorted(weir.__all__)
    assert weir.spi is sys.modules["weir.spi"]


def test_the_interfaces_need_no_import_of_their_own() -> None:
    assert loaded("import weir; weir.spi.SourceReader", ("weir.spi",)) == ["weir.spi"]


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"module 'weir' has no attribute 'Datafolw'"):
        getattr(weir, "Datafolw")  # noqa: B009 - a type checker refuses the attribute itself


# ---------------------------------------------------------------- what authors read


def snippets() -> Iterator[tuple[str, str]]:
    """Python in the documents: where it stands, and the code."""
    for document in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md")]):
        for number, code in enumerate(re.findall(r"(?ms)^```python\n(.*?)^```", document.read_text())):
            yield f"{document.relative_to(ROOT)}, snippet {number}", code


def imports(code: str) -> set[str]:
    """Modules of the project that `code` imports."""
    modules = [
        name
        for node in ast.walk(ast.parse(code))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return {name for name in modules if name.split(".")[0] in OWN}


def unknown_names(code: str) -> set[str]:
    """Names that `code` takes from `weir` or `weir.spi` and that are not there."""
    used = re.findall(r"\bweir\.(spi\.)?([A-Za-z]\w*)", code)
    return {name for spi, name in used if name not in (weir.spi.__all__ if spi else weir.__all__)}


def test_documents_show_the_names_of_weir_only() -> None:
    codes = dict(snippets())
    assert sum("weir." in code for code in codes.values()) >= 5, "there is something to check"
    assert {place: imports(code) - {"weir"} for place, code in codes.items() if imports(code) - {"weir"}} == {}
    assert {place: unknown_names(code) for place, code in codes.items() if unknown_names(code)} == {}


@pytest.mark.parametrize("pipeline", sorted((ROOT / "examples/pipelines").glob("*.py")), ids=lambda path: path.stem)
def test_a_pipeline_is_written_as_an_author_writes_one(pipeline: Path) -> None:
    """Beside `weir` it may use the data of the demo, and the default folders of the examples."""
    demo = {"examples", "examples.pipelines", "examples.schemas", "examples.samples.folders"}
    assert imports(pipeline.read_text()) <= {"weir", *demo}


# ---------------------------------------------------------------- what else is installed


def test_no_other_package_has_a_folder_of_one_of_our_names() -> None:
    """Decision 0017: the wheel has names such as `console`; of two packages with one name, the later one wins."""
    distributions = {
        name: set(packages_distributions().get(name, ())) - {"weir-streams", "weir-streams-examples"} for name in OWN
    }
    assert {name: packages for name, packages in distributions.items() if packages} == {}
