// The button of a form waits until the required boxes are ticked, and until a field differs from its present value
// (`data-now`). A button with `data-waits-for="plan"` waits until the plan of the choice is shown: it posts this plan.
// The text of `data-waits` gives the reason. Without scripts the console refuses the request instead.

function isWaiting(form) {
  const fields = [...form.elements], compared = fields.filter(({ dataset }) => "now" in dataset);
  return fields.some((field) => field.type === "checkbox" && field.required && !field.checked)
    || (compared.length > 0 && compared.every((field) => field.value === field.dataset.now));
}

// Whether a value of the choice differs from that of the shown plan.
function isOtherPlan(form) {
  const choice = document.querySelector("form[hx-target='#plan']"), chosen = choice && new FormData(choice);
  const shown = [...form.querySelectorAll("#shown-plan input")];
  return shown.some(({ name, value }) => chosen?.has(name) && chosen.get(name) !== value);
}

function show() {
  const reasons = new Map();  // by button, those for which it waits
  for (const reason of document.querySelectorAll("[data-waits]")) {
    const button = document.getElementById(reason.dataset.waits);
    const waits = !button.disabled && (reason.dataset.waitsFor === "plan" ? isOtherPlan : isWaiting)(button.form);
    reason.hidden = !waits;
    reasons.set(button, [...(reasons.get(button) ?? []), ...(waits ? [reason.id] : [])]);
  }
  for (const [button, ids] of reasons) {
    button.setAttribute("aria-disabled", String(ids.length > 0));
    if (ids.length) button.setAttribute("aria-describedby", ids.join(" "));
    else button.removeAttribute("aria-describedby");
  }
}

show();
addEventListener("pageshow", show);  // the browser restores fields after this script has run
for (const event of ["input", "htmx:oobAfterSwap", "htmx:afterSwap"]) document.addEventListener(event, show);
document.addEventListener("submit", (event) => {
  if (event.submitter?.ariaDisabled === "true") event.preventDefault();
});
