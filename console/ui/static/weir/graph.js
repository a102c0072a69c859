// The job graph: one tab stop, with arrows between nodes.

import "./zoom.js";

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const nodes = () => [...document.querySelectorAll(".node-link")].filter((node) => node.checkVisibility());

function rove(chosen) {
  const all = nodes();
  const stop = chosen ?? all.find((node) => node === document.activeElement) ?? all.find((node) => node.ariaCurrent) ?? all[0];
  for (const node of all) node.setAttribute("tabindex", node === stop ? "0" : "-1");
}

// The nearest node in a direction; distance across the direction counts twice.
function neighbour(from, [dx, dy]) {
  const middle = (node) => { const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; };
  const [x, y] = middle(from);
  const found = nodes().map((node) => {
    const [a, b] = middle(node), along = (a - x) * dx + (b - y) * dy;
    return { node, along, far: along + 2 * (Math.abs((a - x) * dy) + Math.abs((b - y) * dx)) };
  });
  return found.filter(({ along }) => along > 4).sort((a, b) => a.far - b.far)[0]?.node;
}

document.addEventListener("keydown", (event) => {
  const from = event.target.closest?.(".node-link"), direction = DIRECTIONS[event.key];
  if (!from || !direction) return;
  event.preventDefault();
  rove(neighbour(from, direction) ?? from);
  nodes().find((node) => node.tabIndex === 0).focus();
});

document.addEventListener("htmx:oobAfterSwap", () => rove());
rove();  // without scripts each node is a tab stop

// A graph that is wider than the page begins with the chosen operator, else with the operator that is failed or slow.
const marked = [".node-link[aria-current]", ".node-link:has(.node.failed)", ".node-link:has(.node.attention)"];
const shown = marked.map((selector) => document.querySelector(selector)).find(Boolean);
if (shown) {
  const region = shown.closest(".scroll"), node = shown.getBoundingClientRect(), box = region.getBoundingClientRect();
  region.scrollLeft += node.x + node.width / 2 - box.x - box.width / 2;
  region.scrollTop += node.y + node.height / 2 - box.y - box.height / 2;
}
