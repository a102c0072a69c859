// Rows that are selected in the list of jobs stay selected when their table changes.

const selected = new Set([...document.querySelectorAll("input[data-select]:checked")].map((box) => box.value));

document.addEventListener("change", ({ target }) => {
  if (target.matches("input[data-select]")) selected[target.checked ? "add" : "delete"](target.value);
});
document.addEventListener("htmx:oobAfterSwap", () => {
  for (const box of document.querySelectorAll("input[data-select]")) box.checked = selected.has(box.value);
});
