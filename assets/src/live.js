// Live updates of a page (see web/stream.go). htmx keeps the connection: after an interruption it
// reconnects with backoff from the last ID, and it closes the connection while the tab is hidden.
// This module applies the messages to the page, once per animation frame:
//
// An element with an ID replaces the element with that ID, unless the page is paused or the focus
// is within it; then it waits. Any other element is inserted at the top of the list. If the list is
// paused or in use, new rows are counted, and Show inserts them. An element with data-update only
// replaces. A row with data-late is inserted by its time.
//
// A list message begins with an element data-live-batch: the number of new rows and the rate per
// second. Above the rate that a list can show, messages contain no rows. The new rows are counted,
// and Show loads the newest ones.
const bar = document.querySelector("[data-live]");
const kept = 50; // maximum number of rows on the page, and of waiting rows; liveRows in web/delivery_live.go

if (bar) {
  const toggle = bar.querySelector("[data-live-toggle]");
  const label = bar.querySelector("[data-live-label]");
  const show = bar.querySelector("[data-live-show]");
  const status = bar.querySelector("[data-live-status]");
  const use = toggle.querySelector("use");
  const noun = bar.dataset.live;
  const nouns = noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  const number = new Intl.NumberFormat("en");
  let paused = false;
  let cut = false; // the connection is down, and htmx reconnects
  let batches = []; // fragments since the last frame
  let frame = 0;
  let waiting = []; // new rows, oldest first
  let missed = 0; // new rows that are not in waiting
  let more = false; // missed is a lower bound
  let rate = 0; // new rows per second
  let calm = 0; // the timer that resets the rate
  const held = new Map(); // replacements that wait, by ID

  const list = () => document.querySelector("[data-live-list]");
  const busy = (l) => l && (l.contains(document.activeElement) || l.querySelector("input[data-tick]:checked") || l.getBoundingClientRect().top < 0);
  const fresh = () => `${more ? "at least " : ""}${number.format(missed || waiting.length)} new`;

  function tell() {
    bar.dataset.state = paused ? "paused" : cut ? "cut" : "on";
    label.textContent = paused ? "Paused" : cut ? "Connecting" : "Live";
    toggle.setAttribute("aria-pressed", String(paused));
    toggle.setAttribute("aria-label", paused ? "Paused: resume live updates" : "Live: pause updates");
    use.setAttribute("href", paused ? "#i-play" : "#i-pause");
    const none = missed + waiting.length === 0;
    if (none && document.activeElement === show) toggle.focus();
    show.hidden = none;
    show.textContent = missed && rate ? `${fresh()} · ${number.format(rate)}/s · Show` : `${fresh()} · Show`;
  }

  let said = 0;
  let saidAt = -Infinity;
  function announce() {
    said ||= setTimeout(() => {
      said = 0;
      const n = missed || waiting.length;
      const state = document.querySelector("#record [data-state]"); // on the page of one record
      if (n) status.textContent = `${fresh()} ${n === 1 ? noun : nouns} to show`;
      else if (state && !held.size) status.textContent = `Updated: ${state.dataset.state}`;
      if (n) saidAt = performance.now(); // announce a count only now and then
    }, performance.now() - saidAt > 15_000 ? 2000 : 15_000);
  }

  // replace applies the waiting replacements that are not blocked, and announces them.
  function replace() {
    const before = held.size;
    for (const [id, e] of held) {
      const there = document.getElementById(id);
      if (there && (paused || there.contains(document.activeElement))) continue;
      held.delete(id);
      if (!there) continue;
      const [was, is] = [there, e].map((row) => row.querySelector("input[data-tick]"));
      if (was && is) is.checked = was.checked;
      there.replaceWith(e);
    }
    if (held.size < before) announce();
  }

  const timeOf = (row) => row.querySelector(".w-age time")?.dateTime ?? "";

  // follower returns the row before which a late row is inserted: null for the end of the list,
  // undefined if the row belongs on the next page.
  function follower(row) {
    const rows = [...list()?.children ?? []];
    const at = timeOf(row);
    // IDs of the same millisecond ascend, as in the list.
    const next = rows.find((r) => timeOf(r) < at || timeOf(r) === at && r.id < row.id) ?? null;
    const more = rows.length >= kept || document.querySelector(".pager [rel=next]");
    return next === null && more ? undefined : next;
  }

  // insert adds rows at the top of the list, and late rows by their time. It removes rows beyond
  // the maximum from the end.
  function insert(rows) {
    const l = list();
    if (!l || !rows.length) {
      if (rows.length) location.reload(); // the page has no list yet
      return;
    }
    for (const row of rows.filter((r) => r.dataset.late !== undefined)) {
      const next = follower(row);
      if (next !== undefined) l.insertBefore(row, next);
    }
    l.prepend(...rows.filter((r) => r.dataset.late === undefined).reverse());
    seen();
    if (l.children.length <= kept) return;
    while (l.children.length > kept) l.lastElementChild.remove();
    older(l.lastElementChild);
  }

  // seen removes the position from which the server counts new rows from the link to the next page.
  function seen() {
    const link = document.querySelector(".pager [rel=next]");
    if (!link) return;
    const to = new URL(link.href);
    to.searchParams.delete("since");
    link.href = to.href;
  }

  // older points the link to the next page at the rows that are older than a row.
  function older(row) {
    const own = document.querySelector("[data-live-older]");
    const link = document.querySelector(".pager [rel=next]") ?? own?.querySelector("a");
    if (!own || !link) return;
    const to = new URL(own.querySelector("a").href);
    to.searchParams.set("behind", row.id.replace(/^d-/, ""));
    link.href = to.href;
    own.hidden = !own.contains(link);
  }

  // take sorts the elements of a message into replacements, waiting rows and rows to insert.
  function take(content, hold) {
    const batch = content.querySelector("[data-live-batch]");
    const rows = [];
    let late = 0;
    let known = 0; // new rows already on the page, which may be newer than the start of its stream
    for (const e of [...content.children]) {
      if (e === batch) continue;
      const waits = e.id ? waiting.findIndex((w) => w.id === e.id) : -1;
      const shown = e.id && document.getElementById(e.id);
      if ((shown || waits >= 0) && e.dataset.update === undefined && e.dataset.late === undefined) known++;
      if (shown) held.set(e.id, e);
      else if (waits >= 0) {
        e.removeAttribute("data-update");
        waiting[waits] = e;
      } else if (e.dataset.late !== undefined) {
        if (follower(e) === undefined) continue;
        rows.push(e);
        late++;
      } else if (e.dataset.update === undefined) rows.push(e);
    }
    const count = batch ? Number(batch.dataset.count) - known + late : rows.length;
    rate = batch ? Number(batch.dataset.rate) : 0;
    more ||= batch?.dataset.more !== undefined;
    if (missed || count > rows.length || waiting.length + rows.length > kept) {
      missed = (missed || waiting.length) + count;
      waiting = [];
    } else if (hold || waiting.length) {
      waiting.push(...rows);
    } else {
      insert(rows);
    }
  }

  function apply() {
    frame = 0;
    if (!batches.length) return;
    const l = list();
    const hold = paused || busy(l); // measure the page once, before it changes
    for (const content of batches.splice(0)) take(content, hold);
    if (missed && !l && !paused) location.reload(); // the page has no list yet
    replace();
    tell();
    announce();
  }

  // renew loads the newest rows, and resumes the stream after them.
  async function renew() {
    const answer = await fetch(location.href).catch(() => null);
    const page = new DOMParser().parseFromString(answer?.ok ? await answer.text() : "", "text/html");
    const [to, from, stream] = [list(), page.querySelector("[data-live-list]"), page.querySelector("[data-live-source]")];
    if (!to || !from || !stream) {
      location.reload(); // the page no longer has a list, or the session has ended
      return;
    }
    requestAnimationFrame(() => {
      to.replaceChildren(...from.children);
      held.clear();
      [batches, waiting, missed, more, rate] = [[], [], 0, false, 0];
      if (page.querySelector(".pager [rel=next]")) older(to.lastElementChild);
      const source = bar.querySelector("[data-live-source]");
      const next = document.importNode(stream, true);
      source.replaceWith(next);
      source._htmx?.sse?.reader?.cancel(); // htmx would read the old stream until its next message
      window.htmx.process(next);
      tell();
    });
  }

  async function release() {
    if (missed) {
      show.disabled = true;
      await renew();
      show.disabled = false;
      return;
    }
    insert(waiting);
    waiting = [];
    tell();
  }

  document.addEventListener("htmx:sse:before:message", (event) => {
    const { detail } = event;
    if (detail.message.event) return;
    event.preventDefault();
    detail.cancelled = true;
    const template = document.createElement("template");
    template.innerHTML = detail.message.data;
    batches.push(template.content);
    frame ||= requestAnimationFrame(apply);
    clearTimeout(calm);
    calm = setTimeout(() => { rate = 0; tell(); }, 3000);
  });
  document.addEventListener("focusout", () => setTimeout(replace)); // the focus has moved by then

  document.addEventListener("htmx:sse:after:connection", () => { cut = false; tell(); });
  document.addEventListener("htmx:sse:error", (event) => {
    cut = true;
    tell();
    if (event.detail.status === 401) location.reload(); // the session has ended: the page asks to sign in
  });

  toggle.addEventListener("click", () => {
    paused = !paused;
    if (!paused) {
      replace();
      release();
    }
    tell();
  });
  show.addEventListener("click", release);
  toggle.hidden = false;
  tell();
}
