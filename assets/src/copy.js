// Copy buttons. They copy the value of data-copy, or the text of the element that data-copy-of
// names. If the clipboard is not available, for example over plain HTTP, they select the text.
import { added } from "./added.js";

added("button[data-copy], button[data-copy-of]", (button) => { button.hidden = false; });

// Without JavaScript, a link with data-copy-of leads to the text.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy], button[data-copy-of], a[data-copy-of]");
  if (!button) return;
  if (button.matches("a")) event.preventDefault();
  const source = button.dataset.copyOf && document.getElementById(button.dataset.copyOf);
  const text = source ? source.textContent : button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    say(button, "Copied");
  } catch {
    if (button.matches("a")) {
      location.assign(button.href);
      return;
    }
    const shown = source || button.parentElement.querySelector("code");
    if (!shown) return;
    shown.closest("details")?.setAttribute("open", "");
    getSelection().selectAllChildren(shown);
    say(button, "Text selected: copy it with your keyboard");
  }
});

// A result with a new link is copied at once.
added("[data-copy-now]", (button) => { setTimeout(() => button.click()); });

// A click on an abbreviated ID selects all of it; see user-select in the style sheet.
function say(button, text) {
  let status = document.getElementById("copied");
  if (!status) {
    status = document.createElement("p");
    status.id = "copied";
    status.className = "folded";
    status.setAttribute("role", "status");
    document.body.append(status);
  }
  status.textContent = text;
  const label = button.querySelector("[data-copy-label]");
  const was = label?.textContent;
  if (label) label.textContent = text;
  button.dataset.done = "";
  setTimeout(() => {
    delete button.dataset.done;
    status.textContent = "";
    if (label) label.textContent = was;
  }, 2000);
}
