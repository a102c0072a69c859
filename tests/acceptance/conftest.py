"""One whole stack for the acceptance tests: up in a folder of its own, down at the end, and nothing left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.checkout import Checkout


@pytest.fixture(scope="package")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    checkout = Checkout(tmp_path_factory.mktemp("acceptance") / "var")
    checkout.run("up", WEIR_RESTART_DELAY_S="5")
    try:
        yield checkout
    finally:
        checkout.remove()
    assert checkout.left == []
