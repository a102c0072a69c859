"""Pictures for the documents keep the exact colour of their ground, whatever else they show."""

from PIL import Image

from tests.console.ui.palette import reduce_colours

GROUND, PANEL, RARE = (245, 247, 247), (255, 255, 255), (176, 42, 32)


def crowded(rows: int) -> Image.Image:
    """A picture with more colours than a palette has: `rows` of texts on panels, then the ground."""
    picture = Image.new("RGB", (200, 200), GROUND)
    for at in range(200 * rows):
        picture.putpixel((at % 200, at // 200), PANEL if at % 3 else (at % 256, at // 3 % 256, at * 7 % 256))
    return picture


def test_the_ground_of_all_pictures_is_equal() -> None:
    for rows in (15, 60, 150):
        few = reduce_colours(crowded(rows))
        assert few.mode == "P"
        assert few.convert("RGB").getpixel((100, 199)) == GROUND
        assert few.convert("RGB").getpixel((1, 0)) == PANEL


def test_a_rare_colour_stays_recognizable() -> None:
    picture = crowded(0)
    picture.putpixel((100, 199), RARE)
    colour = reduce_colours(picture).convert("RGB").getpixel((100, 199))
    assert isinstance(colour, tuple)
    assert all(abs(a - b) < 24 for a, b in zip(colour, RARE, strict=True))
