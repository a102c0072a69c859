"""The effects of an operation in words, for the page that asks for its confirmation."""

from dataclasses import dataclass

from console.operations.preview import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The effects of an operation in sentences and `numbers`, and a gentler alternative."""

    title: str
    sentences: tuple[str, ...]
    numbers: tuple[Number, ...] = ()
    instead: str
    gentler: str = ""  #: the kind of operation that `instead` names, "" if it names none
    dangerous: bool
    verb: str = ""  #: label of the button, if it is not the title
    restores: bool = False  #: the page offers a restore first
    repeats: bool = False  #: repeated output must be accepted
    saves: bool = False  #: takes a savepoint, which can be named and pinned
    run: int | None = None  #: the request is for this run, and refused for a later run
