"""A stand-in for `python -m spark_jobs`: reads params on stdin, answers as the real command line does.

What it does is chosen by the params: {"reject": …}, {"crash": …}, {"garble": …}, {"hang": …}; for a query of state by
its name.
"""

import json
import sys
import time

from tests.console.graphs import CODE
from tests.console.programs.standing import stand

VERB, *REST = sys.argv[1:]
NAMED = REST[1:] if VERB == "stand" else REST
ARGUMENTS = dict(zip(NAMED[::2], NAMED[1::2], strict=True))
TABLE = {"columns": [{"name": "airline", "type": "string", "is_key": False}], "rows": [["AA"]], "is_cut": False}
GRAPH = {"code": CODE, "operators": [], "edges": [], "max_parallelism": 128, "parallelism": 1}


def answer() -> object:
    if VERB == "pipelines":
        return [{"name": "sums", "description": "Sums", "schema": {"type": "object"}}]
    if VERB == "state":
        return {"table": {**TABLE, "asked": ARGUMENTS}}
    return {"graph": {**GRAPH, "asked": ARGUMENTS}}


def main() -> int:
    if VERB == "stand":
        return stand(REST[0], ARGUMENTS)
    params = json.loads(sys.stdin.read() or "null") or {}
    if VERB == "state":
        sys.stdout.write(json.dumps({"progress": {"phase": "reading", "tasks": 4, "tasks_done": 1}}) + "\n")
        sys.stdout.flush()
        params = {params["name"]: "cannot be read"}
    wanted = {name: detail for name, detail in params.items() if name in ("reject", "crash", "garble", "hang")}
    if wanted and params.get("only_in", VERB) == VERB:
        if "hang" in wanted:
            time.sleep(600)
        if "crash" in wanted:
            sys.stderr.write(f"{wanted['crash']}\n")
            return 1
        if "garble" in wanted:
            sys.stdout.write("not JSON")
            return 0
        sys.stdout.write(json.dumps({"error": {"code": "bad-path", "field": "path", "detail": wanted["reject"]}}))
        return 3
    sys.stdout.write(json.dumps(answer()))
    return 0


sys.exit(main())
