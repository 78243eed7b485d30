// Checkbox pickers: a search, buttons that select a group or all boxes, and the number of selected
// boxes.
import { added } from "./added.js";

added("[data-picker]", (picker) => {
  const boxes = [...picker.querySelectorAll("input[type=checkbox]")];
  const groups = [...picker.querySelectorAll("[data-picker-group]")];
  const search = picker.querySelector("[data-picker-search]");
  const every = picker.querySelector("[data-picker-all]");
  const count = picker.querySelector("[data-picker-count]");
  const none = picker.querySelector("[data-picker-none]");
  const line = (box) => box.closest("label");
  const shown = (within) => boxes.filter((box) => within.contains(box) && !line(box).hidden);

  // Selected boxes are always visible, even when the search does not match them.
  function look() {
    const words = search.value.trim().toLowerCase().split(/\s+/);
    for (const box of boxes) {
      line(box).hidden = !box.checked && !words.every((word) => line(box).dataset.pickerText.includes(word));
    }
    for (const group of groups) group.hidden = shown(group).length === 0;
    none.hidden = shown(picker).length > 0;
    tell();
  }

  function tell() {
    count.textContent = `${boxes.filter((box) => box.checked).length} of ${boxes.length}`;
    for (const group of groups) {
      group.querySelector("[data-picker-word]").textContent = shown(group).every((box) => box.checked) ? "None" : "All";
    }
    every.textContent = shown(picker).every((box) => box.checked) ? "None" : "All";
  }

  function toggle(within) {
    const some = shown(within);
    const on = !some.every((box) => box.checked);
    for (const box of some) box.checked = on;
    picker.dispatchEvent(new Event("change", { bubbles: true }));
    look();
  }

  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault(); // Enter would submit the form
  });
  every.addEventListener("click", () => toggle(picker));
  for (const group of groups) {
    const button = group.querySelector("[data-picker-toggle]");
    button.hidden = false;
    button.addEventListener("click", () => toggle(group));
  }
  picker.addEventListener("change", tell);
  picker.querySelector("[data-picker-tools]").hidden = false;
  tell();
});
