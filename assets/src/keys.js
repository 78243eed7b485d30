// Keyboard shortcuts; ? lists them. They do nothing if the visitor has turned them off, in a text
// field, or with a modifier key.
const sections = { o: "overview", i: "incidents", s: "subscriptions", d: "deliveries", e: "events", c: "types", p: "programs", t: "tokens", y: "system", l: "alerts", a: "audit" };
const on = document.body.dataset.keys !== undefined;
const sheet = document.getElementById("keys");
let going = 0; // time of the last g

const typing = (e) => e.closest?.("input:not([type=checkbox], [type=radio], [type=submit], [type=button]), textarea, select, [contenteditable], dialog");

function row(step) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((r) => r.querySelector("a, input, button"));
  if (!rows.length) return;
  const at = rows.findIndex((r) => r.contains(document.activeElement));
  const to = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step));
  const target = rows[to].querySelector("a[href], summary") || rows[to].querySelector("input, button"); // the element that Enter activates
  target.focus({ preventScroll: true });
  rows[to].scrollIntoView({ block: "nearest" });
}

const current = () => document.activeElement?.closest("[data-row]");
// ownOrOnly returns the element within the current row, or the only one on the page.
const ownOrOnly = (selector) => {
  const all = (current() ?? document.querySelector("main")).querySelectorAll(selector);
  return all.length === 1 ? all[0] : undefined;
};
const follow = (e) => { e?.click(); return Boolean(e); };

const again = ':is([data-key=resend], :is(.action, .primary):has(use[href="#i-again"])):not(:disabled)';

// Apply a bulk action to the selected rows, or to the current row if none is selected.
function redeliver() {
  const at = current();
  const own = (at || document.querySelector("main"))?.querySelector(again);
  const box = at?.querySelector("input[data-tick]");
  if (own || !box) return follow(own);
  if (!document.querySelector("input[data-tick]:checked")) box.click();
  return follow(document.querySelector("[data-key=redeliver]"));
}

const does = {
  "?": () => { sheet?.showModal(); return Boolean(sheet); },
  "/": () => {
    const field = document.getElementById("find") ?? document.querySelector(".filters input");
    field?.focus();
    field?.select?.();
    return Boolean(field);
  },
  f: () => {
    const first = document.querySelector("[role=search] > :not(.search) :is(a, summary, select)");
    first?.focus();
    return Boolean(first);
  },
  j: () => { row(1); return true; },
  k: () => { row(-1); return true; },
  h: () => follow(document.querySelector(".pager [rel=prev]")),
  l: () => follow(document.querySelector(".pager [rel=next]")),
  x: () => follow(current()?.querySelector("input[data-tick]")),
  r: redeliver,
  p: () => follow(ownOrOnly("[data-key=probe]") ?? document.querySelector("[data-live-toggle]")),
  c: () => follow(ownOrOnly("[data-key=message]")),
  g: (event) => { going = event.timeStamp; return true; },
};

if (on) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (going && event.timeStamp - going < 1500 && sections[event.key]) {
      going = 0;
      if (follow(document.querySelector(`#pages [data-section="${sections[event.key]}"]`))) event.preventDefault();
      return;
    }
    going = 0;
    if (Object.hasOwn(does, event.key) && does[event.key](event)) event.preventDefault();
  });
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-key=sheet]") && sheet) {
    event.preventDefault();
    document.getElementById("account")?.hidePopover?.();
    sheet.showModal();
  }
});
