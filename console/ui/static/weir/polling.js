// The pace of polls. htmx asks every 2 s; most of these turns are skipped in a hidden tab, while nothing changes, and
// while the console is slow. So many open tabs slow each other down instead of the console.

const POLL = "[data-poll]";
const LONGEST_MS = 20_000;
const QUIET_MS = 10_000;  // longest pause because nothing changes
const TURN_MS = 2_000;
const IDLE_SHARE = 50;  // a tab waits this many times the duration of its last poll
const JITTER = 0.5;  // tabs that began together drift apart
const EARLY_MS = 200;  // a turn that comes this much too early is used

let revision = "", shown = "";
let began = 0, due = 0, unchanged = 0;

// The values that the poll of a page includes: those of the plan of a restore or rescale that is shown.
const shownPlan = () => [...document.querySelectorAll("#shown-plan input")].map(({ value }) => value).join(" ");

// The pause after a poll that took `ms`, with `quiet` polls in succession without a change.
export function pause(ms, quiet) {
  const calm = quiet > 1 ? Math.min(QUIET_MS, TURN_MS * 2 ** (quiet - 1)) : TURN_MS;
  return Math.min(LONGEST_MS, Math.max(calm, IDLE_SHARE * ms));
}

function wake() {
  due = unchanged = 0;
  for (const element of document.querySelectorAll(POLL)) element.dispatchEvent(new Event("wake"));
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (!event.target.matches(POLL)) return;
  const isPaused = "paused" in document.documentElement.dataset;
  if (isPaused || document.hidden || performance.now() < due - EARLY_MS) event.preventDefault();
  else began = performance.now();
});

document.addEventListener("weir:resume", wake);
document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });

// A reader who acts after a quiet time sees the newest state at once.
for (const name of ["pointerdown", "keydown"]) {
  document.addEventListener(name, () => { if (unchanged > 1) wake(); });
}

// A poll sends the digests of the page's blocks, so that the response contains only changed blocks.
document.addEventListener("htmx:configRequest", (event) => {
  if (!event.target.matches(POLL)) return;
  const blocks = [...document.querySelectorAll("[data-digest]")];
  event.detail.headers["X-Blocks"] = blocks.map((block) => `${block.id.slice("live-".length)}=${block.dataset.digest}`).join(" ");
  if (revision) event.detail.headers["If-None-Match"] = revision;
  shown = shownPlan();
});

// An answer about a former plan arrives too late for the plan that the operator has chosen meanwhile.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target.matches(POLL) && shownPlan() !== shown) event.detail.shouldSwap = false;
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.target.matches(POLL)) return;
  const { xhr, successful } = event.detail;
  const isUnchanged = xhr.status === 304 || xhr.status === 204;
  if (successful) revision = xhr.getResponseHeader("ETag") ?? "";
  unchanged = isUnchanged ? unchanged + 1 : 0;
  due = began + pause(performance.now() - began, unchanged) * (1 + JITTER * (Math.random() - 0.5));
});
