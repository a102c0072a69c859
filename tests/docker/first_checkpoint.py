"""`python -m tests.docker.first_checkpoint`: starts the demo's job on the stack of `var` and waits for a checkpoint."""

from __future__ import annotations

import sys

from tqdm import tqdm

from examples.demo import steps
from examples.demo.api import Api
from examples.demo.children import Children
from examples.demo.story import SLOW_FEED_S, define
from examples.environment import Environment


def main() -> None:
    environment = Environment.read(None)
    api = Api.login(environment.url, environment.user, environment.password)
    with Children(environment) as children, tqdm(disable=True) as bar:
        story = define(api, environment, children, bar)
        children.feeder(story.flights, SLOW_FEED_S)
        steps.start(story, 2)
        story.until("the first checkpoint", lambda _: story.completed_checkpoints() or None)
        story.operate("cancel")
    sys.stdout.write("first checkpoint completed\n")


if __name__ == "__main__":
    main()
