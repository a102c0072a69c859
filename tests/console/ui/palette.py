"""Pictures with few colours: PNG files of half the size, whose grounds have exactly the colours of the page."""

from itertools import chain
from typing import Any, Final

from PIL import Image

COLOURS: Final = 256
FREQUENT: Final = 32  #: grounds, panels, texts and lines


def reduce_colours(picture: Image.Image) -> Image.Image:
    """The picture with a palette: its most frequent colours, and others that cover all of its colours.

    Rare colours have meanings, so the palette must cover them. Pillow computes covering colours as means, which would
    give the ground of every picture another shade: each colour of the palette becomes the most frequent one of its
    pixels.
    """
    exact = picture.convert("RGB")
    covering = exact.quantize(COLOURS - FREQUENT, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    counted = sorted(_colours(exact), reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([*chain(*(colour for _, colour in counted[:FREQUENT])), *(covering.getpalette() or ())])
    few = exact.quantize(palette=palette, dither=Image.Dither.NONE)
    indexes = Image.frombytes("L", few.size, few.tobytes())
    shades = sorted(_colours(Image.merge("RGBA", (*exact.split(), indexes))))
    frequent = {index: (r, g, b) for _, (r, g, b, index) in shades}  # the last of each index is the most frequent
    few.putpalette([*chain(*(frequent.get(index, (0, 0, 0)) for index in range(max(frequent) + 1)))])
    return few


def _colours(picture: Image.Image) -> list[tuple[int, Any]]:
    """The number of pixels of each colour, with the colour."""
    counts: Any = picture.getcolors(picture.width * picture.height)
    return list(counts)
