"""The seal of an evidence pack: an HMAC-SHA256 by the keys that sign manifests (`WEIR_MANIFEST_KEY`).

It covers all of the pack as JSON with sorted names, so that white space and the order of members do not matter. A
prefix keeps seals apart from the signatures of manifests.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from django.conf import settings

MEMBER: Final = "seal"
_PREFIX: Final = b"weir-evidence-seal-1\n"


class SealCheck(NamedTuple):
    """Whether a pack is as a console with the same keys made it, and a sentence on it."""

    is_valid: bool
    detail: str


def seal(pack: Mapping[str, Any]) -> str | None:
    """The seal of a pack by the first key; None without keys."""
    keys = settings.WEIR_MANIFEST_KEYS
    return _hmac(pack, keys[0]) if keys else None


def check_seal(pack: Mapping[str, Any]) -> SealCheck:
    seal = pack.get(MEMBER)
    if not settings.WEIR_MANIFEST_KEYS:
        return SealCheck(False, "This console has no key in WEIR_MANIFEST_KEY, so it cannot check a seal.")
    if not isinstance(seal, str) or not seal:
        return SealCheck(False, "The pack has no seal: it was made without a key in WEIR_MANIFEST_KEY.")
    encoded = seal.encode(errors="replace")
    if any(hmac.compare_digest(encoded, _hmac(pack, key).encode()) for key in settings.WEIR_MANIFEST_KEYS):
        return SealCheck(True, "The pack is as a console with a key of WEIR_MANIFEST_KEY made it.")
    return SealCheck(False, "The pack was changed, or made with another key.")


def _hmac(pack: Mapping[str, Any], key: bytes) -> str:
    sealed = {name: value for name, value in pack.items() if name != MEMBER}
    body = json.dumps(sealed, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, _PREFIX + body.encode(), hashlib.sha256).hexdigest()
