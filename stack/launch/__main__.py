"""`python3 -m stack.launch [--dev] [--browser]`: prepares this checkout to run. A repetition takes under a second."""

from __future__ import annotations

import argparse
import os
import sys

from stack.launch import apt, browser, java, kernels, venv
from stack.launch.choice import Refuse, Use, choose
from stack.launch.machine import inspect_machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m stack.launch", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also install the tools of developers, and all connectors")
    parser.add_argument("--browser", action="store_true", help="also find or install Chromium")
    arguments = parser.parse_args()
    try:
        _prepare_python(venv.DEV_LOCK if arguments.dev else venv.DEMO_LOCK)
        _prepare_java()
        _prepare_kernels()
        if arguments.browser:
            _prepare_browser()
    except venv.SetupFailed as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


def _log(name: str) -> str:
    return os.path.join(ROOT, "var", "log", name)


def _prepare_python(lock: str) -> None:
    if venv.is_current(ROOT, lock):
        return
    choice = choose(inspect_machine(os.environ))
    if isinstance(choice, Refuse):
        raise venv.SetupFailed(choice.advice)
    _install_packages(choice)
    version = "{}.{}".format(*choice.interpreter.version)
    sys.stderr.write(f"Python {version} at {choice.interpreter.path}, {choice.services} Postgres and Redis\n")
    venv.make_venv(ROOT, choice.interpreter.path, lock, _log("install.log"))


def _install_packages(choice: Use) -> None:
    if not choice.packages:
        return
    sys.stderr.write(f"installing {' '.join(choice.packages)} through apt\n")
    if not apt.install([choice.packages], _log("apt.log")):
        raise venv.SetupFailed(f"apt-get install {' '.join(choice.packages)} failed, see {_log('apt.log')}")


def _prepare_java() -> None:
    if java.find_java(os.environ):
        return
    sys.stderr.write("installing Java through apt\n")
    if not (apt.install(java.PACKAGES, _log("apt.log")) and java.find_java(os.environ)):
        raise venv.SetupFailed(java.ADVICE)


def _prepare_kernels() -> None:
    if kernels.is_current(ROOT):
        return
    sys.stderr.write("compiling kernels\n")
    kernels.compile_kernels(ROOT)


def _prepare_browser() -> None:
    if browser.find_chromium():
        return
    sys.stderr.write("looking for Chromium through apt\n")
    if not (apt.install(browser.PACKAGES, _log("apt.log")) and browser.find_chromium()):
        sys.stderr.write(browser.ADVICE + "\n")


if __name__ == "__main__":
    sys.exit(main())
