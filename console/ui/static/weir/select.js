// Rows that are selected in the list of jobs stay selected when their table changes. A box selects all rows of the page.
// While no row is selected, the acts on selected jobs are disabled, and the text beside them gives the reason.

const acts = document.getElementById("bulk"), all = document.getElementById("select-all");
const boxes = () => [...document.querySelectorAll("input[data-select]")];
const chosen = () => boxes().filter((box) => box.checked);
const selected = new Set(chosen().map((box) => box.value));

function show() {
  const count = chosen().length;
  document.getElementById("bulk-selected").textContent = count ? `Selected jobs: ${count}` : "No job is selected:";
  for (const button of acts.querySelectorAll("button")) button.setAttribute("aria-disabled", String(!count));
  all.checked = count > 0 && count === boxes().length;
  all.indeterminate = count > 0 && !all.checked;
}

if (acts) {
  document.getElementById("select-page").hidden = false;
  show();
  acts.addEventListener("submit", (event) => { if (!chosen().length) event.preventDefault(); });
  addEventListener("pageshow", show);  // the browser restores check boxes after this script has run
  document.addEventListener("change", ({ target }) => {
    if (target !== all && !target.matches("input[data-select]")) return;
    for (const box of target === all ? boxes() : [target]) {
      if (target === all) box.checked = all.checked;
      selected[box.checked ? "add" : "delete"](box.value);
    }
    show();
  });
  document.addEventListener("htmx:oobAfterSwap", () => {
    for (const box of boxes()) box.checked = selected.has(box.value);
    show();
  });
}
