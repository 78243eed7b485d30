// serve --allow-http --allow-destination 127.0.0.1 --retry-schedule 5s,40s,5m,30m --attempt-timeout 2s --failing-after 6 --log-level error --max-in-flight 4 --portal-name Intranet --oidc-issuer $PROVIDER --oidc-client-id public --oidc-name Corp --oidc-role groups=staff:viewer
// Pictures of the admin pages, light and dark, after a service has run under load. FOR is the
// duration of the load in seconds, SIZES are the widths in pixels, and ONLY limits the pages by
// name.
import http from "node:http";
import { admin, base, runCommand, runCommandWithInput, data, done, newPage, screenshot, signIn, visit } from "../journeys/lib.mjs";

const runTime = Number(process.env.FOR) * 1000;
const wait = (ms) => new Promise((r) => setTimeout(r, ms));

// capture takes a picture in each size and theme, after open has loaded the page.
async function capture(page, name, open) {
  for (const width of process.env.SIZES.split(",").map(Number)) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height: width < 500 ? 780 : 860 });
      await page.emulateMedia({ colorScheme });
      await open();
      await wait(150);
      await screenshot(page, `${name}-${width === 1280 ? "" : `${width}-`}${colorScheme}`, process.env.WHOLE === "yes");
    }
  }
}

const first = await signIn();
if (process.env.ONLY?.split(",").includes("first-run")) await capture(first.page, "first-run", () => visit(first.page, "/"));

// The partners' receivers, by behaviour.
const behaviours = {
  well: () => ({ after: 3 + Math.random() * 20, status: 200, body: '{"received":true}' }),
  slow: () => ({ after: 120 + Math.random() * 400, status: 202, body: "" }),
  flaky: () => (Math.random() < 0.25 ? { after: 40, status: 503, body: '{"error":"upstream is being deployed"}' } : { after: 15, status: 200, body: "ok" }),
  strict: () => (Math.random() < 0.2 ? { after: 9, status: 422, body: '{"error":{"code":"unknown_channel","message":"channel 12 is not mapped"}}' } : { after: 12, status: 200, body: "{}" }),
  silent: () => null,
  locked: () => ({ after: 8, status: 401, body: '{"error":"token expired"}' }),
  gateway: () => ({ after: 30, status: 502, body: "<html><h1>502 Bad Gateway</h1></html>" }),
  moved: () => ({ after: 6, status: 404, body: '{"error":"no route matches /webhooks"}' }),
};
const server = http.createServer((req, res) => {
  req.resume().on("end", () => {
    const reply = behaviours[req.url.split("/").at(-1)]();
    if (reply) setTimeout(() => res.writeHead(reply.status, { "Content-Type": "application/json", Server: "partner/2.4" }).end(reply.body), reply.after).unref();
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
server.unref();
const receiverURL = (partner, behaviour) => `http://127.0.0.1:${server.address().port}/${partner}/webhooks/${behaviour}`;

const scopes = ["webhooks.read", "webhooks.write", "events.read", "events.write"].flatMap((s) => ["--scope", s]);
function program(id) {
  const token = runCommand("token", "create", "--data", data, "--program", id, "--user", "backend", "--name", "platform backend", "--expires", "90d", ...scopes);
  return async (method, to, body) => {
    const response = await fetch(base + to, { method, headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
    return response.json();
  };
}
const northwind = program("northwind");
const contoso = program("contoso");
runCommand("token", "create", "--data", data, "--program", "empty", "--user", "backend", "--scope", "events.read");
runCommand("token", "create", "--data", data, "--program", "northwind", "--user", "reporting", "--name", "reporting, read only", "--scope", "events.read");

const { data: types } = await northwind("GET", "/v2/event_types");
const subscribable = types.map((t) => t.name);
const eventRefs = (...names) => names.map((name) => ({ name, version: "1" }));
const subscriptions = [
  [northwind, "intranet search", receiverURL("search", "well"), eventRefs("content_published", "content_updated", "content_deleted")],
  [northwind, "Teams connector", receiverURL("teams", "flaky"), eventRefs("content_published", "channel_created", "channel_archived")],
  [northwind, "analytics warehouse", receiverURL("warehouse", "slow"), eventRefs(...subscribable.filter((n) => n !== "ping").slice(0, 8))],
  [northwind, "HR system", receiverURL("hr", "strict"), eventRefs("content_published", "user_created", "user_updated").filter((e) => subscribable.includes(e.name))],
  [northwind, "old kiosk, being moved", receiverURL("kiosk", "silent"), eventRefs("content_published")],
  [contoso, "newsletter", receiverURL("newsletter", "well"), eventRefs("content_published")],
];
// With these there are 41, of which 13 fail.
const others = ["payroll", "badge office", "canteen", "library", "service desk", "works council", "translation", "archive", "travel desk", "parking", "fleet", "occupational health", "signage",
  "press review", "learning", "onboarding", "expenses", "procurement", "legal hold", "safety", "facilities", "switchboard", "room booking", "print center", "mail room", "fitness", "daycare",
  "alumni", "suggestions", "recruiting", "directory", "time clock", "shift planning", "news ticker", "branch tablets"];
for (const [i, name] of others.entries()) {
  const behaviour = i < 12 ? ["locked", "gateway", "moved", "silent"][i % 4] : "well";
  subscriptions.push([i % 5 === 4 ? contoso : northwind, name, receiverURL(name.replaceAll(" ", "-"), behaviour), eventRefs("content_published", "content_updated")]);
}
for (const [api, description, url, events] of subscriptions) {
  await api("POST", "/v2/webhooks/subscriptions", { url, events, description, authorization_header: "Bearer partner-secret" });
}

const events = types.filter((t) => t.example && t.name !== "ping").map((t) => t.example);
const content = events.filter((e) => e.name.startsWith("content_"));
const start = Date.now();
for (let n = 0; Date.now() - start < runTime; n++) {
  const api = n % 6 ? northwind : contoso;
  const example = n % 3 ? content[n % content.length] : events[n % events.length];
  const { id, timestamp, ...event } = example;
  await api("POST", "/v2/events", event);
  if (n === 20) { // some actions of an admin
    await visit(first.page, "/subscriptions");
    await first.page.click("main [data-row] a");
    await first.page.getByRole("button", { name: "ping" }).first().click();
    await first.page.waitForLoadState();
  }
  await wait(150 + 500 * Math.abs(Math.sin(n / 40)) * Math.random());
}

// Two more admins; invite adds a third.
for (const [email, role] of [["kim@example.com", "operator"], ["lee@example.com", "viewer"]]) runCommandWithInput(admin.password, "admin", "create", "--data", data, "--email", email, "--role", role);
const invite = async (email) => {
  await visit(first.page, "/admins/invite");
  await first.page.fill("#email", email);
  await first.page.getByRole("button", { name: "Create invitation" }).click();
  return new URL(await first.page.getByLabel("Link", { exact: true }).textContent()).pathname;
};
const invitation = await invite("sam@example.com");

const portalLink = async (role) => runCommand("portal-link", "--data", data, "--program", "northwind", "--role", role);

const href = async (page, path, selector) => {
  await visit(page, path);
  return page.locator(selector).first().getAttribute("href");
};
const { page, context } = first;
const samples = {
  subscription: await href(page, "/subscriptions?filter[search]=teams", "main [data-row] a[href^='/subscriptions/']"),
  failing: await href(page, "/subscriptions?filter[status]=failing", "main [data-row] a[href^='/subscriptions/']"),
  retried: await href(page, "/deliveries?filter[status]=success&filter[attempts_made.from]=2", "main [data-row] a[href^='/deliveries/']"),
  failed: await href(page, "/deliveries?filter[status]=failed", "main [data-row] a[href^='/deliveries/']"),
  event: await href(page, "/events?program=northwind", "main [data-row] a[href^='/events/']"),
  type: await href(page, "/event-types", "main [data-row] a[href^='/event-types/']"),
  incident: await href(page, "/incidents", "main [data-row] a[href^='/incidents/']"),
  token: await href(page, "/tokens", "main [data-row] a[href^='/tokens/']"),
  admin: await href(page, "/admins", "main [data-row] a:has-text('kim@example.com')"),
};
const pages = {
  overview: "/", incidents: "/incidents", incident: samples.incident, subscriptions: "/subscriptions", subscription: samples.subscription, "subscription-failing": samples.failing, "subscription-new": "/subscriptions/new",
  "subscription-edit": `${samples.subscription}/edit`, "subscription-rotate": `${samples.subscription}/rotate-secret`, "subscription-replay": `${samples.subscription}/replay`,
  "subscription-delete": `${samples.subscription}/delete`, deliveries: "/deliveries", delivery: samples.retried, "delivery-failed": samples.failed,
  redeliver: "/deliveries/redeliver?filter[status]=failed", events: "/events", event: samples.event, publish: "/events/publish", "event-types": "/event-types", "event-type": samples.type,
  tokens: "/tokens", "token-new": "/tokens/new", token: samples.token, system: "/system", admins: "/admins", admin: samples.admin, "admin-invite": "/admins/invite", "admin-remove": `${samples.admin}/remove`,
  programs: "/programs", program: "/programs/northwind", "program-edit": "/programs/northwind/edit", "program-portal": "/programs/northwind/portal", "program-new": "/programs/-/new", "program-erase": "/programs/northwind/erase", alerts: "/alerts", "alert-new": "/alerts/new",
  audit: "/audit", account: "/account", preferences: "/preferences", find: "/find",
};
const names = process.env.ONLY ? process.env.ONLY.split(",") : Object.keys(pages);
const wanted = (group) => !process.env.ONLY || names.includes(group);
if (wanted("portal")) { // the pages of a partner
  const partner = await newPage();
  const open = await portalLink("write");
  await capture(partner.page, "portal-link", () => partner.page.goto(open));
  await partner.page.getByRole("button", { name: "Continue" }).click();
  await partner.page.waitForURL(/\/portal\/$/);
  const portalPages = {
    overview: "/", subscriptions: "/subscriptions", "subscription-new": "/subscriptions/new", subscription: samples.subscription, "subscription-failing": samples.failing, "subscription-edit": `${samples.subscription}/edit`,
    rotate: `${samples.subscription}/rotate-secret`, replay: `${samples.subscription}/replay?from=2020-01-01T00:00&only=failed`, delete: `${samples.subscription}/delete`, deliveries: "/deliveries", delivery: samples.retried, "delivery-failed": samples.failed,
    events: "/events", event: samples.event, "event-types": "/event-types", "event-type": samples.type, verify: "/verify",
  };
  for (const [name, to] of Object.entries(portalPages)) await capture(partner.page, `portal-${name}`, () => visit(partner.page, `/portal${to}`));
  await capture(partner.page, "portal-used", () => partner.page.goto(open));
  await visit(partner.page, "/portal/subscriptions");
  await partner.page.click("button[popovertarget=account]");
  await partner.page.getByRole("button", { name: "End session" }).click();
  await capture(partner.page, "portal-ended", async () => {});
  await capture(page, "program-portal-link", async () => {
    await visit(page, "/programs/northwind/portal");
    await page.selectOption("#role", "write");
    await page.getByRole("button", { name: "Create link" }).click();
  });
  const empty = await newPage();
  await empty.page.goto(runCommand("portal-link", "--data", data, "--program", "empty", "--role", "write"));
  await empty.page.getByRole("button", { name: "Continue" }).click();
  await capture(empty.page, "portal-empty", () => visit(empty.page, "/portal/subscriptions"));
}
if (wanted("shared")) {
  await visit(page, samples.failed);
  await page.getByRole("button", { name: "Share" }).click();
  const shared = (await page.locator(".copybox code").textContent()).trim();
  await capture(page, "share-created", async () => {});
  const stranger = await newPage();
  await capture(stranger.page, "shared", () => stranger.page.goto(shared));
}
if (process.env.ONLY?.includes("bulk-run")) {
  await visit(page, "/deliveries/redeliver?filter[status]=failed");
  await page.locator("form.confirm button").click();
  await page.waitForURL(/bulk-runs/);
  Object.assign(pages, { "bulk-run": new URL(page.url()).pathname, "bulk-runs": "/bulk-runs" });
}
if (process.env.ONLY?.includes("deliveries-selected")) pages["deliveries-selected"] = "/deliveries?filter[status]=failed,retryable";
if (process.env.ONLY?.includes("role")) { // the pages of an invited admin and of a viewer
  const guest = await newPage();
  await capture(guest.page, "role-invitation", () => visit(guest.page, invitation));
  await guest.page.getByRole("button", { name: "Continue" }).click();
  await capture(guest.page, "role-accept", async () => {});
  await capture(page, "role-invited", async () => {
    await invite("pat@example.com");
  });
  // A viewer signs in through the provider.
  await fetch(`${process.env.PROVIDER}/test/groups?user=id-ana&group=staff`, { method: "POST" });
  const viewer = await newPage({}, ["the server responded with a status of 404"]); // the page of the provider has no icon
  await visit(viewer.page, "/sign-in");
  await viewer.page.getByRole("link", { name: "Sign in with Corp" }).click();
  await viewer.page.fill("#username", "ana");
  await viewer.page.fill("#password", "verysecure");
  await viewer.page.getByRole("button", { name: "Login" }).click();
  await viewer.page.waitForURL(`${base}/`);
  const viewerPages = { "role-viewer-subscription": [samples.failing ?? samples.subscription], "role-viewer-overview": ["/"], "role-viewer-deliveries": ["/deliveries"], "role-viewer-admins": ["/admins"], "role-viewer-403": ["/tokens/new", 403], "role-viewer-delivery": [samples.failed], "role-viewer-account": ["/account"] };
  for (const [name, to] of Object.entries(viewerPages)) await capture(viewer.page, name, () => visit(viewer.page, ...to));
}
if (process.env.ONLY?.includes("rejected")) { // forms with errors
  const press = (button) => page.getByRole("button", { name: button, exact: true }).first().click();
  const rejected = {
    program: ["/programs/-/new", { "#id": "contoso one", "#rate-limit": "many" }, "Create program"],
    "program-erase": ["/programs/northwind/erase", { "#confirm": "contoso" }, "Erase program"],
    "program-origins": ["/programs/northwind/portal", { "#origins": "http://app.example.com/path" }, "Save"],
    invitation: ["/admins/invite", { "#email": admin.email }, "Create invitation"],
    password: ["/account", { "#current": "wrong", "#password": "short", "#again": "short" }, "Change password"],
    subscription: [`${samples.subscription}/edit`, { "#url": "http://10.0.0.1/" }, "Save"],
  };
  for (const [name, [to, fields, button]] of Object.entries(rejected)) {
    await capture(page, `rejected-${name}`, async () => {
      await visit(page, to);
      for (const [field, text] of Object.entries(fields)) await page.fill(field, text);
      await press(button);
      await page.locator("main .alarm[role=alert]").waitFor();
    });
  }
  await capture(page, "rejected-list", () => visit(page, "/deliveries?filter[status]=broken&sort=colour", 400));
}
const openPage = async (name) => {
  await visit(page, pages[name]);
  if (name.endsWith("-selected")) for (const i of [0, 1]) await page.locator("input[data-tick]").nth(i).check();
};
for (const name of names.filter((name) => !["first-run", "role", "portal", "shared", "rejected"].includes(name))) {
  if (pages[name]) await capture(page, name, () => openPage(name));
  else console.log(`${name}: no such page`);
}
if (!process.env.ONLY) {
  const signedOut = await newPage();
  await capture(signedOut.page, "sign-in", () => visit(signedOut.page, "/sign-in"));
}
await context.close();
await done();
