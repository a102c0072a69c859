"""Installs the peers' environments below var/peers: `python -m benchmarks.peers`. Each has its own pinned packages.

`sampler` is no peer: `benchmarks.profile` samples Weir with it.

Apache Flink 2.3 and Bytewax 0.21 both run on Python 3.11. Flink supports Python up to 3.12, and Bytewax has no wheel
for later versions.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

from benchmarks.child import ROOT

PEERS: Final = ROOT / "var" / "peers"
PINS: Final = {
    "flink": ["apache-flink==2.3.0", "apache-beam==2.61.0", "pyarrow==16.1.0", "numpy==2.1.3"],
    "bytewax": ["bytewax==0.21.1"],
    "pathway": ["pathway==0.33.0"],
    "sampler": ["py-spy==0.4.3"],
}
PYTHONS: Final = ("python3.11", "python3.12")


def make(name: str, python: str) -> bool:
    """Makes an environment, unless it exists with these pins. Returns whether it exists now."""
    folder, pins = PEERS / name, "\n".join(PINS[name])
    stamp = folder / "weir-stamp"
    if stamp.exists() and stamp.read_text() == pins:
        sys.stderr.write(f"{name}: already there\n")
        return True
    sys.stderr.write(f"{name}: installing {', '.join(PINS[name])}\n")
    shutil.rmtree(folder, ignore_errors=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "--quiet", *PINS[name]]
    for command in ([python, "-m", "venv", str(folder)], pip):
        if subprocess.run(command, check=False, env=environment).returncode:
            sys.stderr.write(f"{name}: not installed\n")
            return False
    stamp.write_text(pins)
    return True


def main() -> int:
    python = next((path for name in PYTHONS if (path := shutil.which(name))), None)
    if python is None:
        sys.stderr.write(f"no interpreter for the peers: install one of {', '.join(PYTHONS)}\n")
        return 1
    failed = [name for name in PINS if not make(name, python)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
