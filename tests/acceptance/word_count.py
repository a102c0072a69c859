"""An unbounded word count on a whole stack, steered through REST: what was fed to it and what it has committed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from examples.demo.api import Api
from tests.stack.checkout import Checkout
from tests.waiting import until

PATIENCE_S: Final = 240.0  #: nothing here is about speed
WORDS: Final = ("weir", "barrier", "stream", "checkpoint", "savepoint", "drain", "slot", "token")


class WordCount:
    """The running job, what was fed to it and what it has committed."""

    def __init__(
        self,
        checkout: Checkout,
        folder: Path,
        name: str = "words",
        parallelism: int = 2,
        pipeline: str = "wordcount",
        **parameters: Any,
    ) -> None:
        """`parameters` are further parameters of the pipeline."""
        self.checkout = checkout
        self.input, self.output = folder / "in", folder / "out"
        self.input.mkdir(parents=True)
        self.fed: Counter[str] = Counter()
        self._files = 0
        self._seen: dict[str, list[dict[str, Any]]] = {}
        password = (checkout.var / "run/password").read_text().strip()
        self.api = Api.login(checkout.status()["url"].rstrip("/"), "operator", password)
        self.feed(20)
        self.job = int(self.api.post("jobs/", {"name": name, "pipeline": pipeline})["id"])
        params = {"lines_dir": str(self.input), "output_dir": str(self.output), **parameters}
        body = {"parallelism": parallelism, "params": params, "settings": {"checkpoint_interval_ms": 1000}}
        self.api.ready_version(self.job, body, PATIENCE_S)
        self._start()

    def _start(self) -> None:
        self.api.operate(self.job, "start", {}, PATIENCE_S)

    def feed(self, files: int) -> None:
        """Drops small files of text, each by rename."""
        for _ in range(files):
            lines = [" ".join(WORDS[: 1 + (self._files + line) % len(WORDS)]) for line in range(50)]
            self.fed.update(word for line in lines for word in line.split())
            hidden = self.input / f".{self._files:06}"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self.input / f"{self._files:06}.txt")
            self._files += 1

    @property
    def run(self) -> dict[str, Any]:
        return dict(self.api.run(int(self.api.latest_run(self.job)["id"])))

    def slot_pid(self, index: int) -> int:
        """The process of a slot, once the job master has reported it: the run may be running a moment earlier."""

        def pid() -> int:
            slots = self.run["live"].get("slots", ())
            return next((int(slot["pid"]) for slot in slots if slot["index"] == index), 0)

        return until(pid, PATIENCE_S)

    @property
    def committed(self) -> Counter[str]:
        """The newest count of each word in the committed files."""
        counts: Counter[str] = Counter()
        for path in self.output.glob("*.parquet"):
            if path.name not in self._seen and path.name[0] not in "._":
                self._seen[path.name] = pq.read_table(path).to_pylist()
        updates = [(row["word"], row["count"]) for rows in self._seen.values() for row in rows]
        assert len(set(updates)) == len(updates), "counts only rise, so an update that stands twice was written twice"
        for word, count in updates:
            counts[word] = max(counts[word], count)
        return counts

    def is_exact(self) -> bool:
        return self.committed == self.fed

    def newest_checkpoint(self) -> int:
        newest = self.api.get(f"jobs/{self.job}/checkpoints/", outcome="completed", limit=1)["results"]
        return int(newest[0]["number"]) if newest else 0

    def restored_number(self) -> int:
        """The checkpoint that the present attempt started from; 0: from nothing."""
        run = self.run
        attempt = next(a for a in run["attempts"] if a["token"] == run["token"])
        return next(
            (int(c["number"]) for c in self.api.checkpoints(self.job) if c["id"] == attempt["restored_checkpoint"]), 0
        )

    def goes_on(self, after: int) -> bool:
        """Whether the run is running and has completed a checkpoint since `after`."""
        return bool(self.run["state"] == "running" and self.newest_checkpoint() > after)
