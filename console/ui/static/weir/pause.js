// The switch that pauses the updates of a page. The browser keeps the choice by address, also after a reload; a browser
// that refuses storage keeps it until then. Pages do not update by themselves without scripts, so the switch is hidden
// there.

const button = document.getElementById("pause");
const notice = document.getElementById("paused");
const place = `weir-paused ${location.pathname}`;
const root = document.documentElement;

// The result of `use`; null if the browser refuses storage, which it does by an exception.
function withStorage(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

// `since`: time of the pause in ms; null: the page is live.
function show(since) {
  if (since === null) delete root.dataset.paused;
  else root.dataset.paused = since;
  button.setAttribute("aria-pressed", String(since !== null));
  notice.hidden = since === null;
  notice.textContent = since === null ? "" :
    `Updates are paused: the page shows its state of ${new Date(Number(since)).toISOString().slice(0, 19).replace("T", " ")} UTC.`;
}

if (button) button.hidden = false;
if (button && notice) {
  if (withStorage((kept) => kept.getItem(place)) !== null) show(Date.now());  // a reload has read the present state
  button.addEventListener("click", () => {
    const since = "paused" in root.dataset ? null : Date.now();
    withStorage((kept) => since === null ? kept.removeItem(place) : kept.setItem(place, "1"));
    show(since);
    if (since === null) document.dispatchEvent(new Event("weir:resume"));
  });
}
