// Suggestions below the search field while the visitor types.
import { added } from "./added.js";

added("form.find", (form) => {
  const input = form.querySelector("input[name=q]");
  const list = form.querySelector("[data-found]");
  let wait, asked;

  const close = () => { list.hidden = true; };

  async function suggest() {
    asked?.abort();
    const q = input.value.trim();
    if (q.length < 2 || /^[\w.-]+:/.test(q)) return close();
    asked = new AbortController();
    try {
      const answer = await fetch(`${form.getAttribute("action")}/suggest?${new URLSearchParams({ q })}`, { signal: asked.signal });
      if (!answer.ok) return close();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      list.replaceChildren(...page.body.childNodes);
      list.hidden = !list.querySelector("a");
    } catch { /* another letter was typed, or the service is not reachable */ }
  }

  input.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(suggest, 200);
  });
  form.addEventListener("focusout", (event) => {
    if (!form.contains(event.relatedTarget)) close();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      close();
      input.focus();
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || list.hidden) return;
    const stops = [input, ...list.querySelectorAll("a")];
    const at = stops.indexOf(document.activeElement);
    stops[(at + step + stops.length) % stops.length].focus();
    event.preventDefault();
  });
});
