// Keys of the console. An element with `data-key` is reached by that key, or by two keys in a row: a link is followed, a
// switch (`data-switch`) is pressed, a field or a button gets focus. No key acts while a field has focus or a dialog is
// open, except Ctrl-K.

const PAIR_MS = 1500;
const FIELDS = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";
const help = document.getElementById("keys");
const palette = document.getElementById("palette");
let first = "";  // first key of a pair
let firstAt = 0;

const keyed = () => [...document.querySelectorAll("[data-key]:not(:disabled)")];

function reach(element) {
  if (element instanceof HTMLAnchorElement || "switch" in element.dataset) element.click();
  else { element.focus(); element.select?.(); }
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) {
    event.preventDefault();
    if (palette.open) palette.close(); else openPalette();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(FIELDS) || document.querySelector("dialog[open]")) return;
  const pair = first && event.timeStamp - firstAt < PAIR_MS ? `${first} ${event.key}` : "";
  const found = (pair && keyed().find((e) => e.dataset.key === pair)) || keyed().find((e) => e.dataset.key === event.key);
  first = event.key;
  firstAt = event.timeStamp;
  if (found) reach(found);
  else if (event.key === "?") openHelp();
  else if (event.key === "/") openPalette();
  else if (event.key === "j" || event.key === "k") moveRow(event.key === "j" ? 1 : -1);
  else return;
  event.preventDefault();
  first = "";
});

// ---------------------------------------------------------------- rows of tables

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  row?.querySelector("a[href]").focus();
}

// ---------------------------------------------------------------- help: the keys of this page

const label = (element) => element.dataset.keyLabel ?? element.textContent.trim();

function openHelp() {
  const list = help.querySelector("[data-page-keys]");
  list.replaceChildren(...keyed().map((element) => {
    const row = document.createElement("div"), key = document.createElement("dt"), what = document.createElement("dd");
    key.append(...element.dataset.key.split(" ").flatMap((part) => {
      const cap = document.createElement("kbd");
      cap.textContent = part;
      return [cap, " "];
    }));
    what.textContent = label(element);
    row.append(key, what);
    return row;
  }));
  help.showModal();
}

document.getElementById("open-keys").hidden = false;
document.getElementById("open-keys").addEventListener("click", openHelp);

// ---------------------------------------------------------------- palette: acts of this page, and jobs by name

const input = palette.querySelector("input"), options = palette.querySelector("[role=listbox]");
let entries = [];  // {name, go}
let chosen = 0;
let asked = 0;     // number of the newest request

function openPalette() {
  input.value = "";
  palette.showModal();
  fill();
}

async function fill() {
  const number = ++asked, wanted = input.value.trim().toLowerCase();
  const here = keyed().filter((element) => label(element).toLowerCase().includes(wanted))
    .map((element) => ({ name: label(element), go: () => reach(element) }));
  const response = await fetch(`${palette.dataset.names}?${new URLSearchParams({ q: wanted })}`).catch(() => null);
  const { jobs } = response?.ok ? await response.json() : { jobs: [] };
  if (number !== asked) return;
  entries = [...here, ...jobs.map(({ name, url }) => ({ name, go: () => location.assign(url) }))];
  chosen = 0;
  show();
}

function show() {
  options.replaceChildren(...entries.map(({ name }, at) => {
    const option = document.createElement("li");
    option.id = `palette-${at}`;
    option.role = "option";
    option.ariaSelected = String(at === chosen);
    option.textContent = name;
    return option;
  }));
  palette.querySelector("[data-none]").hidden = entries.length > 0;
  input.setAttribute("aria-expanded", String(entries.length > 0));
  if (entries.length) input.setAttribute("aria-activedescendant", `palette-${chosen}`);
  else input.removeAttribute("aria-activedescendant");
  options.children[chosen]?.scrollIntoView({ block: "nearest" });
}

function go(at) {
  palette.close();
  entries[at]?.go();
}

input.addEventListener("input", fill);
input.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && entries.length) { chosen = (chosen + step + entries.length) % entries.length; show(); }
  else if (event.key === "Enter") go(chosen);
  else return;
  event.preventDefault();
});
options.addEventListener("click", ({ target }) => {
  const at = [...options.children].indexOf(target);
  if (at >= 0) go(at);
});

// ---------------------------------------------------------------- checkpoint strip: one tab stop, arrows between columns

function rove(chosenColumn) {
  const columns = [...document.querySelectorAll(".strip a")];
  const stop = chosenColumn ?? columns.find((column) => column === document.activeElement) ?? columns.at(-1);
  for (const column of columns) column.setAttribute("tabindex", column === stop ? "0" : "-1");
}

document.addEventListener("keydown", (event) => {
  const from = event.target.closest?.(".strip a");
  if (!from) return;
  const columns = [...from.closest(".strip").querySelectorAll("a")], at = columns.indexOf(from);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: columns.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  rove(columns[Math.min(Math.max(to, 0), columns.length - 1)]);
  columns.find((column) => column.tabIndex === 0).focus();
});

document.addEventListener("htmx:oobAfterSwap", () => rove());
rove();

// ---------------------------------------------------------------- announcement of a new state, once

const stateOf = () => document.querySelector("main .status.large .word")?.textContent.trim() ?? "";
let state = stateOf();

document.addEventListener("htmx:oobAfterSwap", () => {
  const now = stateOf();
  if (!now || now === state) return;
  state = now;
  document.getElementById("announcement").textContent = `${document.querySelector("h1").textContent.trim()}: ${now}`;
});

// ---------------------------------------------------------------- zone of the browser, as a choice of times

const zones = document.getElementById("zone-choice"), own = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (![...zones.elements].some(({ value }) => value === own)) {
  const choice = { name: "zone", value: own, textContent: own, ariaPressed: "false" };
  zones.append(Object.assign(document.createElement("button"), choice));
}
