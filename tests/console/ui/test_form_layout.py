"""Fields of forms that stand beside each other."""

import pytest

from tests.console.ui import rows
from tests.console.ui.browsing import Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MAX_DISTANCE = 10  #: of a hint from its field
MAX_HEIGHT = 44  #: of a field of a single line
#: For each line of fields, the tops of their controls.
CONTROLS = """[...document.querySelectorAll('.fields')].flatMap((fields) => {
  const lines = {};
  for (const field of fields.querySelectorAll(':scope > .field:not(.check)')) {
    const control = field.querySelector('input, select, textarea'), top = ({ top }) => Math.round(top);
    if (control.checkVisibility())
      (lines[top(field.getBoundingClientRect())] ??= []).push(top(control.getBoundingClientRect()));
  }
  return Object.values(lines);
})"""
#: The distances of hints from their controls.
DISTANCES = """[...document.querySelectorAll('.fields > .field:not(.check):has(.helptext)')].flatMap((field) => {
  const control = field.querySelector('input, select, textarea'), hint = field.querySelector('.helptext');
  return control.checkVisibility() ? [hint.getBoundingClientRect().top - control.getBoundingClientRect().bottom] : [];
})"""


def test_controls_beside_each_other_are_in_line(signed_in: Open, transactional_db: None) -> None:
    """A label of two lines moved its field below those of its neighbours. No field is as high as a text area."""
    rows.operator_user()
    run = rows.run(rows.job())
    snapshot = rows.checkpoint(run, 7)
    job = f"/jobs/{run.job_id}/"
    for width in (1280, 390):
        with signed_in(width) as page:
            for path in (f"{job}edit/", f"{job}rescale/", f"/checkpoints/{snapshot.pk}/clone/", f"{job}versions/new/"):
                page.goto(path)
                lines = page.evaluate(CONTROLS)
                assert any(len(line) > 1 for line in lines) is (width == 1280), path
                assert all(max(line) - min(line) <= 1 for line in lines), (path, lines)
                assert max(page.evaluate(DISTANCES)) <= MAX_DISTANCE, path
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                for field in page.locator(".fields input:visible").all():
                    box = field.bounding_box()
                    assert box is not None
                    assert box["height"] <= MAX_HEIGHT, path
