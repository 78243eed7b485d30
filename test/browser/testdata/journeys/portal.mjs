// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0 --portal-name Intranet
// and without JavaScript
// and in Firefox
// A partner with only a link gets to a verified webhook, and uses every page of the portal: with
// JavaScript by keyboard on a desktop, without it on a phone. Other sites, admins and old links get
// nothing.
import { execFileSync } from "node:child_process";
import { createHmac } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { api, base, check, checkNewParts, checkPage, data, done, inFirefox, javaScript, newPage, responses, restart, runCommand, signIn, startReceiver, tabTo, until, visit, waitForLoad } from "./lib.mjs";

let status = 204;
const receiver = await startReceiver(() => status);
const viewport = javaScript ? { width: 1280, height: 800 } : { width: 360, height: 740 };
const expectedErrors = ["the server responded with a status of 4", "frame-ancestors", "Framing '"]; // pages that respond with 4xx, and frames that the policy blocks
const openPage = (options = {}) => newPage({ viewport, hasTouch: !javaScript, ...options }, expectedErrors);
const inspect = async (page, name) => {
  await (javaScript ? checkNewParts(page, name) : checkPage(page));
  if (page !== owner) await page.setViewportSize(viewport);
};

// press activates a control: by Tab and Enter, or by a tap. It counts the partner's actions.
let actions = 0;
const press = async (page, selector) => {
  actions++;
  const control = page.locator(selector).first();
  if (!javaScript) return control.tap();
  // A refresh of the page leaves attributes with this prefix alone.
  await control.evaluate((e) => e.setAttribute("data-htmx-powered-next", ""));
  await tabTo(page, "[data-htmx-powered-next]");
  await page.evaluate(() => document.activeElement.removeAttribute("data-htmx-powered-next"));
  await page.keyboard.press("Enter");
};
const load = (page, selector) => waitForLoad(page, () => press(page, selector));
// section opens a page of the navigation, which is a menu on a phone.
const section = async (page, to) => {
  if (!javaScript) await press(page, "button[popovertarget=pages]");
  await load(page, `nav#pages a[href='/portal${to}']`);
};

// The admin creates a link on the program page.
runCommand("token", "create", "--data", data, "--program", "acme", "--user", "1", "--scope", "events.read");
const { page: owner } = await signIn({}, expectedErrors);
await visit(owner, "/programs/acme");
await waitForLoad(owner, () => owner.getByRole("link", { name: "Portal", exact: true }).click());
await inspect(owner, "portal of a program");
const createLink = async () => {
  await visit(owner, "/programs/acme/portal");
  await owner.selectOption("#role", "write");
  await waitForLoad(owner, () => owner.getByRole("button", { name: "Create link" }).click());
  return (await owner.getByLabel("Link", { exact: true }).textContent()).trim();
};
const link = await createLink();
check(link.startsWith(`${base}/portal/link/`), `a link, got ${link}`);
await inspect(owner, "a new link");

// Opening the link does not use it up.
const { page: partner, context } = await openPage();
for (let i = 0; i < 2; i++) check((await partner.goto(link)).status() === 200, "the link is open");
check((await context.cookies()).length === 0, "no cookie yet");
await inspect(partner, "link");
const began = Date.now();
await load(partner, "button.primary");
check(new URL(partner.url()).pathname === "/portal/", `the first page, got ${partner.url()}`);
const cookie = (await context.cookies()).find((c) => c.name === "__Host-portal");
check(cookie?.httpOnly && cookie.secure && cookie.sameSite === "Lax", "a cookie of the session");
await inspect(partner, "no subscriptions");

// Create a subscription. It is pinged, and the shown secret verifies the ping.
await load(partner, "main a[href='/portal/subscriptions/new']");
await inspect(partner, "new subscription");
if (javaScript) {
  await tabTo(partner, "#url");
  await partner.keyboard.type(receiver.url);
  await tabTo(partner, "[data-picker] input[value=content_deleted]");
  await partner.keyboard.press("Space");
} else {
  await partner.fill("#url", receiver.url);
  await partner.locator("[data-picker] input[value=content_deleted]").tap();
}
actions += 2;
await load(partner, "button.primary:has-text('Create subscription')");
const secret = await partner.locator("#secret").textContent();
const signedWith = (secret, r) => createHmac("sha256", Buffer.from(secret.slice(6), "base64")).update(`${r.headers["webhook-id"]}.${r.headers["webhook-timestamp"]}.${r.body}`).digest("base64");
await until("the first ping", () => receiver.requests.length === 1);
const isSigned = (secret, r) => r.headers["webhook-signature"].split(" ").includes(`v1,${signedWith(secret, r)}`);
check(isSigned(secret, receiver.requests[0]), "the secret verifies the ping");
const milliseconds = Date.now() - began, actionsToPing = actions;
check(actionsToPing <= 6, `at most 6 actions from the link to a verified webhook, got ${actionsToPing}`);
await inspect(partner, "a new secret");
await load(partner, "a.primary:has-text('See the first ping')");
await until("the result of the ping", async () => (await partner.locator("#ping").innerText()).includes("204"));
const subscription = new URL(partner.url()).pathname;
const id = subscription.split("/").pop();
await inspect(partner, "subscription");

// Send a test event, which the receiver rejects. The delivery page says why, and the partner
// resends the delivery.
status = 422;
if (javaScript) {
  await tabTo(partner, "#test-name");
  await partner.keyboard.type("content_deleted");
}
check(await partner.inputValue("#test-name") === "content_deleted", "the type of the test event");
await (javaScript ? press : load)(partner, "#test button");
const tested = javaScript ? "#tested" : "#ping"; // next to the button, or on the page that follows
await until("the result of the test event", async () => (await partner.locator(tested).innerText()).includes("422"));
check(JSON.parse(receiver.requests.at(-1).body).events[0].name === "content_deleted" && receiver.requests.at(-1).headers["x-service-test"] === "true", "the test event arrived");
await inspect(partner, "a failed test event");
await load(partner, `${tested} a[href^='/portal/deliveries/']`);
const mainText = async () => (await partner.locator("main").innerText()).replace(/\s+/g, " ");
check((await mainText()).includes("The endpoint rejected the payload (422)."), "the page says what to do");
await inspect(partner, "a failed delivery");

// The receiver also rejects an event. The partner finds it in the log, and resends its delivery.
check((await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 4711 })).status === 201, "an event");
await until("the event", () => receiver.requests.length === 3);
await section(partner, "/events");
await until("a failed event", async () => (await partner.locator("main").innerText()).includes("Failed") || (await partner.reload(), false));
await inspect(partner, "events");
await load(partner, "tr[data-row] .w-result a");
await inspect(partner, "event");
await load(partner, "#deliveries a[href^='/portal/deliveries/']");
status = 204;
const actionsBefore = actions;
await load(partner, "a:has-text('Resend')");
await inspect(partner, "resend");
await load(partner, "main form.confirm button");
const actionsToResend = actions - actionsBefore;
check(actionsToResend <= 2, `at most 2 actions from a failed delivery to its resend, got ${actionsToResend}`);
await until("the new delivery", () => receiver.requests.length === 4);
await until("its success", async () => (await mainText()).includes("204") || (await partner.reload(), false));
await inspect(partner, "a new delivery");

// Replay counts first. It sends only after the partner confirms.
await visit(partner, subscription);
await load(partner, `main a[href='${subscription}/replay']`);
await partner.fill("#from", "2026-01-01T00:00");
await partner.check("input[name=only][value=all]");
await load(partner, "main button:has-text('Count events')");
await inspect(partner, "replay");
check(receiver.requests.length === 4, "nothing is sent while events are counted");
await load(partner, "main button:has-text('Replay 1 event')");
await until("the replayed event", () => receiver.requests.length === 5);
await inspect(partner, "replays");

// The code that verifies a signature contains the last delivery, and runs.
if (inFirefox) await visit(partner, subscription); // from the end of a page, Tab leads out of it
await section(partner, "/deliveries");
await inspect(partner, "deliveries");
await section(partner, "/event-types");
await inspect(partner, "event types");
await load(partner, "main a[href='/portal/event-types/content_deleted']");
await inspect(partner, "event type");
await section(partner, "/verify");
const languages = partner.locator("details.snippet");
check((await languages.locator("summary").allInnerTexts()).join() === "Python,JavaScript,Go,PHP,Ruby,Java", "six languages");
await languages.nth(1).locator("summary").click();
check((await mainText()).includes(receiver.requests.at(-1).headers["webhook-id"]), "the last delivery");
await inspect(partner, "signatures");
const runExample = async (secret) => {
  await visit(partner, `/portal/verify?subscription=${id}`);
  const file = path.join(data, "..", "verify.mjs");
  fs.writeFileSync(file, await languages.nth(1).locator("pre").nth(1).textContent());
  return execFileSync(process.execPath, [file], { encoding: "utf8", env: { ...process.env, SECRET: secret } }).trim();
};
check(await runExample(secret) === "valid: true", "the program verifies the delivery");
check(await runExample("whsec_" + Buffer.alloc(32).toString("base64")) === "valid: false", "the program refuses another secret");

// A portal session opens no admin page, and an admin session no portal page.
await visit(partner, "/subscriptions", 401);
await visit(owner, "/portal/subscriptions", 401);
const sameSecret = (name, value) => ({ name, value, url: base, secure: true, httpOnly: true });
const { page: crossed, context: crossedContext } = await openPage();
await crossedContext.addCookies([sameSecret("__Host-session", cookie.value), sameSecret("__Host-portal", (await owner.context().cookies()).find((c) => c.name === "__Host-session").value)]);
for (const to of ["/subscriptions", "/portal/subscriptions"]) await visit(crossed, to, 401);
await crossed.close();

// Origins of the program may embed the portal, and no others. No site may embed admin pages, and no
// site, not even the embedding one, may send forms to the portal.
const embedder = "https://app.example.com";
await visit(owner, "/programs/acme/portal");
await owner.fill("#origins", embedder);
await waitForLoad(owner, () => owner.getByRole("button", { name: "Save" }).click());
await owner.getByText("Saved.").waitFor();
const embed = async (page, origin, to) => {
  const html = `<!doctype html><title>app</title><iframe name="framed" width="900" height="600" src="${to}"></iframe>
    <form method="post" action="${base}${subscription}/pause" target="framed"><button>Forge</button></form>
    <form method="post" action="${base}${subscription}/delete"><button>Forge at the top</button></form>`;
  await page.context().unroute(`${origin}/**`);
  await page.context().route(`${origin}/**`, (route) => route.fulfill({ status: 200, contentType: "text/html", body: html }));
  await page.goto(`${origin}/`);
  return () => page.frames()[1];
};
const isActive = async () => (await api("GET", `/v2/webhooks/subscriptions/${id}`)).body.data?.active;
if (!inFirefox) { // Playwright's clicks do not reach frames there
  const { page: site, context: siteContext } = await openPage({ viewport: { width: 1280, height: 800 } });
  const frame = (await embed(site, embedder, await createLink()))();
  await frame.getByRole("button", { name: "Continue" }).click();
  await frame.locator("#portal-head h1").waitFor();
  const framed = (await siteContext.cookies()).find((c) => c.name === "__Host-portal-frame");
  check(framed?.sameSite === "None" && framed.secure && framed.partitionKey?.endsWith("example.com"), `a partitioned cookie, got ${JSON.stringify(framed)}`);
  await frame.locator("tr[data-row] a").first().click();
  await frame.getByRole("button", { name: "Pause" }).waitFor();
  await site.getByRole("button", { name: "Forge", exact: true }).click();
  await until("the refusal of the form", () => responses.some((r) => r.method === "POST" && r.path === `${subscription}/pause` && r.status === 403));
  check(await isActive() === true, "the forged form changed nothing");
  for (const [origin, to] of [["https://evil.example", await createLink()], ["https://evil.example", `${base}/portal/subscriptions`], [embedder, `${base}/`], [embedder, `${base}/sign-in`], [embedder, `${base}/programs/acme/portal`]]) {
    const blocked = await embed(site, origin, to);
    await until(`the block of ${to}`, () => blocked()?.url() === "chrome-error://chromewebdata/");
  }
  await embed(partner, "https://evil.example", "about:blank");
  await waitForLoad(partner, () => partner.getByRole("button", { name: "Forge at the top" }).click());
  await partner.getByText("Form sent from another site").waitFor();
  check(await isActive() === true, "no form of another site deletes a subscription");
  await site.close();
}

// Pause, resume, rotate, delete.
await visit(partner, subscription);
await load(partner, "main button:has-text('Pause')");
check(await isActive() === false, "paused");
await inspect(partner, "paused");
await load(partner, "main button:has-text('Resume')");
await load(partner, `main a[href='${subscription}/edit']`);
await inspect(partner, "edit");
await partner.fill("#description", "Content index");
await load(partner, "main button:has-text('Save')");
await load(partner, `main a[href='${subscription}/rotate-secret']`);
await inspect(partner, "rotate");
await load(partner, "main button:has-text('Rotate secret')");
const newSecret = await partner.locator("#secret").textContent();
check(newSecret !== secret, "a new secret");
await inspect(partner, "rotated");
check(await runExample(newSecret) === "valid: true", "the example fits the new secret");
await section(partner, "/");
await inspect(partner, "overview");
await partner.fill("#find", "content index");
await waitForLoad(partner, () => partner.press("#find", "Enter"));
check(new URL(partner.url()).pathname === subscription, `the search leads to the only match, got ${partner.url()}`);
await section(partner, "/subscriptions");
await inspect(partner, "subscriptions");
await load(partner, "tr[data-row] a.plain");
await load(partner, `main a[href='${subscription}/delete']`);
await inspect(partner, "delete");
await load(partner, "main form button.danger");
check((await api("GET", `/v2/webhooks/subscriptions/${id}`)).status === 404, "the subscription is deleted");

// A partner with view access sees no forms.
const { page: reader } = await openPage();
await reader.goto(runCommand("portal-link", "--data", data, "--program", "acme"));
await waitForLoad(reader, () => reader.getByRole("button", { name: "Continue" }).click());
check(await reader.locator("main form[method=post], main a[href$='/new']").count() === 0, "no forms");
await visit(reader, "/portal/subscriptions/new", 403);
await inspect(reader, "not allowed");

// A link that was used, has expired or never existed: the same page, which reveals nothing.
const openLink = await createLink();
await press(partner, "button[popovertarget=account]");
await load(partner, "#account .leave button");
await inspect(partner, "session ended");
await restart("25h");
const { page: visitor } = await openPage();
const told = new Set();
for (const [name, to] of [["used", link], ["expired", openLink], ["guessed", `${base}/portal/link/${"A".repeat(43)}`]]) {
  check((await visitor.goto(to)).status() === 404, `a ${name} link is not valid`);
  told.add((await visitor.locator("main").innerText()).replace(/[0-9a-f]{8}-[0-9a-f-]{27}/, "ID"));
}
check(told.size === 1 && [...told][0].includes("Ask for a new link."), `one page, got ${[...told].join("\n---\n")}`);
await inspect(visitor, "not valid");
await visit(reader, "/portal/subscriptions", 401);
await inspect(reader, "expired session");
console.log(`a verified webhook after ${actionsToPing} actions and ${(milliseconds / 1000).toFixed(1)} s, a resend after ${actionsToResend}`);
receiver.close();
await done();
