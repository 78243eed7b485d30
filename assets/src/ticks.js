// Checkboxes that select rows. With Shift, all rows from the last selected one.
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

// count shows the number of selected rows in elements with data-ticked.
function count() {
  const boxes = document.querySelectorAll("input[data-tick]");
  const every = document.querySelector("input[data-every]");
  const n = document.querySelectorAll("input[data-tick]:checked").length;
  if (!n && every) every.checked = false; // the bar with this box is hidden
  for (const e of document.querySelectorAll("[data-ticked]")) e.textContent = every?.checked ? "All selected" : `${n} selected`;
  for (const all of document.querySelectorAll("input[data-tick-all]")) {
    all.checked = n > 0 && n === boxes.length;
    all.indeterminate = n > 0 && n < boxes.length;
  }
  if (n) countMatching();
}

// Load the number of matching rows on all pages when the first row is selected: counting them is
// more expensive than the page.
async function countMatching() {
  const matching = document.querySelector("[data-matching]");
  const from = matching?.dataset.matching;
  if (!from) return;
  matching.dataset.matching = "";
  const answer = await fetch(from).catch(() => null);
  if (answer?.ok) matching.textContent = (await answer.text()).trim();
}

addEventListener("pageshow", count);
