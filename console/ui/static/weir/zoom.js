// Zoom of the job graph by buttons, keys, and the wheel with Ctrl, and an overview while the picture does not fit. The
// region of the picture scrolls by itself, by keyboard too, and by dragging with a mouse.

const MAX_SCALE = 4, MIN_SCALE = 0.2, STEP = 1.25;
const MIN_DRAG_PX = 4;  // a shorter way is a click
const place = `weir-zoom ${location.pathname} ${new URLSearchParams(location.search).get("graph") ?? ""}`;
const region = document.getElementById("graph-region");
const overview = document.getElementById("graph-overview");
const level = document.getElementById("zoom-level");
const picture = () => region.querySelector("svg.graph");

// ---------------------------------------------------------------- zoom

const scaleOf = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;

// The width of the picture at `scale`. A live update replaces the picture, not the region, so the zoom stays.
function setScale(scale) {
  region.classList.toggle("zoomed", scale !== null);
  if (scale !== null) region.style.setProperty("--graph-width", `${(picture().viewBox.baseVal.width * scale).toFixed(1)}px`);
}

// Zooms by `factor` around a point of the window, by default the middle of the region. `null`: back to the width of the page.
function zoom(factor, x, y) {
  const svg = picture();
  if (!svg) return;
  const frame = region.getBoundingClientRect(), before = svg.getBoundingClientRect();
  const [px, py] = [x ?? frame.x + frame.width / 2, y ?? frame.y + frame.height / 2];
  const scale = factor === null ? null : Math.min(MAX_SCALE, Math.max(MIN_SCALE, scaleOf(svg) * factor));
  setScale(scale);
  const after = svg.getBoundingClientRect();
  region.scrollLeft += after.x + ((px - before.x) / before.width) * after.width - px;
  region.scrollTop += after.y + ((py - before.y) / before.height) * after.height - py;
  keep(scale);
  showLevel();
  showOverview();
}

// The choice of an operator loads the page anew: the browser keeps the zoom of a job until its tab is closed.
function keep(scale) {
  try {
    if (scale === null) sessionStorage.removeItem(place);
    else sessionStorage.setItem(place, scale.toFixed(3));
  } catch { /* a browser that refuses storage keeps the zoom until the page is left */ }
}

function kept() {
  try {
    return Number(sessionStorage.getItem(place)) || null;
  } catch {
    return null;
  }
}

const showLevel = () => { level.textContent = picture() ? `${Math.round(scaleOf(picture()) * 100)} %` : ""; };

for (const [id, factor] of [["zoom-in", STEP], ["zoom-out", 1 / STEP], ["zoom-reset", null]]) {
  document.getElementById(id).addEventListener("click", () => zoom(factor));
}

region.addEventListener("wheel", (event) => {
  if (!event.ctrlKey || !picture()) return;
  event.preventDefault();
  zoom(STEP ** (event.deltaY < 0 ? 1 : -1), event.clientX, event.clientY);
}, { passive: false });

// ---------------------------------------------------------------- dragging

let grip = null;  // the place of a pressed mouse and of the region then, and whether the mouse has moved since

region.addEventListener("pointerdown", ({ pointerType, button, clientX: x, clientY: y }) => {
  if (pointerType !== "mouse" || button !== 0 || overview.hidden) return;
  grip = { x, y, left: region.scrollLeft, top: region.scrollTop, moved: false };
});

region.addEventListener("pointermove", (event) => {
  if (!grip) return;
  const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
  if (!grip.moved && Math.hypot(dx, dy) < MIN_DRAG_PX) return;
  if (!grip.moved) region.setPointerCapture(event.pointerId);
  grip.moved = true;
  region.scrollLeft = grip.left - dx;
  region.scrollTop = grip.top - dy;
});

// A drag that ends on a node is no click on it. The click follows the release within the same task of the browser.
const release = () => { setTimeout(() => { grip = null; }); };
region.addEventListener("pointerup", release);
region.addEventListener("pointercancel", release);
region.addEventListener("click", (event) => { if (grip?.moved) event.preventDefault(); }, true);
region.addEventListener("dragstart", (event) => event.preventDefault());

// ---------------------------------------------------------------- overview

const OVERVIEW_WIDTH = 240, OVERVIEW_HEIGHT = 96;  // at most, in px
const SVG = "http://www.w3.org/2000/svg";
const isCut = () => region.scrollWidth > region.clientWidth + 1 || region.scrollHeight > region.clientHeight + 1;
const seen = document.createElementNS(SVG, "rect");  // the visible part
seen.setAttribute("class", "seen");

function copy(part, name, attributes) {
  const made = document.createElementNS(SVG, part.tagName);
  made.setAttribute("class", name);
  for (const attribute of attributes) made.setAttribute(attribute, part.getAttribute(attribute));
  return made;
}

function drawOverview() {
  const svg = picture(), small = overview.querySelector("svg");
  if (!svg) return;
  const { width, height } = svg.viewBox.baseVal, scale = Math.min(OVERVIEW_WIDTH / width, OVERVIEW_HEIGHT / height);
  small.setAttribute("viewBox", svg.getAttribute("viewBox"));
  small.setAttribute("width", (width * scale).toFixed(1));
  small.setAttribute("height", (height * scale).toFixed(1));
  const edges = [...svg.querySelectorAll(".wire")].map((wire) => copy(wire, "small-edge", ["d"]));
  const nodes = [...svg.querySelectorAll(".node")].map((node) => {
    const level = ["failed", "attention"].find((name) => node.classList.contains(name)) ?? "";
    const box = copy(node.querySelector(".frame"), `small-node ${level}`, ["width", "height"]);
    box.setAttribute("transform", node.getAttribute("transform"));
    return box;
  });
  small.replaceChildren(...edges, ...nodes, seen);
}

function showOverview() {
  const svg = picture();
  overview.hidden = !svg || !isCut();
  region.classList.toggle("cut", !overview.hidden);
  if (overview.hidden) return;
  const scale = scaleOf(svg), frame = region.getBoundingClientRect(), box = svg.getBoundingClientRect();
  const values = { x: (frame.x - box.x) / scale, y: (frame.y - box.y) / scale,
    width: region.clientWidth / scale, height: region.clientHeight / scale };
  for (const [name, value] of Object.entries(values)) seen.setAttribute(name, value.toFixed(1));
}

// The part of the graph at a point of the overview moves to the middle of the region.
function goTo(event) {
  const small = overview.querySelector("svg"), box = small.getBoundingClientRect(), svg = picture().getBoundingClientRect();
  const frame = region.getBoundingClientRect();
  region.scrollLeft += svg.x + ((event.clientX - box.x) / box.width) * svg.width - frame.x - frame.width / 2;
  region.scrollTop += svg.y + ((event.clientY - box.y) / box.height) * svg.height - frame.y - frame.height / 2;
}

overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); goTo(event); });
overview.addEventListener("pointermove", (event) => { if (overview.hasPointerCapture(event.pointerId)) goTo(event); });
region.addEventListener("scroll", showOverview);
new ResizeObserver(() => { showLevel(); showOverview(); }).observe(region);

// ---------------------------------------------------------------- begin, and after a live update

function refresh() {
  document.getElementById("graph-zoom").hidden = !picture();
  showLevel();
  drawOverview();
  showOverview();
}

document.addEventListener("htmx:oobAfterSwap", (event) => { if (event.detail.target.id === "live-graph") refresh(); });
if (picture() && kept()) setScale(kept());
refresh();
