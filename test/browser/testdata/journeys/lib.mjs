// Helpers for journeys. A journey is a module that ends with done; it fails by throwing.
//
//   const { page } = await signIn();             // a page with an admin signed in
//   await visit(page, "/deliveries");            // loads the path, wants status 200
//   await checkPage(page);                       // axe in light and dark, at 320 and 1280 px
//   await checkAsShown(page);                    // axe in its present colours and width
//   await checkNewParts(page, "a delivery");     // the same, for what axe has not seen yet
//   await tabTo(page, "#email");                 // moves the focus with Tab alone
//   const r = await startReceiver((req) => 204); // a receiver: r.url, r.requests
//   const m = await startManualReceiver();       // a receiver that responds when told to
//   await api("POST", "/v2/events", {...});      // with a token that has all scopes
//   check(value, "what is expected");
//   await until("what is awaited", async () => value);
//   await restart();                             // the service, on the same data
//   await copied(page, (text) => …);             // what the page put into the clipboard
//
// A journey must not depend on the speed of the machine. It waits for conditions, up to timeout.
// Whatever happens between two of its steps is caused by the journey, never by a schedule in
// seconds: see startManualReceiver.
//
// javaScript says whether this journey's browsers run JavaScript; TestBrowser can run a
// journey with and without. Console errors, exceptions and violations of the Content
// Security Policy fail a journey in done.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { chromium } from "playwright-core";

const env = (name) => process.env[name] ?? "";

export const startupLink = env("LINK");
export const base = new URL(startupLink).origin;
export const data = env("DATA");
export const javaScript = env("SCRIPT") !== "off";
export const inFirefox = env("FIREFOX") !== "";

// How long a journey waits for a condition, in milliseconds.
export const timeout = Number(env("TIMEOUT") || 60_000);
export const routes = JSON.parse(env("ROUTES") || "[]"); // the admin pages: {path, get, post}

const axe = fs.readFileSync("node_modules/axe-core/axe.min.js", "utf8");
// Chromium would not let a page that a journey serves at a public name embed pages of loopback.
const browser = inFirefox
  ? await (await import("playwright-firefox")).firefox.launch({ channel: "moz-firefox", executablePath: env("FIREFOX") })
  : await chromium.launch({ executablePath: env("CHROMIUM"), args: ["--no-sandbox", "--disable-features=LocalNetworkAccessChecks"] });
const pageErrors = [];
const contextsWithoutJavaScript = new WeakSet();

// Every response of the service, to a page or to a request of the journey: {method, path, status}.
export const responses = [];

// A journey that hangs prints its pages before TestBrowser kills it.
setTimeout(() => {
  console.error(`the journey hangs at ${browser.contexts().flatMap((c) => c.pages()).map((p) => p.url())}`);
  process.exit(1);
}, Number(env("PATIENCE") || 460_000)).unref();

// check fails the journey unless value is true.
export function check(value, expectation) {
  if (!value) throw new Error(`want: ${expectation}`);
}

// newPage returns a page in a new browser context. Options are Playwright's options of a
// context. An error of the page that contains a text of expected does not fail the journey.
export async function newPage(options = {}, expected = []) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, javaScriptEnabled: javaScript, viewport: { width: 1280, height: 800 }, ...(inFirefox ? {} : { reducedMotion: "reduce" }), ...options });
  context.setDefaultTimeout(timeout);
  if (options.javaScriptEnabled ?? javaScript) {
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (e) => console.error(`Content Security Policy: ${e.violatedDirective} blocked ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
    });
  } else {
    contextsWithoutJavaScript.add(context);
  }
  const page = await context.newPage();
  const recordError = (text) => {
    if (text.includes("(chrome-error://")) return; // in the browser's own page, for example of a blocked frame
    if (inFirefox && text.startsWith("htmx: htmx:")) return; // of requests that end because the page is left
    if (!expected.some((e) => text.includes(e))) pageErrors.push(`${page.url()}: ${text}`);
  };
  // A page's own polling may fail, for example while the service restarts.
  const isBackgroundLoad = (m) => m.text().startsWith("Failed to load resource") && [`${base}/status`, page.url()].includes(m.location().url);
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && !isBackgroundLoad(m) && recordError(m.text()));
  context.on("response", (r) => {
    if (r.url().startsWith(base)) responses.push({ method: r.request().method(), path: new URL(r.url()).pathname, status: r.status() });
  });
  page.on("pageerror", (e) => recordError(e.stack || e.message));
  return { context, page };
}

let savedSession;

// The admin that signIn creates if there is none.
export const admin = { email: "ada@example.com", password: "correct horse battery staple" };

// until polls found until it returns a true value, and returns that value.
export async function until(condition, found) {
  for (const end = Date.now() + timeout; Date.now() < end;) {
    const value = await found();
    if (value) return value;
    await new Promise((r) => setTimeout(r, 50));
  }
  throw new Error(`timed out waiting for ${condition}`);
}

// restart stops the service and starts it at the same address, on the same data. In between
// it ages all sessions by sessionAge, such as 12h, and renames the table missingTable, so
// that its pages fail.
export async function restart(sessionAge = "0s", missingTable = "") {
  const response = await fetch(`${env("CONTROL")}/restart`, { method: "POST", body: new URLSearchParams({ aged: sessionAge, table: missingTable }) });
  check(response.ok, `the service restarts, got ${await response.text()}`);
}

// waitForLoad runs an action that loads another page, such as submitting a form, and waits
// for that page. Without the wait, the next navigation would cancel the request.
export async function waitForLoad(page, action) {
  await Promise.all([page.waitForEvent("load"), action()]);
}

// tabTo presses Tab until the element of a selector has the focus, and returns the number
// of stops. At each stop the focus must be visible: outlined, within the viewport, and not
// covered by another element.
export async function tabTo(page, selector, key = "Tab") {
  await page.bringToFront(); // Firefox shows no focus in a page behind another
  const stops = [];
  for (let n = 1; n <= 80; n++) {
    await page.keyboard.press(key);
    const stop = await page.evaluate((target) => {
      const e = document.activeElement;
      if (!e || e === document.body) return { name: "nothing" };
      const name = `${e.localName}${e.id && `#${e.id}`}.${e.className} ${e.textContent.trim().slice(0, 20)}`;
      const style = getComputedStyle(e);
      const box = e.getBoundingClientRect();
      const [x, y] = [box.left + Math.min(box.width / 2, 20), box.top + Math.min(box.height / 2, 20)];
      const top = document.elementFromPoint(x, y);
      const problems = [];
      if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1) problems.push("has no outline");
      if (box.width < 1 || box.bottom <= 0 || box.top >= innerHeight || box.right <= 0 || box.left >= innerWidth) problems.push("is outside the viewport");
      else if (top && !e.contains(top) && !top.contains(e)) problems.push(`is covered by ${top.localName}.${top.className}`);
      return { name, problems, found: e.matches(target) };
    }, selector);
    stops.push(stop.name);
    check(!stop.problems?.length, `the focus is visible, got ${stop.name} that ${stop.problems}`);
    if (stop.found) return n;
  }
  throw new Error(`Tab does not reach ${selector}, got ${stops.join(", ")}`);
}

// signIn returns a page with an admin signed in. The first call uses the link that serve
// printed; later calls share its session.
export async function signIn(options = {}, expected = []) {
  if (!savedSession) {
    const { context, page } = await newPage();
    await page.goto(startupLink);
    if (await page.locator("#email").count()) {
      await page.fill("#email", admin.email);
      await page.fill("#password", admin.password);
      await page.fill("#again", admin.password);
    }
    await page.click("button.primary");
    await page.waitForURL(`${base}/`);
    savedSession = await context.storageState();
    await context.close();
  }
  return newPage({ storageState: savedSession, ...options }, expected);
}

// visit loads a path of the service, wants the status, and returns the response.
export async function visit(page, to, status = 200) {
  const response = await page.goto(base + to);
  check(response.status() === status, `${to} responds with ${status}, got ${response.status()}`);
  return response;
}

// pageOverflow returns by how many pixels a page is wider than the viewport, and scrolls to its top.
const pageOverflow = (page) => page.evaluate(() => {
  scrollTo(0, 0); // a target partly under a sticky bar counts as too small
  return document.documentElement.scrollWidth - document.documentElement.clientWidth;
});

// layoutProblems returns the problems of a page at a narrow and at a wide viewport: content
// that overflows, and what findProblems returns for the width. It leaves the page wide.
async function layoutProblems(page, findProblems = () => []) {
  const problems = [];
  for (const width of [320, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    const overflow = await pageOverflow(page);
    if (overflow > 0) problems.push(`${width} px: ${overflow} px wider than the viewport`);
    problems.push(...(await findProblems(width)).map((problem) => `${width} px, ${problem}`));
  }
  return problems;
}

const throwProblems = (page, problems) => {
  if (problems.length) throw new Error(`${page.url()}\n${problems.join("\n")}`);
};

// Options of axe: all rules, or colour contrast alone, which takes half of the time. Without
// preload: false, axe would load the style sheet again on each run.
const axeTags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const axeRules = (disabledRules) => ({ resultTypes: ["violations"], preload: false, runOnly: axeTags, rules: { "target-size": { enabled: true }, ...Object.fromEntries(disabledRules.map((id) => [id, { enabled: false }])) } });
const axeContrast = { resultTypes: ["violations"], preload: false, runOnly: { type: "rule", values: ["color-contrast"] } };

const describeViolation = (v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target.join(" ")}: ${n.failureSummary}`).join("; ")}`;

// axeProblems returns the problems that axe finds in a page, light and dark, narrow and wide.
// findViolations runs axe for a colour scheme: a dark page has the same structure as the light one,
// so only its colours need a check.
const axeProblems = async (page, findViolations) => {
  if (!await page.evaluate(() => window.axe)) await page.evaluate(axe);
  return layoutProblems(page, async (width) => {
    const problems = [];
    for (const colorScheme of width === 320 ? ["light", "dark"] : ["dark", "light"]) { // the narrow pass ended dark
      await page.emulateMedia({ colorScheme });
      for (const v of await findViolations(colorScheme)) {
        problems.push(`${colorScheme}: ${describeViolation(v)}`);
      }
    }
    return problems;
  });
};

// checkPage checks a page with axe and its layout, light and dark, narrow and wide. It leaves the
// page wide and light. disabledRules are axe rules that do not apply to the page. axe is a script,
// and Firefox's colour scheme cannot be selected, so in Firefox checkPage checks only the layout.
export async function checkPage(page, disabledRules = []) {
  if (inFirefox || contextsWithoutJavaScript.has(page.context())) return throwProblems(page, await layoutProblems(page));
  throwProblems(page, await axeProblems(page, (scheme) => page.evaluate(async (o) => (await axe.run(o)).violations, scheme === "light" ? axeRules(disabledRules) : axeContrast)));
}

// checkAsShown checks a page with axe and its layout, at its current viewport and colours.
export async function checkAsShown(page) {
  const problems = await pageOverflow(page) > 0 ? ["wider than the viewport"] : [];
  await page.evaluate(axe);
  const violations = await page.evaluate(async (options) => (await window.axe.run(options)).violations, axeRules([]));
  throwProblems(page, [...problems, ...violations.map(describeViolation)]);
}

// copied waits until the clipboard contains a text that is good, and keeps the focus. In Firefox no
// page may read the clipboard, so copied pastes the text.
export async function copied(page, good) {
  if (!inFirefox) await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await until("the text in the clipboard", async () => {
    if (!inFirefox) return good(await page.evaluate(() => navigator.clipboard.readText()));
    await page.evaluate(() => {
      window.focused = document.activeElement;
      const field = document.createElement("textarea");
      field.id = "pasted";
      document.querySelector("main").append(field);
      field.focus();
    });
    await page.keyboard.press("Control+V");
    return good(await page.evaluate(() => {
      const field = document.getElementById("pasted");
      const text = field.value;
      field.remove();
      window.focused.focus();
      return text;
    }));
  });
}

const checkedParts = new Set(); // names of pages and signatures of elements that axe has checked

// checkNewParts does what checkPage does if the page contains something that axe has not checked in
// this journey: another name, such as a route, or an element whose signature is new. The signature
// is the name, classes, role and state of an element and its ancestors. Contrast is checked only
// for new elements. If nothing is new, only the layout is checked. It returns whether axe ran.
export async function checkNewParts(page, name) {
  const parts = await page.evaluate(() => {
    const attributes = ["type", "role", "aria-hidden", "aria-invalid", "aria-expanded", "aria-pressed", "aria-current", "data-state", "hidden", "open", "disabled"];
    const signatures = new Map([[document.documentElement, ""]]);
    window.parts = new Map(); // from a signature to its elements
    for (const e of document.querySelectorAll("*:not(svg *):not(:root)")) {
      const signature = `${signatures.get(e.parentElement)} > ${e.localName}.${e.getAttribute("class") ?? ""} ${attributes.map((k) => e.getAttribute(k) ?? "-")}${e.checkVisibility() ? "" : " hidden"}`;
      signatures.set(e, signature);
      window.parts.set(signature, [...window.parts.get(signature) ?? [], e]);
    }
    return [...window.parts.keys()];
  });
  const newParts = parts.filter((part) => !checkedParts.has(part));
  if (!newParts.length && checkedParts.has(name)) {
    throwProblems(page, await layoutProblems(page));
    return false;
  }
  [name, ...newParts].forEach((part) => checkedParts.add(part));
  throwProblems(page, await axeProblems(page, (scheme) => page.evaluate(async ([options, axeContrast, newParts]) => {
    const violations = options ? (await axe.run(options)).violations : [];
    const include = newParts.flatMap((part) => window.parts.get(part)).filter((e) => e.isConnected);
    return include.length ? [...violations, ...(await axe.run({ include }, axeContrast)).violations] : violations;
  }, [scheme === "light" ? axeRules(["color-contrast"]) : null, axeContrast, newParts])));
  return true;
}

// runCommand runs the binary with arguments and returns its standard output.
export function runCommand(...args) {
  return runCommandWithInput("", ...args);
}

// runCommandWithInput does the same with a text on standard input.
export function runCommandWithInput(input, ...args) {
  return execFileSync(env("SERVICE"), args, { encoding: "utf8", input }).trim();
}

let token;

// api calls the API with a token of the program acme that has all scopes, and returns
// {status, body}. It does not work with --demo, which has its own data directory.
export async function api(method, to, body) {
  token ??= runCommand("token", "create", "--data", data, "--program", "acme", "--user", "1", "--scope", "webhooks.read", "--scope", "webhooks.write", "--scope", "events.read", "--scope", "events.write");
  const response = await fetch(base + to, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body && JSON.stringify(body),
  });
  return { status: response.status, body: await response.json() };
}

// startReceiver starts a receiver on loopback. respond returns the response to a request: a status,
// or {status, headers, body}, or a promise of either. A subscription to it needs --allow-http and
// --allow-destination 127.0.0.1.
export async function startReceiver(respond) {
  const requests = [];
  const server = http.createServer((req, res) => {
    let body = "";
    req.on("data", (d) => { body += d; });
    req.on("end", async () => {
      const request = { headers: req.headers, body: body, number: requests.length + 1 };
      requests.push(request);
      const reply = await respond(request);
      if (typeof reply === "number") res.writeHead(reply).end();
      else res.writeHead(reply.status, reply.headers).end(reply.body);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, close: () => server.close() };
}

// startManualReceiver starts a receiver that responds to a ping with 204 immediately, and to
// every other request when the journey says so. waitForAttempt(n) waits for the nth request
// that is not a ping. respond(status) waits for an open request and responds to the oldest.
// After respondAlways(status) the receiver responds to new requests immediately. The service
// needs an --attempt-timeout that is longer than the journey.
export async function startManualReceiver() {
  const openRequests = [];
  let immediateStatus;
  const isPing = (r) => JSON.parse(r.body).events[0].name === "ping";
  const server = await startReceiver((r) => (isPing(r) ? 204 : immediateStatus ?? new Promise((resolve) => openRequests.push(resolve))));
  const attempts = () => server.requests.filter((r) => !isPing(r));
  return {
    ...server,
    attempts,
    waitForAttempt: (n) => until(`attempt ${n}`, () => attempts().length >= n),
    respond: async (status) => {
      await until("an open request", () => openRequests.length > 0);
      openRequests.shift()(status);
    },
    respondAlways: (status) => { immediateStatus = status; },
  };
}

// openGallery opens a page with every component of the admin UI, as if the service served it.
export async function openGallery(page) {
  const overview = await page.request.get(`${base}/`);
  const html = await overview.text();
  const assetPath = (ext) => html.match(new RegExp(`/assets/[a-z]+\\.[0-9a-f]+\\.${ext}`))[0];
  const body = fs.readFileSync(env("GALLERY"), "utf8")
    .replace("/assets/style.css", assetPath("css")).replace("/assets/app.js", assetPath("js")).replace("/assets/icon.svg", assetPath("svg"));
  await page.route("**/gallery", (route) => route.fulfill({
    status: 200, body, headers: { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": overview.headers()["content-security-policy"] },
  }));
  await page.goto(`${base}/gallery`);
}

// screenshot saves a picture of the viewport, or of the whole page, to the folder that
// SCREENSHOTS names. Without SCREENSHOTS it does nothing.
export async function screenshot(page, name, fullPage = false) {
  if (env("SCREENSHOTS")) await page.screenshot({ path: path.join(env("SCREENSHOTS"), `${name}.png`), fullPage });
}

// done ends a journey. It fails if a page had errors. A journey must call it.
export async function done() {
  await browser.close();
  if (pageErrors.length) throw new Error(`errors of the pages:\n${pageErrors.join("\n")}`);
  finished = true;
}

let finished = false;
process.on("exit", (code) => {
  if (code === 0 && !finished) {
    console.error("the journey did not call done");
    process.exitCode = 1;
  }
});
