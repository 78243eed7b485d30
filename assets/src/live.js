// What comes in by the stream of a page (see web/stream.go). htmx holds the
// connection: it goes on from the last id after a cut, waits longer each time,
// and rests while the tab is hidden. Here its messages come into the page:
//
// an element with an id takes the place of the one with that id, once the page is
// not paused and the focus is not within; any other element becomes the first of
// the list, unless that is paused or has been scrolled away from: then it is
// counted, and shown when asked for. With data-update it is of use only where it
// can take a place.
const bar = document.querySelector("[data-live]");
const most = 200; // rows that are kept on the page, or waiting

if (bar) {
  const toggle = bar.querySelector("[data-live-toggle]");
  const label = bar.querySelector("[data-live-label]");
  const show = bar.querySelector("[data-live-show]");
  const status = bar.querySelector("[data-live-status]");
  const use = toggle.querySelector("use");
  const noun = bar.dataset.live;
  const nouns = noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  let paused = false;
  let waiting = []; // elements, oldest first
  let missed = false; // more came than could wait
  const held = new Map(); // by id, what takes the place of an element as soon as it may

  const list = () => document.querySelector("[data-live-list]");
  const away = () => {
    const l = list();
    return l && (l.getBoundingClientRect().top < 0 || l.contains(document.activeElement));
  };

  let cut = false; // the connection is not there, and is being made again

  function tell() {
    bar.dataset.state = paused ? "paused" : cut ? "cut" : "on";
    label.textContent = paused ? "Paused" : cut ? "Connecting" : "Live";
    toggle.setAttribute("aria-pressed", String(paused));
    toggle.setAttribute("aria-label", paused ? "Paused: go on" : "Live: pause");
    use.setAttribute("href", paused ? "#i-play" : "#i-pause");
    const n = waiting.length;
    show.hidden = n === 0;
    show.textContent = `${missed ? "More than " : ""}${n} new, show`;
  }

  let said = 0;
  function announce() {
    clearTimeout(said);
    said = setTimeout(() => {
      const n = waiting.length;
      const state = document.querySelector("#record .state"); // where the page is of one record
      if (n) status.textContent = `${n} new ${n === 1 ? noun : nouns} to show`;
      else if (state && !held.size) status.textContent = `Updated: ${state.textContent.trim()}`;
    }, 2000);
  }

  // replace puts in their places what may come there now.
  function replace() {
    for (const [id, e] of held) {
      const there = document.getElementById(id);
      if (there && (paused || there.contains(document.activeElement))) continue;
      held.delete(id);
      if (!there) continue;
      const [was, is] = [there, e].map((row) => row.querySelector("input[data-tick]"));
      if (was && is) is.checked = was.checked;
      there.replaceWith(e);
    }
  }

  function insert(elements) {
    const l = list();
    if (!l) {
      if (elements.length) location.reload(); // there was nothing to list until now
      return;
    }
    for (const e of elements) l.prepend(e);
    while (l.children.length > most) l.lastElementChild.remove();
    window.htmx?.process(l);
  }

  function release() {
    if (missed) {
      location.reload();
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
    for (const e of [...template.content.children]) {
      const there = e.id && document.getElementById(e.id);
      const waits = e.id ? waiting.findIndex((w) => w.id === e.id) : -1;
      if (there) {
        held.set(e.id, e);
      } else if (waits >= 0) {
        e.removeAttribute("data-update");
        waiting[waits] = e;
      } else if (e.dataset.update !== undefined) {
        continue;
      } else if (paused || away()) {
        if (waiting.length < most) waiting.push(e);
        else missed = true;
      } else {
        insert([e]);
      }
    }
    replace();
    tell();
    announce();
  });
  document.addEventListener("focusout", () => setTimeout(replace)); // the focus is where it goes by then

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
