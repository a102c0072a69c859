"""Runs `python -m spark_jobs …` in forks of one process that has imported it: no command pays for the imports again.

Started as `python -m tests.spark_jobs.command_server`. A request is a line of JSON on stdin: `arguments`, `cwd`, `env`,
and the files `stdin`, `stdout`, `stderr`. The answer is a line with the exit code. Each command has an environment,
a working folder and file descriptors of its own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from runtime.dataflow.pipelines import registry
from spark_jobs.__main__ import main


def serve() -> None:
    registry()  # imports the pipelines
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(request: dict[str, Any]) -> None:
    """In the child. Never returns."""
    code = 1
    try:
        for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(request[name], flags), descriptor)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        os.environ.clear()
        os.environ.update(request["env"])
        sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)  # packages that are installed for this command
        os.chdir(request["cwd"])
        code = main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
