"""What a job promises from end to end, and the sentences that say why it is not more."""

import pytest

from runtime.core.job.graph import Guarantee, Role
from runtime.core.job.guarantee import CheckpointMode as Mode
from runtime.core.job.guarantee import ConnectorGuarantee, EndToEndGuarantee, end_to_end_guarantee

EXACTLY, AT_LEAST, NONE = Guarantee
LINES, WORDS = ConnectorGuarantee("lines", Role.SOURCE, EXACTLY), ConnectorGuarantee("words", Role.SINK, EXACTLY)
SOCKET = ConnectorGuarantee("socket", Role.SOURCE, NONE)
MAIL = ConnectorGuarantee("mail", Role.SOURCE, AT_LEAST)
PRINT = ConnectorGuarantee("print", Role.SINK, AT_LEAST)
THROUGH = ConnectorGuarantee("through", Role.OPERATOR, AT_LEAST)
HOLE = ConnectorGuarantee("hole", Role.SINK, NONE)


def test_exactly_once_needs_the_mode_and_every_end() -> None:
    """S1-01, S1-02."""
    assert end_to_end_guarantee(Mode.EXACTLY_ONCE, [LINES, WORDS]) == EndToEndGuarantee(EXACTLY)


@pytest.mark.parametrize(
    ("mode", "ends", "expected", "why"),
    [
        (Mode.AT_LEAST_ONCE, [LINES, WORDS], AT_LEAST, ["mode is at least once"]),
        (Mode.EXACTLY_ONCE, [LINES, PRINT], AT_LEAST, ["Sink print publishes records before their checkpoint"]),
        (Mode.EXACTLY_ONCE, [LINES, THROUGH, WORDS], AT_LEAST, ["Sink through publishes records before"]),
        (Mode.EXACTLY_ONCE, [MAIL, WORDS], AT_LEAST, ["Source mail may repeat records"]),
        (Mode.EXACTLY_ONCE, [SOCKET, WORDS], NONE, ["Source socket cannot rewind to a position"]),
        (Mode.EXACTLY_ONCE, [LINES, HOLE], NONE, ["Sink hole may lose"]),
        (Mode.AT_LEAST_ONCE, [SOCKET, PRINT], NONE, ["mode is", "Source socket", "Sink print"]),
    ],
)
def test_the_weakest_decides_and_each_weak_one_says_why(
    mode: Mode, ends: list[ConnectorGuarantee], expected: Guarantee, why: list[str]
) -> None:
    """S1-01, S1-23, S4-47: exactly once is not claimed over a source that cannot go back."""
    result = end_to_end_guarantee(mode, ends)
    assert result.guarantee is expected
    assert len(result.reasons) == len(why)
    assert all(part in sentence for part, sentence in zip(why, result.reasons, strict=True))
