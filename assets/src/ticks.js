// Boxes that select rows: with Shift, all from the last ticked box.
import { added } from "./added.js";

let last = null;

added("input[data-tick-all]", (box) => { box.hidden = false; });

document.addEventListener("click", (event) => {
  const box = event.target;
  if (!box.matches?.("input[data-tick]")) return;
  if (event.shiftKey && last?.isConnected) {
    const all = [...document.querySelectorAll("input[data-tick]")];
    const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
    for (const one of all.slice(from, to + 1)) one.checked = box.checked;
  }
  last = box;
  count();
});

document.addEventListener("change", (event) => {
  const all = event.target;
  if (!all.matches?.("input[data-tick-all]")) return;
  document.querySelectorAll("input[data-tick]").forEach((box) => { box.checked = all.checked; });
  count();
});

document.addEventListener("change", (event) => {
  if (event.target.matches?.("input[data-every]")) count();
});

// An element with data-ticked says how many are ticked.
function count() {
  const boxes = document.querySelectorAll("input[data-tick]");
  const every = document.querySelector("input[data-every]");
  const n = document.querySelectorAll("input[data-tick]:checked").length;
  if (!n && every) every.checked = false; // what it is in is not shown any more
  for (const e of document.querySelectorAll("[data-ticked]")) e.textContent = every?.checked ? "All selected" : `${n} selected`;
  for (const all of document.querySelectorAll("input[data-tick-all]")) {
    all.checked = n > 0 && n === boxes.length;
    all.indeterminate = n > 0 && n < boxes.length;
  }
  if (n) countMatching();
}

// How many rows match, on all pages, is asked for when the first row is ticked:
// counting them costs more than the page.
async function countMatching() {
  const matching = document.querySelector("[data-matching]");
  const from = matching?.dataset.matching;
  if (!from) return;
  matching.dataset.matching = "";
  const answer = await fetch(from).catch(() => null);
  if (answer?.ok) matching.textContent = (await answer.text()).trim();
}

addEventListener("pageshow", count);
