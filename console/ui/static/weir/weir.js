// Enhancements of pages that work without scripts: the theme changes without a reload, times tick, unchanged blocks keep
// focus and scroll, and a banner says that the page does not update.

import "./pause.js";
import "./polling.js";

const TICK_MS = 1000;

// ---------------------------------------------------------------- theme

function setTheme(form, choice) {
  document.cookie = `weir_theme=${choice}; path=/; max-age=31536000; samesite=lax`;
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === choice));
  }
}

for (const form of document.querySelectorAll("form[data-theme-switch]")) {
  form.addEventListener("submit", (event) => {
    if (!event.submitter?.value) return;
    event.preventDefault();
    setTheme(form, event.submitter.value);
  });
}

// ---------------------------------------------------------------- times, in the formats of console/formats.py

export function lasting(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 60) return `${seconds} s`;
  const [days, hours, minutes, rest] = [86400, 3600, 60, 1].map((unit, i, units) =>
    Math.floor((i ? seconds % units[i - 1] : seconds) / unit));
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  return seconds >= 7 * 86400 ? null : `${lasting(seconds)} ago`;
}

// Times are relative to the server's clock; the page carries the time of its rendering.
const made = Date.parse(document.documentElement.dataset.now ?? "");
const offset = Number.isNaN(made) ? 0 : made - Date.now();

function tick() {
  const now = Date.now() + offset;
  for (const element of document.querySelectorAll("time[data-tick]")) {
    const moment = new Date(element.dateTime);
    const seconds = Math.max(0, Math.floor((now - moment) / 1000));
    const text = element.dataset.tick === "since" ? lasting(seconds) : ago(seconds);
    if (text && element.textContent !== text) element.textContent = text;
    const stale = Number(element.dataset.stale);
    if (stale) element.classList.toggle("stale", seconds > stale);
    localise(element, moment);
  }
}

function localise(element, moment) {
  if (element.dataset.local) return;
  element.dataset.local = "1";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone !== "UTC") element.title += ` · ${moment.toLocaleString()} ${zone}`;
}

setInterval(() => { if (!document.hidden) { tick(); showAge(); } }, TICK_MS);

document.addEventListener("htmx:oobAfterSwap", tick);

// ---------------------------------------------------------------- age of the page

const POLL = "[data-poll]";
const MAX_AGE_MS = 12_000;  // three polls of a busy console
const asOf = document.querySelector("#as-of time");
let asked = 0, answered = Date.now(), seen = Date.now(), reason = "";

function showBanner(text) {
  const banner = document.getElementById("lost");
  if (!banner) return;
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}

// A page that was hidden, or is paused, has asked for nothing.
function showAge() {
  if (!asOf) return;
  const isPaused = "paused" in document.documentElement.dataset, now = Date.now();
  const isOld = !isPaused && now - Math.max(answered, seen) > MAX_AGE_MS;
  asOf.parentElement.classList.toggle("failed", isOld || Boolean(reason));
  if (reason || isOld) showBanner(reason || `This page has not been updated for ${lasting(Math.floor((now - answered) / 1000))}.`);
}

function fail(text) {
  reason = text;
  showBanner(text);
  showAge();
}

document.addEventListener("weir:resume", () => { seen = Date.now(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) seen = Date.now(); });
document.addEventListener("htmx:beforeRequest", (event) => { if (event.target.matches(POLL)) asked = Date.now(); });
document.addEventListener("htmx:sendError", () => fail("The console cannot be reached. This page is out of date; retrying."));
document.addEventListener("htmx:timeout", () => fail("The console does not answer. This page is out of date; retrying."));
document.addEventListener("htmx:responseError", (event) => {
  const status = event.detail.xhr.status;
  if (status === 401 || status === 403) fail("You are signed out. Reload the page to sign in again.");
  else fail(`The console answered with an error (${status}). This page is out of date; retrying.`);
});

// The answer has the state of the time of the question, or of a later one.
document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.detail.successful) return;
  reason = "";
  if (event.target.matches(POLL)) {
    answered = asked;
    if (asOf) asOf.dateTime = new Date(asked + offset).toISOString();
    tick();
  }
  showBanner("");
  showAge();
});

tick();
