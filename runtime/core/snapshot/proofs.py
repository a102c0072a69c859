"""The proof of a state: for each key group, the number of its live entries and a hash of their contents.

The live table of an operator counts its puts and deletes, so the proof does not depend on files. Each rewrite of the
state compares its result with the proof: a merge of files, a restore, a split or union of subtasks, a savepoint, a
copy. The hash is the sum of the hashes of all entries modulo 2^64, so it does not depend on their order, and the proofs
of key groups add up over any rescale.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_HASH_BITS: Final = 64
_HASH_MASK: Final = (1 << _HASH_BITS) - 1


class GroupProof(msgspec.Struct, frozen=True, array_like=True):
    """The proof of a key group. `hash`: sum of the hashes of all entries, modulo 2^64."""

    entries: int
    hash: int


StateProof = Mapping[int, GroupProof]  #: by key group; key groups without entries are absent


def add_proofs(proofs: Iterable[StateProof], groups: range | None = None) -> dict[int, GroupProof]:
    """The proof of the entries of all `proofs` together, in `groups` if given."""
    total: dict[int, GroupProof] = {}
    for proof in proofs:
        for group, part in proof.items():
            if groups is None or group in groups:
                entries, hash_sum = (total[group].entries, total[group].hash) if group in total else (0, 0)
                total[group] = GroupProof(entries + part.entries, (hash_sum + part.hash) & _HASH_MASK)
    return total


def total_proof(proofs: Iterable[StateProof]) -> GroupProof:
    """The proof of all entries, whatever their key groups: equal after a redistribution to other key groups."""
    parts = [part for proof in proofs for part in proof.values()]
    return GroupProof(sum(part.entries for part in parts), sum(part.hash for part in parts) & _HASH_MASK)


def proof_difference(expected: StateProof, actual: StateProof) -> str:
    """The first key group whose proofs differ, and how, as a clause; "" if all are equal."""
    for group in sorted({*expected, *actual}):
        first, second = expected.get(group, _NO_ENTRIES), actual.get(group, _NO_ENTRIES)
        if first.entries != second.entries:
            return f"key group {group} has {second.entries} entries instead of {first.entries}"
        if first.hash != second.hash:
            return f"the {first.entries} entries of key group {group} have other contents"
    return ""


_NO_ENTRIES: Final = GroupProof(0, 0)
