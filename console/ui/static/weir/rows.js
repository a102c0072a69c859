// Fields of lists and maps: adds and removes rows. Without this script, blank rows add and emptied rows remove.

function button(label, press) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "button quiet";
  made.textContent = label;
  made.addEventListener("click", press);
  return made;
}

function titleOf(rows) { return rows.closest(".field").querySelector("label").firstChild.textContent.trim(); }

function inputs(row) { return [...row.querySelectorAll("input, select")]; }

function number(rows) {
  rows.querySelectorAll("[data-row]").forEach((row, at) => {
    for (const input of inputs(row)) {
      input.setAttribute("aria-label", input.getAttribute("aria-label").replace(/\d+$/, at + 1));
      input.id = input.id.replace(/_\d+(_value)?$/, `_${at + 1}$1`);
    }
    row.querySelector("button").setAttribute("aria-label", `Remove row ${at + 1} of ${titleOf(rows)}`);
  });
}

function equip(rows, row) {
  row.append(button("Remove", () => {
    const all = rows.querySelectorAll("[data-row]");
    if (all.length > 1) row.remove();
    else for (const input of inputs(row)) input.value = "";
    number(rows);
    inputs(rows.querySelector("[data-row]"))[0].focus();
  }));
}

for (const rows of document.querySelectorAll("[data-rows]")) {
  const all = [...rows.querySelectorAll("[data-row]")];
  all.slice(1).filter((row) => inputs(row).every((input) => !input.value)).forEach((row) => row.remove());
  rows.querySelectorAll("[data-row]").forEach((row) => equip(rows, row));
  const add = button("Add a row", () => {
    const last = [...rows.querySelectorAll("[data-row]")].pop();
    const row = last.cloneNode(true);
    row.querySelector("button").remove();
    for (const input of inputs(row)) input.value = "";
    last.after(row);
    equip(rows, row);
    number(rows);
    inputs(row)[0].focus();
  });
  add.setAttribute("aria-label", `Add a row to ${titleOf(rows)}`);
  rows.append(add);
  number(rows);
}
