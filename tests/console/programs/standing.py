"""A stand-in for `python -m spark_jobs stand`: reads params from the first line of stdin, reports, ends when asked.

What it does is chosen by the params: {"refuse": …} is a refusal, {"die": …} a death with a code before any step,
{"done": steps} an end by itself after so many steps.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path


def stand(verb: str, arguments: Mapping[str, str]) -> int:
    seen = Path(os.environ["WEIR_VAR"]) / "seen"
    name = f"stage-{arguments['--run']}-{arguments['--operator']}-{arguments['--token']}"
    params, stopping = json.loads(sys.stdin.readline()), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_end_with_stdin, args=(seen / f"{name}.eof",), daemon=True).start()
    (seen / f"{name}.tmp").write_text(json.dumps({"pid": os.getpid(), "verb": verb, **arguments}))
    (seen / f"{name}.tmp").rename(seen / f"{name}.json")
    for word, code, exit_code in (("refuse", "bad-query", 3), ("die", "input-failed", 1)):
        if word in params:
            _say({"error": {"code": code, "field": arguments["--operator"], "detail": params[word]}})
            return exit_code
    steps = 0
    while steps != params.get("done") and not stopping.wait(0.1):
        steps += 1
        _say({"report": {"steps": steps, "figures": [{"label": "Steps", "value": steps, "kind": "count"}]}})
    if stopping.is_set():
        (seen / f"{name}.asked").touch()
    _say({"done": not stopping.is_set()})
    return 0


def _say(line: object) -> None:
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the supervisor is gone: stdin ends too, which ends this process
        threading.Event().wait()


def _end_with_stdin(note: Path) -> None:
    while sys.stdin.read(4096):
        pass
    note.touch()
    os._exit(7)
