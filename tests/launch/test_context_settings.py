"""What an operator has configured for Spark stays, where the job master has settings of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.launch.spark import is_local

#: As a master begins: the options that its JVM was started with.
LOOK = """
from runtime.launch.spark import SparkLauncher

launcher = SparkLauncher("settings", "")
context = launcher.open_context(1)
print(context._jvm.System.getProperty("weir.probe"))
print(*context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
launcher.close()
"""


@pytest.mark.slow
def test_java_options_of_an_operator_are_kept(tmp_path: Path) -> None:
    """Trust stores, Kerberos and logging are set so; with a collector of their own the JVM must start as well."""
    options = "-Dweir.probe=kept -XX:+UseParallelGC"
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {options}\n")
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    environment.pop("JAVA_TOOL_OPTIONS", None)  # of the tests: with another collector
    process = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    probe, arguments = process.stdout.splitlines()
    assert probe == "kept"
    assert {"-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1"} <= set(arguments.split())


#: The secret is made in the JVM: settings of PySpark go over a command line, which everybody on the machine can read.
AUTHENTICATED = """
from runtime.launch.spark import SparkLauncher

launcher = SparkLauncher("authenticated", "")
context = launcher.open_context(2)
print(context.getConf().get("spark.authenticate"), context.getConf().get("spark.authenticate.secret"))
print(context.parallelize(range(100), 2).sum())
launcher.close()
"""


@pytest.mark.slow
def test_the_ports_of_a_local_spark_ask_for_a_secret_of_this_run() -> None:
    """The ports of the driver take serialised objects from whoever connects, other users of the machine too."""
    process = subprocess.run([sys.executable, "-c", AUTHENTICATED], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["true", "None", str(sum(range(100)))], process.stderr


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]"])
def test_a_local_spark_makes_its_secret_itself(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["", "spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_a_cluster_has_one_secret_that_its_administrator_sets(master: str) -> None:
    assert not is_local(master)


#: What a run asks of a standalone cluster; none is there, and none is needed for it.
ASK = """
from runtime.launch.spark import SparkLauncher

conf = SparkLauncher("settings", "spark://127.0.0.1:1")._conf(3)
names = "cores.max", "executor.heartbeatInterval", "network.timeoutInterval", "driver.host", "driver.bindAddress"
print(*(conf.get(f"spark.{name}") for name in names))
"""


@pytest.mark.slow
def test_a_run_takes_the_cores_that_it_needs_and_keeps_what_an_operator_has_set(tmp_path: Path) -> None:
    """Executors of two cores come whole, so three slots take four cores."""
    defaults = "spark.executor.cores 2\nspark.executor.heartbeatInterval 9s\nspark.cores.max 100\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    environment.pop("SPARK_LOCAL_IP", None)
    process = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["4", "None", "5s", "127.0.0.1", "127.0.0.1"]


#: A version's settings reach Spark; its UI is on, on this machine only, and its event log is where it was asked for.
SEEN = """
import urllib.request
from runtime.launch.spark import SparkLauncher

launcher = SparkLauncher("seen, run 7", "local[2]", {"spark.sql.shuffle.partitions": "3"})
assert launcher.ui_address == ""
context = launcher.open_context(1)
context.parallelize(range(10), 2).sum()
print(context.getConf().get("spark.sql.shuffle.partitions"), context.getConf().get("spark.ui.killEnabled"))
print(launcher.ui_address)
print("seen, run 7" in urllib.request.urlopen(launcher.ui_address + "/jobs/").read().decode())
launcher.close()
"""


@pytest.mark.slow
def test_spark_shows_what_it_does(tmp_path: Path) -> None:
    environment = {**os.environ, "WEIR_SPARK_EVENT_LOG": str(tmp_path / "events")}
    environment.pop("SPARK_LOCAL_IP", None)
    process = subprocess.run([sys.executable, "-c", SEEN], env=environment, capture_output=True, text=True, check=False)
    settings, address, flag = process.stdout.splitlines() or ("", "", process.stderr)
    assert settings == "3 false"
    assert address.startswith(("http://127.0.0.1:", "http://localhost:"))
    assert flag == "True"
    (log,) = (tmp_path / "events").iterdir()
    written = "".join(path.read_text() for path in ([log] if log.is_file() else sorted(log.iterdir())))
    assert "SparkListenerJobEnd" in written


#: PySpark joins name and value by `=`, so a name can hold options of the JVM: here, a command for its first error.
ATTACK = """
import sys
from runtime.launch.spark import SparkLauncher

name = f'spark.driver.extraJavaOptions=-XX:OnOutOfMemoryError="touch {sys.argv[1]}" -XX:MaxMetaspaceSize'
SparkLauncher("attack", "", {name: "12m"}).open_context(1)
"""

BATCH_ATTACK = """
import sys
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.batch.master import batch_settings

name = f'spark.driver.extraJavaOptions=-XX:OnOutOfMemoryError="touch {sys.argv[1]}" -XX:MaxMetaspaceSize'
with spark_session(batch_settings("attack", 1, {name: "12m"})):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [ATTACK, BATCH_ATTACK], ids=["streaming", "batch"])
def test_a_stored_version_runs_no_command_by_its_settings(program: str, tmp_path: Path) -> None:
    """The job master checks the settings again just before the context, whichever console has stored them."""
    proof = tmp_path / "proof"
    environment = {**os.environ}
    environment.pop("JAVA_TOOL_OPTIONS", None)
    command = [sys.executable, "-c", program, str(proof)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert not proof.exists(), "the settings of a version have run a command as the service account"
    assert "not the name of a Spark setting" in process.stderr.splitlines()[-1]
