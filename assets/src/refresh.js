// Polling of parts of a page. An element with an ID and data-part, a URL, is loaded from there
// every few seconds and morphed into the element with its ID. The focus stays where it is, and
// elements with hx-morph-skip, such as the result of a probe, do not change. A part that is in use
// is changed later. #updated, the time of the last refresh, changes once all parts have.
const pause = 5000;
let timer = 0;
let loading = false;
let ended = false; // the session has ended

// #updated has no purpose on pages whose content has no part.
const parts = () => [...document.querySelectorAll(document.querySelector("main [data-part]") ? "[data-part]" : "[data-part]:not(#updated)")];
const address = (part) => new URL(part.dataset.part, location.href).href;

function inUse(part) {
  if (part.querySelector(":is(input, select, textarea):focus, :active, :popover-open")) return true;
  const s = getSelection();
  return Boolean(s && !s.isCollapsed && part.contains(s.anchorNode));
}

// put morphs a part into a newer one, and keeps its details elements open.
function put(part, fresh) {
  const [was, is] = [part, fresh].map((e) => [...e.querySelectorAll("details")]);
  if (was.length === is.length) is.forEach((e, i) => { e.open = was[i].open; });
  return window.htmx.swap({ sourceElement: part, target: part, text: fresh.outerHTML, swap: "outerMorph" });
}

async function load(from) {
  const response = await fetch(from, { headers: { "HX-Request": "true" } }); // does not count as activity of the session
  ended ||= response.redirected || response.status === 401; // the page stays, because a form may be filled in
  if (!response.ok || ended) throw new Error(response.statusText);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  let all = true;
  let updated;
  for (const part of document.querySelectorAll("[data-part]")) {
    if (address(part) !== from) continue;
    const fresh = page.getElementById(part.id);
    if (part.id === "updated") updated = [part, fresh];
    else if (fresh && !inUse(part)) await put(part, fresh);
    else all = all && !fresh;
  }
  if (updated?.[1] && all) await put(...updated);
}

function stale(is) {
  for (const e of document.querySelectorAll("#updated [data-stale]")) e.hidden = !is;
  document.getElementById("service-status")?.toggleAttribute("data-cut", is);
}

async function refresh() {
  clearTimeout(timer);
  if (!document.hidden && !loading && !ended) {
    loading = true;
    try {
      for (const from of new Set(parts().map(address))) await load(from);
      stale(false);
    } catch {
      stale(true);
    }
    loading = false;
  }
  if (!ended) timer = setTimeout(refresh, pause);
}

if (document.querySelector("[data-part]")) {
  timer = setTimeout(refresh, pause);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  // A swapped-in result, such as a ping's, may change other parts of the page; a probe that follows
  // changes them a moment later.
  document.addEventListener("htmx:after:swap", () => {
    const result = document.querySelector("[data-refresh]");
    result?.removeAttribute("data-refresh");
    if (result) for (const delay of [0, 1000]) setTimeout(refresh, delay);
  });
}
