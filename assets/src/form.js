// Forms. Filters are submitted without empty fields, to keep URLs short. The focus goes to the
// error. A second click on a submit button does nothing.
import { added } from "./added.js";

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method === "get") {
    for (const field of form.elements) {
      if (field.name && !field.value && !field.disabled) {
        field.disabled = true;
        setTimeout(() => { field.disabled = false; });
      }
    }
  } else if (form.method === "post") {
    if (form.dataset.sent !== undefined) event.preventDefault();
    form.dataset.sent = "";
  }
});

// Reset forms of a page that the browser restores from its back/forward cache.
addEventListener("pageshow", () => {
  document.querySelectorAll("form[data-sent]").forEach((form) => { delete form.dataset.sent; });
});

// Changing a filter in the bar applies it. The panels that open below the bar have their own
// button.
document.addEventListener("change", (event) => {
  if (event.target.matches?.(".pills input, [role=search] > .field select")) event.target.form.requestSubmit();
});

// A filter closes when the visitor clicks elsewhere.
document.addEventListener("pointerdown", (event) => {
  for (const open of document.querySelectorAll(".drop[open]")) if (!open.contains(event.target)) open.open = false;
});
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && document.querySelector(".drop[open]");
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});

document.addEventListener("change", (event) => {
  if (event.target.matches?.("[data-submit]")) event.target.form.requestSubmit();
});

// A preset of scopes checks its boxes, and keeps the other fields.
document.addEventListener("click", (event) => {
  const preset = event.target.closest?.("a[data-preset]");
  if (!preset) return;
  event.preventDefault();
  const scopes = preset.dataset.preset.split(",");
  const fields = preset.closest("fieldset");
  for (const box of fields.querySelectorAll("input[type=checkbox]")) box.checked = scopes.includes(box.value);
  for (const a of fields.querySelectorAll("a[data-preset]")) a.toggleAttribute("aria-current", a === preset);
});

// The verdict on a field replaces the error of the submitted value: at the field, and in the list
// on top.
document.addEventListener("htmx:after:swap", () => {
  for (const verdict of document.querySelectorAll("[data-verdict]")) {
    const field = document.getElementById(verdict.dataset.verdict);
    const wrong = Boolean(verdict.querySelector(".fault"));
    field.closest(".field").classList.toggle("wrong", wrong);
    if (wrong) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    const error = document.querySelector(`.alarm li:has([href="#${field.id}"])`);
    if (wrong || !error) continue;
    if (error.parentElement.children.length > 1) error.remove();
    else error.closest(".alarm").remove();
  }
});

document.querySelector("[data-focus]")?.focus();

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

added("input[data-zone]", (input) => {
  if (!zone || document.getElementById("zones")) return;
  const list = document.createElement("datalist");
  list.id = "zones";
  for (const name of [zone, "UTC"]) list.append(new Option(name));
  input.after(list);
  input.setAttribute("list", "zones");
});

// Offer the browser's time zone, unless it is already selected.
added("button[data-zone-choice]", (button) => {
  if (!zone || zone === "UTC" || zone === button.value) return;
  button.value = zone;
  button.textContent = `Local (${zone})`;
  button.hidden = false;
});
