// The cursor and the brush of the plots on the page of a job. Without scripts, the plots show their newest values, and
// the parts of the time axis are links to the checkpoints of a span.

const clock = (ms, long) => new Date(ms).toISOString().slice(long ? 5 : 11, 19).replace("T", " ");

const root = () => document.querySelector("[data-timeline]");
let at = null;      // time under the cursor, in ms
let anchor = null;  // other end of the span that is being chosen
let row = null;     // operator under the pointer

const limits = (timeline) => [Number(timeline.dataset.begin), Number(timeline.dataset.end)];

// The area of the plots, to which the cursor and the brush are relative.
function area(timeline) {
  const body = timeline.querySelector(".plot-body").getBoundingClientRect(), whole = timeline.getBoundingClientRect();
  return { left: body.left - whole.left, width: body.width, page: body.left };
}

function timeOf(timeline, clientX) {
  const [begin, end] = limits(timeline), { page, width } = area(timeline);
  return begin + Math.min(Math.max((clientX - page) / width, 0), 1) * (end - begin);
}

function place(element, timeline, from, to) {
  const [begin, end] = limits(timeline), { left, width } = area(timeline);
  const x = (ms) => left + ((ms - begin) / (end - begin)) * width;
  element.style.left = `${x(Math.min(from, to))}px`;
  element.style.width = `${Math.max(1, Math.abs(x(to) - x(from)))}px`;
  element.hidden = false;
}

function show() {
  const timeline = root();
  if (!timeline) return;
  const cursor = timeline.querySelector("[data-cursor]"), brush = timeline.querySelector("[data-brush]");
  timeline.classList.toggle("has-cursor", at !== null);
  if (at === null) cursor.hidden = true; else place(cursor, timeline, at, at);
  if (anchor === null || at === null) brush.hidden = true; else place(brush, timeline, anchor, at);
  for (const body of timeline.querySelectorAll(".plot-body[data-begin]")) {
    const index = Math.floor((at - Number(body.dataset.begin)) / Number(body.dataset.step));
    for (const output of body.parentElement.querySelectorAll("output")) {
      const text = at === null ? output.dataset.newest : output.dataset.values.split("|")[index] || "–";
      if (output.textContent !== text) output.textContent = text;
    }
  }
  const long = Number(timeline.dataset.end) - Number(timeline.dataset.begin) > 86400000;
  const span = at === null ? "" : anchor === null ? clock(at, long) : `${clock(Math.min(anchor, at), long)} – ${clock(Math.max(anchor, at), long)}`;
  timeline.querySelector("[data-time]").textContent = span;
  showLoad(timeline);
}

const percent = (letter) => (letter.charCodeAt(0) - 65) * 4;

function showLoad(timeline) {
  const read = timeline.querySelector("[data-heat]"), load = timeline.querySelector("[data-heat-begin]");
  if (!read) return;
  const operator = row === null ? null : load.children[row];
  const index = Math.floor((at - Number(load.dataset.heatBegin)) / Number(load.dataset.heatStep));
  const code = at === null || !operator ? "" : operator.dataset.codes.slice(2 * index, 2 * index + 2);
  if (!operator) read.textContent = "";
  else if (!code || code[0] === "-") read.textContent = `${operator.dataset.name}: –`;
  else read.textContent = `${operator.dataset.name}: busy ${percent(code[0])} %, backpressured ${percent(code[1])} %`;
}

// A span of at least a hundredth of the axis; a shorter one is a click.
function choose() {
  const timeline = root(), [begin, end] = limits(timeline);
  const from = Math.min(anchor, at), to = Math.max(anchor, at);
  anchor = null;
  if (to - from < (end - begin) / 100) return show();
  const query = new URLSearchParams(location.search);
  query.delete("before");
  query.set("from", new Date(from).toISOString());
  query.set("to", new Date(to).toISOString());
  location.assign(`${location.pathname}?${query}#checkpoints-head`);
}

document.addEventListener("pointermove", (event) => {
  const timeline = root();
  if (!timeline) return;
  const inside = event.target instanceof Element && event.target.closest(".plot-body");
  if (!inside && anchor === null) {
    if (at !== null && document.activeElement !== timeline) { at = null; row = null; show(); }
    return;
  }
  at = timeOf(timeline, event.clientX);
  const heat = timeline.querySelector(".heat")?.getBoundingClientRect();
  const px = Number(timeline.querySelector("[data-row-px]")?.dataset.rowPx);
  row = heat && event.clientY >= heat.top && event.clientY < heat.bottom ? Math.floor((event.clientY - heat.top) / px) : null;
  show();
});

document.addEventListener("pointerdown", (event) => {
  const timeline = root();
  if (!timeline || event.button !== 0 || event.pointerType === "touch" || !event.target.closest?.(".plot-body")) return;
  event.preventDefault();
  timeline.focus({ preventScroll: true });
  anchor = at = timeOf(timeline, event.clientX);
  show();
});

document.addEventListener("pointerup", () => { if (anchor !== null && at !== null) choose(); });

document.addEventListener("keydown", (event) => {
  const timeline = root();
  if (!timeline || document.activeElement !== timeline) return;
  const body = timeline.querySelector(".plot-body[data-begin]"), [begin, end] = limits(timeline);
  const moves = { ArrowLeft: -Number(body.dataset.step), ArrowRight: Number(body.dataset.step) };
  if (event.key in moves) {
    if (event.shiftKey) anchor ??= at ?? end; else anchor = null;
    at = Math.min(Math.max((at ?? end) + moves[event.key], begin), end - 1);
  } else if (event.key === "Enter" && anchor !== null && at !== null) choose();
  else if (event.key === "Escape") { at = anchor = row = null; }
  else return;
  event.preventDefault();
  show();
  announce(timeline);
});

function announce(timeline) {
  const parts = [...timeline.querySelectorAll(".plot-legend li")].map((item) => item.textContent.trim());
  document.querySelector("[data-announce]").textContent = `${timeline.querySelector("[data-time]").textContent}: ${parts.join(", ")}`;
}

document.addEventListener("focusout", (event) => { if (event.target === root()) { at = anchor = row = null; show(); } });
document.addEventListener("htmx:oobAfterSwap", () => { if (at !== null) show(); });
