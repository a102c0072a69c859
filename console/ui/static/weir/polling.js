// Polls of an open page. The console sets their pace: each answer names the pause until the next poll. A hidden tab and a
// paused page do not poll. A tab that is seen again and a page that is resumed poll at once.

const POLL = "[data-poll]";
const RETRY_MS = 4_000;  // after an error, or without an answer; doubles with each further one
const MAX_RETRY_MS = 20_000;
const JITTER = 0.25;  // tabs that began together drift apart

let revision = "", shown = "", timer = 0, isAsking = false, failures = 0;

// The values that the poll of a page includes: those of the plan of a restore or rescale that is shown.
const shownPlan = () => [...document.querySelectorAll("#shown-plan input")].map(({ value }) => value).join(" ");

// Never later than the console has asked for.
export function pause(ms, chance) { return ms * (1 - JITTER * chance); }

export function retry(failures) { return Math.min(MAX_RETRY_MS, RETRY_MS * 2 ** (failures - 1)); }

function schedule(ms) {
  clearTimeout(timer);
  timer = setTimeout(ask, pause(ms, Math.random()));
}

function ask() {
  clearTimeout(timer);
  if (isAsking || document.hidden || "paused" in document.documentElement.dataset) return;
  for (const element of document.querySelectorAll(POLL)) element.dispatchEvent(new Event("poll"));
}

document.addEventListener("weir:resume", ask);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
const first = document.querySelector(POLL)?.dataset.poll;
if (first) schedule(Number(first));

// A poll sends the digests of the page's blocks, so that the response contains only changed blocks.
document.addEventListener("htmx:configRequest", (event) => {
  if (!event.target.matches(POLL)) return;
  const blocks = [...document.querySelectorAll("[data-digest]")];
  event.detail.headers["X-Blocks"] = blocks.map((block) => `${block.id.slice("live-".length)}=${block.dataset.digest}`).join(" ");
  if (revision) event.detail.headers["If-None-Match"] = revision;
  shown = shownPlan();
});

document.addEventListener("htmx:beforeRequest", (event) => { if (event.target.matches(POLL)) isAsking = true; });

// An answer about a former plan arrives too late for the plan that the operator has chosen meanwhile.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target.matches(POLL) && shownPlan() !== shown) event.detail.shouldSwap = false;
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.target.matches(POLL)) return;
  const { xhr, successful } = event.detail;
  isAsking = false;
  if (successful) revision = xhr.getResponseHeader("ETag") ?? "";
  failures = successful ? 0 : failures + 1;
  schedule(successful && Number(xhr.getResponseHeader("X-Poll-After")) || retry(Math.max(failures, 1)));
});
