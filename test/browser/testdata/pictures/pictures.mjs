// serve --allow-http --allow-destination 127.0.0.1 --retry-schedule 5s,40s,5m,30m --attempt-timeout 2s --failing-after 6 --log-level error --max-in-flight 4
// Pictures of all pages, light and dark, of a service with some life in it.
// FOR is how many seconds it lives before, and SIZES are the widths.
import http from "node:http";
import { admin, base, command, commandWith, data, done, fresh, screenshot, signedIn, visit } from "../journeys/lib.mjs";

const lives = Number(process.env.FOR) * 1000;
const wait = (ms) => new Promise((r) => setTimeout(r, ms));

// shoot takes a picture of a page in each size and theme, after show has opened it.
async function shoot(p, name, show) {
  for (const width of process.env.SIZES.split(",").map(Number)) {
    for (const colorScheme of ["light", "dark"]) {
      await p.setViewportSize({ width, height: width < 500 ? 780 : 860 });
      await p.emulateMedia({ colorScheme });
      await show();
      await wait(150);
      await screenshot(p, `${name}-${width === 1280 ? "" : `${width}-`}${colorScheme}`, process.env.WHOLE === "yes");
    }
  }
}

const first = await signedIn();
if (process.env.ONLY?.split(",").includes("first-run")) await shoot(first.page, "first-run", () => visit(first.page, "/"));

// The partners' servers, by what they are like.
const kinds = {
  well: () => ({ after: 3 + Math.random() * 20, status: 200, body: '{"received":true}' }),
  slow: () => ({ after: 120 + Math.random() * 400, status: 202, body: "" }),
  flaky: () => (Math.random() < 0.25 ? { after: 40, status: 503, body: '{"error":"upstream is being deployed"}' } : { after: 15, status: 200, body: "ok" }),
  strict: () => (Math.random() < 0.2 ? { after: 9, status: 422, body: '{"error":{"code":"unknown_channel","message":"channel 12 is not mapped"}}' } : { after: 12, status: 200, body: "{}" }),
  silent: () => null,
};
const server = http.createServer((req, res) => {
  req.resume().on("end", () => {
    const a = kinds[req.url.split("/").at(-1)]();
    if (a) setTimeout(() => res.writeHead(a.status, { "Content-Type": "application/json", Server: "partner/2.4" }).end(a.body), a.after).unref();
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
server.unref();
const at = (who, kind) => `http://127.0.0.1:${server.address().port}/${who}/webhooks/${kind}`;

const scopes = ["webhooks.read", "webhooks.write", "events.read", "events.write"].flatMap((s) => ["--scope", s]);
function program(id) {
  const token = command("token", "create", "--data", data, "--program", id, "--user", "backend", "--name", "platform backend", "--expires", "90d", ...scopes);
  return async (method, to, body) => {
    const answer = await fetch(base + to, { method, headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
    return answer.json();
  };
}
const northwind = program("northwind");
const contoso = program("contoso");
command("token", "create", "--data", data, "--program", "northwind", "--user", "reporting", "--name", "reporting, read only", "--scope", "events.read");

const { data: types } = await northwind("GET", "/v2/event_types");
const subscribable = types.map((t) => t.name);
const named = (...names) => names.map((name) => ({ name, version: "1" }));
const subscriptions = [
  [northwind, "intranet search", at("search", "well"), named("content_published", "content_updated", "content_deleted")],
  [northwind, "Teams connector", at("teams", "flaky"), named("content_published", "channel_created", "channel_archived")],
  [northwind, "analytics warehouse", at("warehouse", "slow"), named(...subscribable.filter((n) => n !== "ping").slice(0, 8))],
  [northwind, "HR system", at("hr", "strict"), named("content_published", "user_created", "user_updated").filter((e) => subscribable.includes(e.name))],
  [northwind, "old kiosk, being moved", at("kiosk", "silent"), named("content_published")],
  [contoso, "newsletter", at("newsletter", "well"), named("content_published")],
];
for (const [of, description, url, events] of subscriptions) {
  await of("POST", "/v2/webhooks/subscriptions", { url, events, description, authorization_header: "Bearer partner-secret" });
}

const events = types.filter((t) => t.example && t.name !== "ping").map((t) => t.example);
const content = events.filter((e) => e.name.startsWith("content_"));
const began = Date.now();
for (let n = 0; Date.now() - began < lives; n++) {
  const of = n % 6 ? northwind : contoso;
  const example = n % 3 ? content[n % content.length] : events[n % events.length];
  const { id, timestamp, ...event } = example;
  await of("POST", "/v2/events", event);
  if (n === 20) { // an admin was here as well
    await visit(first.page, "/subscriptions");
    await first.page.click("main [data-row] a");
    await first.page.getByRole("button", { name: "ping" }).first().click();
    await first.page.waitForLoadState();
  }
  await wait(150 + 500 * Math.abs(Math.sin(n / 40)) * Math.random());
}

// Colleagues: one who is invited, and two who are admins.
for (const [email, role] of [["kim@example.com", "operator"], ["lee@example.com", "viewer"]]) commandWith(admin.password, "admin", "create", "--data", data, "--email", email, "--role", role);
const invite = async (email) => {
  await visit(first.page, "/admins/invite");
  await first.page.fill("#email", email);
  await first.page.getByRole("button", { name: "Create invitation" }).click();
  return new URL(await first.page.getByLabel("Link", { exact: true }).textContent()).pathname;
};
const invitation = await invite("sam@example.com");

const href = async (page, path, selector) => {
  await visit(page, path);
  return page.locator(selector).first().getAttribute("href");
};
const { page, context } = first;
const one = {
  subscription: await href(page, "/subscriptions?filter[url]=teams", "main [data-row] a[href^='/subscriptions/']"),
  failing: await href(page, "/subscriptions?filter[status]=failing", "main [data-row] a[href^='/subscriptions/']"),
  retried: await href(page, "/deliveries?filter[status]=success&filter[attempts_made.from]=2", "main [data-row] a[href^='/deliveries/']"),
  failed: await href(page, "/deliveries?filter[status]=failed", "main [data-row] a[href^='/deliveries/']"),
  event: await href(page, "/events", "main [data-row] a[href^='/events/']"),
  type: await href(page, "/event-types", "main [data-row] a[href^='/event-types/']"),
  incident: await href(page, "/incidents", "main [data-row] a[href^='/incidents/']"),
  token: await href(page, "/tokens", "main [data-row] a[href^='/tokens/']"),
  admin: await href(page, "/admins", "main [data-row] a:has-text('kim@example.com')"),
};
const pages = {
  overview: "/", incidents: "/incidents", incident: one.incident, subscriptions: "/subscriptions", subscription: one.subscription, "subscription-failing": one.failing, "subscription-new": "/subscriptions/new",
  "subscription-edit": `${one.subscription}/edit`, "subscription-rotate": `${one.subscription}/rotate-secret`, "subscription-replay": `${one.subscription}/replay`,
  "subscription-delete": `${one.subscription}/delete`, deliveries: "/deliveries", delivery: one.retried, "delivery-failed": one.failed,
  redeliver: "/deliveries/redeliver?filter[status]=failed", events: "/events", event: one.event, publish: "/events/publish", "event-types": "/event-types", "event-type": one.type,
  tokens: "/tokens", "token-new": "/tokens/new", token: one.token, system: "/system", admins: "/admins", admin: one.admin, "admin-invite": "/admins/invite", "admin-remove": `${one.admin}/remove`,
  audit: "/audit", account: "/account", preferences: "/preferences", find: "/find",
};
if (process.env.ONLY?.includes("bulk-run")) {
  await visit(page, "/deliveries/redeliver?filter[status]=failed");
  await page.locator("form.confirm button").click();
  await page.waitForURL(/bulk-runs/);
  Object.assign(pages, { "bulk-run": new URL(page.url()).pathname, "bulk-runs": "/bulk-runs" });
}
if (process.env.ONLY?.includes("deliveries-selected")) pages["deliveries-selected"] = "/deliveries?filter[status]=failed,retryable";
if (process.env.ONLY?.includes("role")) { // what the invited see, and a viewer
  const guest = await fresh();
  await shoot(guest.page, "role-invitation", () => visit(guest.page, invitation));
  await guest.page.getByRole("button", { name: "Continue" }).click();
  await shoot(guest.page, "role-accept", async () => {});
  await shoot(page, "role-invited", async () => {
    await invite("pat@example.com");
  });
  const viewer = await fresh();
  await visit(viewer.page, "/sign-in");
  await viewer.page.fill("#email", "lee@example.com");
  await viewer.page.fill("#password", admin.password);
  await viewer.page.click("button.primary");
  await viewer.page.waitForURL(`${base}/`);
  const seen = { "role-viewer-subscription": [one.failing ?? one.subscription], "role-viewer-overview": ["/"], "role-viewer-deliveries": ["/deliveries"], "role-viewer-admins": ["/admins"], "role-viewer-403": ["/tokens/new", 403], "role-viewer-delivery": [one.failed], "role-viewer-account": ["/account"] };
  for (const [name, to] of Object.entries(seen)) await shoot(viewer.page, name, () => visit(viewer.page, ...to));
}
const only = process.env.ONLY ? process.env.ONLY.split(",") : Object.keys(pages);
const show = async (name) => {
  await visit(page, pages[name]);
  if (name.endsWith("-selected")) for (const i of [0, 1]) await page.locator("input[data-tick]").nth(i).check();
};
for (const name of only.filter((name) => name !== "first-run" && name !== "role")) {
  if (pages[name]) await shoot(page, name, () => show(name));
  else console.log(`${name}: nothing to show`);
}
if (!process.env.ONLY) {
  const out = await fresh();
  await shoot(out.page, "sign-in", () => visit(out.page, "/sign-in"));
}
await context.close();
await done();
