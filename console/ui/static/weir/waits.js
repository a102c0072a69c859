// The button of a form waits until the required boxes are ticked, and until a field differs from its present value
// (`data-now`). The text of `data-waits` gives the reason. Without scripts the console refuses the request instead.

function isWaiting(form) {
  const fields = [...form.elements], compared = fields.filter(({ dataset }) => "now" in dataset);
  return fields.some((field) => field.type === "checkbox" && field.required && !field.checked)
    || (compared.length > 0 && compared.every((field) => field.value === field.dataset.now));
}

function show() {
  for (const reason of document.querySelectorAll("[data-waits]")) {
    const button = document.getElementById(reason.dataset.waits), waits = !button.disabled && isWaiting(button.form);
    reason.hidden = !waits;
    button.setAttribute("aria-disabled", String(waits));
    if (waits) button.setAttribute("aria-describedby", reason.id);
    else button.removeAttribute("aria-describedby");
  }
}

show();
addEventListener("pageshow", show);  // the browser restores fields after this script has run
for (const event of ["input", "htmx:oobAfterSwap", "htmx:afterSwap"]) document.addEventListener(event, show);
document.addEventListener("submit", (event) => {
  if (event.submitter?.ariaDisabled === "true") event.preventDefault();
});
