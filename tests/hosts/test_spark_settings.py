"""What an operator has configured for Spark stays, where the job master has settings of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: As a master begins: the options that its JVM was started with.
LOOK = """
from runtime.hosts.spark import SparkLauncher

launcher = SparkLauncher("settings", "")
context = launcher._open(1)
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
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    probe, arguments = done.stdout.splitlines()
    assert probe == "kept"
    assert {"-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1"} <= set(arguments.split())
