// Interactive charts. A chart shows the values at the pointer, or at the position that the arrow
// keys select, and links to the records behind them. The values come from the chart's table.
// With data-pick the visitor selects a time range, by dragging or with Shift.
import { added } from "./added.js";

added("figure[data-chart]", (figure) => {
  const rows = [...figure.querySelectorAll("tbody tr")];
  const svg = figure.querySelector(".plot > svg");
  if (!svg || rows.length < 2) return;
  const names = [...figure.querySelectorAll("thead th")].map((th) => th.textContent.trim());
  const bars = figure.dataset.chart === "bars";
  const field = figure.dataset.pick;
  const make = (tag, name, parent) => {
    const e = document.createElement(tag);
    e.className = name;
    parent.append(e);
    return e;
  };

  const over = document.createElement("div");
  over.className = "over";
  svg.after(over);
  const mark = make("span", "mark", over);
  mark.hidden = true;
  const slider = make("input", "", over);
  Object.assign(slider, { type: "range", min: 0, max: rows.length - 1, step: 1, value: rows.length - 1 });
  slider.setAttribute("aria-label", `${figure.querySelector("figcaption strong").textContent}: values`);
  const readout = make("p", "readout", figure.querySelector("figcaption"));
  const says = make("span", "", readout);
  const link = make("a", "", readout);
  link.hidden = true;

  let anchor = null; // start of the selected range
  let at = rows.length - 1;

  const hrefOf = (i) => rows[i].querySelector("th a")?.href;

  // address returns the URL of the marked range.
  function address() {
    const [low, high] = [Math.min(anchor ?? at, at), Math.max(anchor ?? at, at)];
    const first = hrefOf(low);
    if (low === high || !field || !first || !hrefOf(high)) return hrefOf(at);
    const to = `filter[${field}.to]`;
    const url = new URL(first);
    url.searchParams.set(to, new URL(hrefOf(high)).searchParams.get(to));
    return url.href;
  }

  function show(i) {
    at = i;
    const [low, high] = [Math.min(anchor ?? at, at), Math.max(anchor ?? at, at)];
    const step = bars ? 1 / rows.length : 1 / (rows.length - 1);
    mark.hidden = false;
    mark.style.insetInlineStart = `${low * step * 100}%`;
    mark.style.width = bars ? `${(high - low + 1) * step * 100}%` : "0";
    const cells = [...rows[i].children].map((c) => c.textContent.trim().replace(/\s+/g, " "));
    let text = `${cells[0]}: ${cells.slice(1).map((v, k) => `${names[k + 1]} ${v}`).join(", ")}`;
    if (low !== high) text = `${rows[low].children[0].textContent.trim()} to ${rows[high].children[0].textContent.trim()}`;
    says.textContent = `${text} `;
    slider.value = i;
    slider.setAttribute("aria-valuetext", text);
    const href = address();
    link.hidden = !href;
    if (href) Object.assign(link, { href, textContent: field ? "Show this range" : "Deliveries" });
  }

  const place = (event) => {
    const box = over.getBoundingClientRect();
    const x = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.9999);
    return bars ? Math.floor(x * rows.length) : Math.round(x * (rows.length - 1));
  };
  const go = () => {
    const href = address();
    if (href) location.assign(href);
  };

  over.addEventListener("pointermove", (event) => show(place(event)));
  over.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    anchor = field ? place(event) : null;
    show(place(event));
    if (event.pointerType === "mouse") over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointerup", (event) => {
    if (event.button === 0 && event.pointerType === "mouse") go(); // touch shows the values; the link opens the records
  });
  over.addEventListener("pointerleave", () => {
    if (document.activeElement === slider) return;
    mark.hidden = true;
    says.textContent = "";
    link.hidden = true;
  });
  slider.addEventListener("focus", () => show(at));
  slider.addEventListener("input", () => show(Number(slider.value)));
  slider.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go();
    else if (field && event.shiftKey && event.key.startsWith("Arrow")) anchor ??= at;
    else if (event.key.startsWith("Arrow") || event.key === "Escape") anchor = null;
  });
});
