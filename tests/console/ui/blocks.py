"""Reading pages: live blocks by name, texts without markup."""

import html
import re
from typing import Any

from django.test import Client

_SPACES = re.compile(r"(<(pre|textarea)\b.*?</\2>)|[ \t\n]+", re.DOTALL)
_BESIDE_BLOCKS = re.compile(
    r" ?(</?(?:caption|d[dlt]|div|h[1-6]|li|ol|option|p|section|summary|t[dhr]|title|ul)\b[^>]*>) ?"
)
_BLOCK = re.compile(r'<div id="live-(?P<name>[\w-]+)" data-digest="(?P<digest>\w+)"(?P<swap> hx-swap-oob="true")?>')
_TIME = re.compile(r"(<time[^>]*>)[^<]*")


class PageClient(Client):
    """Reads pages as a browser does: a line break of a template is a space, which does not show beside a block."""

    def request(self, **request: Any) -> Any:
        response = super().request(**request)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if is_page and not response.streaming and "Content-Encoding" not in response.headers:
            spaced = _SPACES.sub(lambda match: match[1] or " ", response.content.decode())
            response.content = _BESIDE_BLOCKS.sub(r"\1", spaced).encode()
        return response


def text(response: Any) -> str:
    """What a person reads: no tags, single spaces."""
    bare = re.sub(r"<[^>]+>", " ", re.sub(r"<(title|desc)[^>]*>.*?</\1>", " ", response.content.decode()))
    return re.sub(r"\s+", " ", html.unescape(bare)).replace(" ,", ",").replace(" .", ".").replace(" :", ":")


def live(response: Any) -> dict[str, str]:
    """Content of each live block, without the relative times, which tick between two requests."""
    markup = response.content.decode()
    contents = {}
    for match in _BLOCK.finditer(markup):
        contents[match["name"]] = _TIME.sub(r"\1", _until_closed(markup, match.end()))
    return contents


def digests(response: Any) -> dict[str, str]:
    """The digest of each live block, by its name."""
    return {match["name"]: match["digest"] for match in _BLOCK.finditer(response.content.decode())}


def shown_runs(response: Any) -> dict[str, list[str]]:
    """The runs that the polls of an open confirmation name, as query parameters."""
    markup = re.findall(r'<div id="shown-runs?" hidden>(.*?)</div>', response.content.decode())
    return {"run": re.findall(r'name="run" value="(\d+)"', "".join(markup))}


def swapped(response: Any) -> set[str]:
    """Names of the blocks that would replace those in a page."""
    return {match["name"] for match in _BLOCK.finditer(response.content.decode()) if match["swap"]}


def _until_closed(markup: str, start: int) -> str:
    depth, place = 1, start
    for tag in re.finditer(r"<(/?)div\b", markup[start:]):
        depth += -1 if tag[1] else 1
        place = start + tag.start()
        if depth == 0:
            break
    return re.sub(r"\s+", " ", markup[start:place]).strip()
