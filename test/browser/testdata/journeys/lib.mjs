// What a journey is given. A journey is a module that ends; it fails by throwing.
//
//   const { page } = await signedIn();           // an admin's page
//   await visit(page, "/deliveries");            // goes there, and wants 200
//   await looks(page);                           // axe, light and dark, 320 and 1280 px wide
//   await looksOnce(page, "a delivery");         // the same, if there is something new on it
//   await tabTo(page, "#email");                 // goes there by keyboard alone
//   const r = await receiver((req) => 204);      // a subscriber: r.url, r.requests
//   const h = await holding();                   // one that answers when the journey says so
//   await api("POST", "/v2/events", {...});      // with a token of all scopes
//   check(value, "what should be");
//   await until("what is waited for", async () => value);
//   await restart();                             // the service, on the same data
//
// A journey must not depend on how fast the machine is: it waits for conditions,
// for at most timeout, and what happens on a page between two of its steps is
// caused by the journey (see holding), never by a schedule of seconds.
//
// script says whether the browsers of this journey run JavaScript; a journey may
// be gone once with and once without (see TestBrowser). Whatever a page has to complain about fails the journey at its end: errors in
// the console, exceptions, requests that the policy refused.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { chromium } from "playwright-core";

const env = (name) => process.env[name] ?? "";

export const link = env("LINK");
export const base = new URL(link).origin;
export const data = env("DATA");
export const script = env("SCRIPT") !== "off";

// How long, in milliseconds, anything that must happen is waited for.
export const timeout = Number(env("TIMEOUT") || 60_000);
export const routes = JSON.parse(env("ROUTES") || "[]"); // of the pages: {path, get, post}

const axe = fs.readFileSync("node_modules/axe-core/axe.min.js", "utf8");
const browser = await chromium.launch({ executablePath: env("CHROMIUM"), args: ["--no-sandbox"] });
const complaints = [];
const plain = new WeakSet(); // the browsers without JavaScript

// All that pages, and requests beside them, asked the service for: {method, path, status}.
export const asked = [];

// A journey that hangs says where, before it is killed.
setTimeout(() => {
  console.error(`the journey hangs, at ${browser.contexts().flatMap((c) => c.pages()).map((p) => p.url())}`);
  process.exit(1);
}, Number(env("PATIENCE") || 460_000)).unref();

// check fails the journey unless value is true.
export function check(value, should) {
  if (!value) throw new Error(`should be: ${should}`);
}

// fresh returns a page of a browser that has not been here. Options are
// Playwright's of a context; expected are complaints that the journey causes on
// purpose, as texts that they contain.
export async function fresh(options = {}, expected = []) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, javaScriptEnabled: script, viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(timeout);
  if (options.javaScriptEnabled ?? script) {
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (e) => console.error(`the policy refused ${e.violatedDirective}: ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
    });
  } else {
    plain.add(context);
  }
  const page = await context.newPage();
  const complain = (text) => {
    if (!expected.some((e) => text.includes(e))) complaints.push(`${page.url()}: ${text}`);
  };
  // What a page asks for again by itself may fail, while the service restarts for example.
  const byItself = (m) => m.text().startsWith("Failed to load resource") && [`${base}/status`, page.url()].includes(m.location().url);
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && !byItself(m) && complain(m.text()));
  context.on("response", (r) => {
    if (r.url().startsWith(base)) asked.push({ method: r.request().method(), path: new URL(r.url()).pathname, status: r.status() });
  });
  page.on("pageerror", (e) => complain(e.stack || e.message));
  return { context, page };
}

let state;

// The admin that signedIn makes where there is none yet.
export const admin = { email: "ada@example.com", password: "correct horse battery staple" };

// until waits for a value that is true, asking often, and returns it.
export async function until(what, found) {
  for (const end = Date.now() + timeout; Date.now() < end;) {
    const value = await found();
    if (value) return value;
    await new Promise((r) => setTimeout(r, 50));
  }
  throw new Error(`did not come: ${what}`);
}

// restart ends the service, and starts it again at the same address and on the
// same data. Aged, such as 12h, makes the sessions so much older meanwhile; table
// names one that is taken away, so that a page of it fails.
export async function restart(aged = "0s", table = "") {
  const answer = await fetch(`${env("CONTROL")}/restart`, { method: "POST", body: new URLSearchParams({ aged, table }) });
  check(answer.ok, `a restart: ${await answer.text()}`);
}

// follow does what leads to another page, such as pressing a button that sends a
// form, and waits for that page. What follows a form too early, such as going
// elsewhere, would cancel it.
export async function follow(page, act) {
  await Promise.all([page.waitForEvent("load"), act()]);
}

// tabTo presses Tab until the element of a selector has the focus. At each stop
// on the way it must be seen where the focus is: it is marked, on the screen, and
// not under something else. It returns how many stops there were.
export async function tabTo(page, selector, key = "Tab") {
  const stops = [];
  for (let n = 1; n <= 80; n++) {
    await page.keyboard.press(key);
    const at = await page.evaluate((wanted) => {
      const e = document.activeElement;
      if (!e || e === document.body) return { name: "nothing" };
      const name = `${e.localName}${e.id && `#${e.id}`}.${e.className} ${e.textContent.trim().slice(0, 20)}`;
      const style = getComputedStyle(e);
      const box = e.getBoundingClientRect();
      const [x, y] = [box.left + Math.min(box.width / 2, 20), box.top + Math.min(box.height / 2, 20)];
      const top = document.elementFromPoint(x, y);
      const faults = [];
      if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1) faults.push("is not marked");
      if (box.width < 1 || box.bottom <= 0 || box.top >= innerHeight || box.right <= 0 || box.left >= innerWidth) faults.push("is not on the screen");
      else if (top && !e.contains(top) && !top.contains(e)) faults.push(`is under ${top.localName}.${top.className}`);
      return { name, faults, there: e.matches(wanted) };
    }, selector);
    stops.push(at.name);
    check(!at.faults?.length, `the focus is seen: ${at.name} ${at.faults}`);
    if (at.there) return n;
  }
  throw new Error(`Tab does not come to ${selector}: ${stops.join(", ")}`);
}

// signedIn returns a page of a browser that is signed in. The first call uses
// the link that serve printed; the others share its session.
export async function signedIn(options = {}, expected = []) {
  if (!state) {
    const { context, page } = await fresh();
    await page.goto(link);
    if (await page.locator("#email").count()) {
      await page.fill("#email", admin.email);
      await page.fill("#password", admin.password);
      await page.fill("#again", admin.password);
    }
    await page.click("button.primary");
    await page.waitForURL(`${base}/`);
    state = await context.storageState();
    await context.close();
  }
  return fresh({ storageState: state, ...options }, expected);
}

// visit goes to a path of the service, and wants a status.
export async function visit(page, to, status = 200) {
  const answer = await page.goto(base + to);
  check(answer.status() === status, `${to}: status ${status}, got ${answer.status()}`);
  return answer;
}

// fits holds a page as it stands against its width, narrow and wide, and against
// what a look has to say of it at each; it leaves the page wide. Its answer is
// what is wrong.
async function fits(page, look = () => []) {
  const faults = [];
  for (const width of [320, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    const over = await page.evaluate(() => {
      scrollTo(0, 0); // what is half under a bar is no smaller
      return document.documentElement.scrollWidth - document.documentElement.clientWidth;
    });
    if (over > 0) faults.push(`${width} px: ${over} px wider than the screen`);
    faults.push(...(await look(width)).map((fault) => `${width} px, ${fault}`));
  }
  return faults;
}

const fail = (page, faults) => {
  if (faults.length) throw new Error(`${page.url()}\n${faults.join("\n")}`);
};

// What axe is asked: all rules that hold here, and what contrast text has, which
// takes it half of its time. Nothing is loaded for it, which would be the style
// anew each time.
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const rules = (except) => ({ resultTypes: ["violations"], preload: false, runOnly: tags, rules: { "target-size": { enabled: true }, ...Object.fromEntries(except.map((id) => [id, { enabled: false }])) } });
const contrast = { resultTypes: ["violations"], preload: false, runOnly: { type: "rule", values: ["color-contrast"] } };

// byAxe holds a page against axe, light and dark, narrow and wide, by what ask
// has axe asked in a light page, and in a dark one: its structure is the same,
// and only its colours can be wrong. What ask returns is evaluated in the page.
const byAxe = async (page, ask) => {
  if (!await page.evaluate(() => window.axe)) await page.evaluate(axe);
  return fits(page, async (width) => {
    const faults = [];
    for (const colorScheme of width === 320 ? ["light", "dark"] : ["dark", "light"]) { // it is dark still when it becomes wide
      await page.emulateMedia({ colorScheme });
      for (const v of await ask(colorScheme)) {
        faults.push(`${colorScheme}: ${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target.join(" ")}: ${n.failureSummary}`).join("; ")}`);
      }
    }
    return faults;
  });
};

// looks holds a page as it stands against axe and its width, light and dark,
// narrow and wide. It leaves the page wide and light. Except names rules of axe
// that do not hold there for a reason. Without JavaScript there is no axe, which
// is itself a script, and it is the width alone.
export async function looks(page, except = []) {
  if (plain.has(page.context())) return fail(page, await fits(page));
  fail(page, await byAxe(page, (scheme) => page.evaluate(async (o) => (await axe.run(o)).violations, scheme === "light" ? rules(except) : contrast)));
}

const seen = new Set(); // the names of pages, and the parts of pages, that axe has looked at

// looksOnce does what looks does for what this journey has not shown to axe: a
// page of another name, such as its route, and elements that differ from all that
// were there before by their name, classes, role or state, or by those of an
// element they are in. Contrast is looked at for these alone. Where there is
// nothing new it is the width alone. It says whether axe has looked.
export async function looksOnce(page, name) {
  const parts = await page.evaluate(() => {
    const kinds = ["type", "role", "aria-hidden", "aria-invalid", "aria-expanded", "aria-pressed", "aria-current", "data-state", "hidden", "open", "disabled"];
    const named = new Map([[document.documentElement, ""]]);
    window.parts = new Map(); // to the elements that are alike
    for (const e of document.querySelectorAll("*:not(svg *):not(:root)")) {
      const kind = `${named.get(e.parentElement)} > ${e.localName}.${e.getAttribute("class") ?? ""} ${kinds.map((k) => e.getAttribute(k) ?? "-")}${e.checkVisibility() ? "" : " is not shown"}`;
      named.set(e, kind);
      window.parts.set(kind, [...window.parts.get(kind) ?? [], e]);
    }
    return [...window.parts.keys()];
  });
  const fresh = parts.filter((part) => !seen.has(part));
  if (!fresh.length && seen.has(name)) {
    fail(page, await fits(page));
    return false;
  }
  [name, ...fresh].forEach((part) => seen.add(part));
  fail(page, await byAxe(page, (scheme) => page.evaluate(async ([all, contrast, fresh]) => {
    const found = all ? (await axe.run(all)).violations : [];
    const include = fresh.flatMap((part) => window.parts.get(part)).filter((e) => e.isConnected);
    return include.length ? [...found, ...(await axe.run({ include }, contrast)).violations] : found;
  }, [scheme === "light" ? rules(["color-contrast"]) : null, contrast, fresh])));
  return true;
}

// command runs the binary beside the service, and returns what it says.
export function command(...args) {
  return commandWith("", ...args);
}

// commandWith is the same with something to read from its standard input.
export function commandWith(input, ...args) {
  return execFileSync(env("SERVICE"), args, { encoding: "utf8", input }).trim();
}

let token;

// api calls the API with a token of the program acme that may do all. Its
// answer is {status, body}. There is none with the demo, whose data is its own.
export async function api(method, to, body) {
  token ??= command("token", "create", "--data", data, "--program", "acme", "--user", "1", "--scope", "webhooks.read", "--scope", "webhooks.write", "--scope", "events.read", "--scope", "events.write");
  const answer = await fetch(base + to, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body && JSON.stringify(body),
  });
  return { status: answer.status, body: await answer.json() };
}

// receiver is a subscriber's server. What answer returns for a request, with
// its body, is the status, or {status, headers, body}, or a promise of one; a
// subscription to it needs --allow-http and --allow-destination 127.0.0.1.
export async function receiver(answer) {
  const requests = [];
  const server = http.createServer((req, res) => {
    let text = "";
    req.on("data", (d) => { text += d; });
    req.on("end", async () => {
      const request = { headers: req.headers, body: text, number: requests.length + 1 };
      requests.push(request);
      const a = await answer(request);
      if (typeof a === "number") res.writeHead(a).end();
      else res.writeHead(a.status, a.headers).end(a.body);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, close: () => server.close() };
}

// holding is a receiver that answers pings with 204 at once, and everything else
// when the journey says so: answer(status) answers the oldest request that waits
// for its answer, once there is one, and attempt(n) waits for the nth request
// that is no ping. always(status) answers those that come from now on at once.
// The service needs an --attempt-timeout that is longer than the journey.
export async function holding() {
  const waiting = [];
  let status;
  const isPing = (r) => JSON.parse(r.body).events[0].name === "ping";
  const server = await receiver((r) => (isPing(r) ? 204 : status ?? new Promise((answer) => waiting.push(answer))));
  const attempts = () => server.requests.filter((r) => !isPing(r));
  return {
    ...server,
    attempts,
    attempt: (n) => until(`attempt ${n}`, () => attempts().length >= n),
    answer: async (status) => {
      await until("a request that waits for its answer", () => waiting.length > 0);
      waiting.shift()(status);
    },
    always: (of) => { status = of; },
  };
}

// gallery is a page with all the parts that pages are made of, shown as if the
// service had it.
export async function gallery(page) {
  const home = await page.request.get(`${base}/`);
  const html = await home.text();
  const path = (ext) => html.match(new RegExp(`/assets/[a-z]+\\.[0-9a-f]+\\.${ext}`))[0];
  const body = fs.readFileSync(env("GALLERY"), "utf8")
    .replace("/assets/style.css", path("css")).replace("/assets/app.js", path("js")).replace("/assets/icon.svg", path("svg"));
  await page.route("**/gallery", (route) => route.fulfill({
    status: 200, body, headers: { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": home.headers()["content-security-policy"] },
  }));
  await page.goto(`${base}/gallery`);
}

// screenshot keeps a picture, of the whole page if asked for, where SCREENSHOTS
// names a folder.
export async function screenshot(page, name, fullPage = false) {
  if (env("SCREENSHOTS")) await page.screenshot({ path: path.join(env("SCREENSHOTS"), `${name}.png`), fullPage });
}

// done ends a journey; a journey that does not call it fails.
export async function done() {
  await browser.close();
  if (complaints.length) throw new Error(`the pages complain:\n${complaints.join("\n")}`);
  finished = true;
}

let finished = false;
process.on("exit", (code) => {
  if (code === 0 && !finished) {
    console.error("the journey did not call done");
    process.exitCode = 1;
  }
});
