"""The tag `{% live %}`: a block of a page that a poll replaces when it has changed."""

import re
from hashlib import blake2s

from django.core.cache import caches
from django.template.base import FilterExpression, Node, NodeList, Parser, Token
from django.template.context import Context
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console.ui.zones import chosen_zone

_TICKING = re.compile(r">[^<]*</time>")  # begins with a character that the search can jump to


class LiveNode(Node):
    """A block that a poll may replace, unless the digest shows that the browser already has it.

    Relative times tick in the browser and are not part of the digest. An optional `key` names the content of a block
    that is expensive to render: the block is not rendered while its key is the key in the browser. Such a block must
    not depend on the user, since the cache `fragments` shares it between the requests of an address.
    """

    def __init__(self, name: FilterExpression, nodelist: NodeList, key: FilterExpression | None) -> None:
        self.name = name
        self.nodelist = nodelist
        self.key = key

    def render(self, context: Context) -> SafeString:
        name = str(self.name.resolve(context))
        key = f"{self.key.resolve(context)}{_zone_mark(context)}_" if self.key else ""
        browser_digest = (context.get("known_blocks") or {}).get(name, "")
        if key and browser_digest.startswith(key):
            return mark_safe("")
        content = self._load_or_render(context, name, key) if key else self.nodelist.render(context).strip()
        digest = key + blake2s(_TICKING.sub(">", content).encode(), digest_size=8).hexdigest()
        if browser_digest.rpartition("_")[2] == digest.rpartition("_")[2]:
            return mark_safe("")
        swap = mark_safe(' hx-swap-oob="true"') if context.get("fragment") else ""
        return format_html(
            '<div id="live-{}" data-digest="{}"{}>{}</div>', name, digest, swap, mark_safe(content)  # noqa: S308
        )  # fmt: skip

    def _load_or_render(self, context: Context, name: str, key: str) -> str:
        fragments, address = caches["fragments"], f"{name} {key} {context['request'].get_full_path()}"
        place = blake2s(address.encode(), digest_size=16).hexdigest()
        fragment: str | None = fragments.get(place)
        if fragment is None:
            fragment = str(self.nodelist.render(context).strip())
            fragments.set(place, fragment)
        return fragment


def _zone_mark(context: Context) -> str:
    """A mark of the chosen zone: blocks with a key are shared by all readers, and contain times."""
    zone = chosen_zone(context.get("request"))
    return "" if zone is None else blake2s(zone.key.encode(), digest_size=4).hexdigest()


def live(parser: Parser, token: Token) -> LiveNode:
    """{% live "acts" %} … {% endlive %}: the same block in the page and in the answer to a poll.

    {% live "plots" key %} has a key, which names its content.
    """
    _, name, *key = token.split_contents()
    nodelist = parser.parse(("endlive",))
    parser.delete_first_token()
    return LiveNode(parser.compile_filter(name), nodelist, parser.compile_filter(key[0]) if key else None)
