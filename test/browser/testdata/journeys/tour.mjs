// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0
// All pages that there are, of a world in which all text from outside is hostile:
// no fault of axe, light and dark, narrow and wide; nothing wider than the screen;
// no complaint; nothing of the text has run, or become a part of a page, or turned
// the direction of writing. A page that is in the table of web/web.go and was not
// asked for here fails the tour.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { admin, api, asked, base, check, command, commandWith, data, done, fresh, link, looksOnce, restart, routes, signedIn, until, visit } from "./lib.mjs";

// What text from outside tries: to leave an attribute, an element, a script, a
// style; to be run; to be taken for something else; to break the layout.
const rlo = "\u202e";
const attack = `"'><script>window.ran=1;alert(1)</script><img src=x onerror="window.ran=1;alert(1)"><b id=injected>${rlo}\u2066\u200b`;
const control = "\u0000\u0001\u001b[31m\u007f\u0085\r";
const long = "W".repeat(600);
const faults = [];

// inert holds a page as it stands against all of that.
async function inert(page) {
  const found = await page.evaluate(() => {
    const bad = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;
    const all = [];
    if (window.ran) all.push("a script of the text ran");
    for (const e of document.querySelectorAll("img, iframe, object, embed, base, style, link:not([href^='/assets/']), script:not([src^='/assets/']), #injected, svg script, svg foreignObject, a[href^='javascript:' i], form[action]:not([action^='/'])")) all.push(`an element of the text: ${e.outerHTML.slice(0, 200)}`);
    for (const e of document.querySelectorAll("*")) {
      for (const a of e.attributes) {
        if (/^on/i.test(a.name)) all.push(`a handler: ${e.outerHTML.slice(0, 200)}`);
        if (!["value", "data-picker-text"].includes(a.name) && bad.test(a.value)) all.push(`${e.localName}[${a.name}] has a character that is not seen: ${JSON.stringify(a.value.slice(0, 80))}`);
      }
    }
    const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    for (let t = walk.nextNode(); t; t = walk.nextNode()) {
      if (!["TEXTAREA", "SCRIPT"].includes(t.parentElement.tagName) && bad.test(t.data)) all.push(`${t.parentElement.localName}.${t.parentElement.className} has a character that is not seen: ${JSON.stringify(t.data.slice(0, 80))}`);
    }
    return all;
  });
  faults.push(...found.map((f) => `${page.url().slice(0, 120)}: ${f}`));
}

// The route of a path, as web/web.go has it.
const patterns = routes.map((route) => ({ ...route, of: new RegExp(`^${route.path.replace("{$}", "").split(/\{[^}]+\}/).map((s) => s.replace(/[.*+?^$()|[\]\\]/g, "\\$&")).join("[^/]+")}$`) }));
const routeOf = (path) => patterns.filter((route) => route.of.test(path)).sort((a, b) => a.path.split("{").length - b.path.split("{").length)[0]?.path ?? "none";

let looked = 0, byAxe = 0;
async function hold(page) {
  looked++;
  await inert(page);
  if (await page.locator("h1").count() !== 1) faults.push(`${page.url()}: ${await page.locator("h1").count()} h1`);
  try {
    if (await looksOnce(page, routeOf(new URL(page.url()).pathname))) byAxe++;
  } catch (err) {
    faults.push(err.message.replace(/^.*/, (url) => url.slice(0, 120)));
  }
}
const expected = ["the server responded with a status of 4", "the server responded with a status of 500"]; // pages that say what is wrong
const see = async (page, to, status = 200) => {
  const answer = await page.goto(base + to);
  if (answer.status() !== status) faults.push(`${to.slice(0, 80)}: status ${status}, got ${answer.status()}`);
  await hold(page);
};

// post sends a form as a page of ours would, and looks at the answer.
async function post(page, to, fields, status, around = "/preferences") {
  await visit(page, around);
  const [answer] = await Promise.all([
    page.waitForNavigation(),
    page.evaluate(([action, values]) => {
      const form = document.createElement("form");
      Object.assign(form, { method: "post", action });
      for (const [name, value] of values) form.append(Object.assign(document.createElement("textarea"), { name, value }));
      document.body.append(form);
      form.submit();
    }, [to, fields]),
  ]);
  if (answer.status() !== status) faults.push(`POST ${to}: status ${status}, got ${answer.status()}: ${(await page.locator("body").innerText()).slice(0, 200)}`);
  await hold(page);
}

// Before there is an admin.
const stranger = (await fresh({}, expected)).page;
stranger.on("dialog", (d) => { faults.push(`a dialog: ${d.message()}`); d.dismiss(); });
await see(stranger, "/", 401);
await see(stranger, "/setup/no-such-code", 404);
await visit(stranger, link.slice(base.length));
await hold(stranger);
await stranger.evaluate(() => document.querySelectorAll("input").forEach((i) => { i.removeAttribute("required"); i.type = "text"; }));
await stranger.fill("#email", attack);
await stranger.click("button.primary");
await stranger.getByText("Nothing was saved.").waitFor();
await hold(stranger);
const { page, context } = await signedIn({ userAgent: `${attack.replaceAll(/[^ -~]/g, "")}${long}` }, expected);
const second = (await signedIn({}, expected)).page;
for (const p of [page, second]) p.on("dialog", (d) => { faults.push(`a dialog: ${d.message()}`); d.dismiss(); });

// Nothing is there yet.
for (const section of ["/deliveries", "/subscriptions", "/subscriptions/new", "/events", "/tokens"]) await see(page, section);

// The world: event types of the operator, a server, tokens, subscriptions, events.
const common = { id: { type: "string", format: "uuid" }, timestamp: { type: "string", format: "date-time" }, name: { const: "hostile_thing" }, version: { const: "1" } };
fs.mkdirSync(path.join(data, "event_types"), { recursive: true });
fs.writeFileSync(path.join(data, "event_types", "hostile_thing.json"), JSON.stringify({
  title: attack + long, description: attack + long, type: "object",
  properties: { ...common, [attack]: { type: "string", description: attack + control + long }, [long]: { enum: [attack, long] }, note: { type: "string" } },
  required: ["id", "timestamp", "name", "version"], additionalProperties: false,
  examples: [{ id: "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", timestamp: "2026-03-14T08:24:48.644Z", name: "hostile_thing", version: "1", [attack]: attack + long, note: `</pre>${attack}` }],
}));
fs.writeFileSync(path.join(data, "event_types", `${"w".repeat(60)}.json`), JSON.stringify({
  title: "Long", description: "Its name is long.", type: "object", properties: { ...common, name: { const: "w".repeat(60) } },
  required: ["id", "timestamp", "name", "version"], additionalProperties: false,
  examples: [{ id: "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", timestamp: "2026-03-14T08:24:48.644Z", name: "w".repeat(60), version: "1" }],
}));
await restart();

// What the server answers, as bytes: by the path of the request.
const bodies = {
  "/html": Buffer.from(`<!doctype html><script>window.ran=1;alert(1)</script>${attack}`),
  "/json": Buffer.from(JSON.stringify({ [attack]: [attack + control, { deep: attack }], line: "x".repeat(1 << 20) })),
  "/line": Buffer.alloc(1 << 20, "W"),
  "/bytes": Buffer.from([0xff, 0xfe, 0x00, 0x80, 0xc0, 0xaf, ...Buffer.from(attack)]),
};
let answering = 503;
const server = net.createServer((socket) => {
  socket.on("error", () => {});
  socket.once("data", (head) => {
    const target = head.toString("latin1").split(" ")[1];
    const body = bodies[Object.keys(bodies).find((at) => target.startsWith(at))] ?? Buffer.from(attack);
    socket.write(Buffer.concat([
      Buffer.from(`HTTP/1.1 ${answering} ${attack}\r\nContent-Length: ${body.length}\r\nConnection: close\r\nContent-Type: text/html; charset="${attack}\r\nX-Attack: ${attack}\r\nX-Long: ${long.repeat(10)}\r\nLocation: javascript:alert(1)//${attack}\r\nX-Bytes: `),
      Buffer.from([0xff, 0xc0, 0xaf]), Buffer.from("\r\n\r\n"), body,
    ]));
    socket.end();
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
server.unref();
const origin = `http://127.0.0.1:${server.address().port}`;

// A program's id and a user's are letters, digits, dots and hyphens; they can be long.
const program = "p".repeat(64);
command("token", "create", "--data", data, "--program", program, "--user", "u".repeat(64), "--scope", "webhooks.read", "--name", `${rlo}<script>alert(1)</script>\u0001${"W".repeat(120)}`);
const email = `o'brien&lt!--\${{${"w".repeat(200)}}}@example.com`;
commandWith(admin.password, "admin", "create", "--data", data, "--email", email);

const subscriptions = {};
for (const at of ["/html", "/json", "/line", "/bytes"]) {
  const url = `${origin}${at}/"'><script>alert(1)</script>/%00%1b%E2%80%AE/${"w".repeat(at === "/line" ? 1800 : 100)}?secret=<b>`;
  const { status, body } = await api("POST", "/v2/webhooks/subscriptions", { url, description: `${attack}${control}${rlo}${long}`, events: [{ name: "hostile_thing" }, { name: "content_deleted" }, { name: "w".repeat(60) }] });
  check(status === 201, `a subscription: ${JSON.stringify(body)}`);
  subscriptions[at] = body.data.id;
}
const events = [];
for (const note of [`${attack}${control}`, long.repeat(20), "line\nline\r\nline", "x".repeat(100_000)]) {
  const { status, body } = await api("POST", "/v2/events", { name: "hostile_thing", version: "1", note, [attack]: note });
  check(status === 201, `an event: ${JSON.stringify(body)}`);
  events.push(body.data?.id ?? body.data?.[0]?.id);
}
await api("POST", "/v2/events", { name: "w".repeat(60), version: "1" });
const deliveries = {};
for (const [at, id] of Object.entries(subscriptions)) {
  deliveries[at] = await until(`deliveries of ${at}`, async () => {
    const { body } = await api("GET", `/v2/webhooks/subscriptions/${id}/deliveries?filter[status]=retryable&filter[event]=hostile_thing`);
    return body.data.length && body.data.at(-1).id;
  });
}
// An incident: the servers reject what comes next.
answering = 410;
await api("POST", "/v2/events", { name: "hostile_thing", version: "1", note: attack });
const incident = await until("an incident of each", async () => {
  const { body } = await api("GET", "/v2/incidents?filter[status]=open");
  return body.data.length === Object.keys(subscriptions).length && body.data[0].id;
});
answering = 503;

// All pages, by GET. Nothing changes meanwhile, and two go there at once.
const q = encodeURIComponent(attack + long);
const [html, json] = [subscriptions["/html"], subscriptions["/json"]];
const delivery = deliveries["/html"];
await visit(page, "/tokens");
const token = await page.locator("tr[data-row] a[href^='/tokens/']").first().getAttribute("href");
await visit(page, "/admins");
const other = await page.locator("tr[data-row] a[href^='/admins/']", { hasText: "brien" }).getAttribute("href");
const gets = [
  ...["/", "/deliveries", "/subscriptions", "/events", "/event-types", "/tokens", "/audit", "/system", "/account", "/preferences", "/find"],
  [`/find?q=${q}`, 404],
  `/?program=${program}`,
  ...["/incidents", "/incidents?filter[status]=resolved", `/incidents/${incident}`],
  ["/incidents/no-such", 404],
  ...["/alerts", "/alerts/new"],
  ["/alerts/no-such", 404],
  ...["/admins", "/admins/invite", other, `${other}/remove`],
  ["/admins/no-such", 404],
  ["/invitation/no-such", 404],
  ...["/deliveries", "/audit", "/incidents"].map((list) => [`${list}?filter[nonsense]=${q}&sort=${q}&page[size]=${q}`, 400]), // which say what is wrong
  [`/deliveries?filter[event]=${q}&program=${q}`, 400],
  "/deliveries?filter[status]=pending", // and nothing matches
  ["/deliveries?page[cursor]=%zz", 400],
  [`/${q}`, 404],
  ["/sign-out", 405],
  [`/sign-in/${q}`, 404],
  ...["/html", "/line"].map((at) => `/subscriptions/${subscriptions[at]}`),
  ...["edit", "rotate-secret", "replay", "replay?from=2020-01-01T00:00&only=all", "delete"].map((what) => `/subscriptions/${html}/${what}`),
  [`/subscriptions/${html}/replay?from=${q}&to=${q}&only=${q}`, 422],
  "/subscriptions/new",
  ...Object.values(deliveries).map((id) => `/deliveries/${id}`),
  ...["redeliver", "cancel"].flatMap((what) => [`/deliveries/${delivery}/${what}`, `/deliveries/${what}?filter[status]=retryable`]),
  [`/deliveries/redeliver?filter[nonsense]=${q}`, 400],
  `/events/acme/${events[0]}`,
  `/events/acme/${events[1]}`,
  "/events/publish?program=acme&name=hostile_thing",
  `/events/publish?program=acme&like=${events[0]}`,
  ...["hostile_thing", "w".repeat(60), "ping"].map((name) => `/event-types/${name}`),
  ...[token, `${token}/revoke`, "/tokens/new"],
  ["/tokens/no-such", 404],
].map((to) => [to].flat());
const walk = async (page) => {
  for (let next = gets.shift(); next; next = gets.shift()) {
    await see(page, ...next);
    if (await page.evaluate(() => [...document.querySelectorAll("details")].filter((d) => !d.open).map((d) => { d.open = true; }).length)) await inert(page);
  }
};
await Promise.all([walk(page), walk(second)]);
await second.close();

// Files are not pages: they are kept, or shown as plain text.
const status = await context.request.get(`${base}/status`); // a part of every page
check(status.ok() && (await status.text()).includes("4 incidents"), "the state of the service");
asked.push({ method: "GET", path: "/status", status: status.status() });
for (const to of [...["deliveries", "events", "subscriptions", "tokens", "audit"].flatMap((list) => [`/${list}/export?format=ndjson`, `/${list}/export?format=csv`]),
  `/deliveries/${delivery}/body.json.txt`, `/deliveries/${delivery}/attempts/1/body.txt`, `/events/acme/${events[0]}/body.json.txt`]) {
  const answer = await context.request.get(base + to);
  const header = answer.headers();
  check(answer.ok(), `${to}: ${answer.status()}`);
  check(header["x-content-type-options"] === "nosniff" && !/html|xml|svg/.test(header["content-type"]), `${to} is not taken for a page: ${header["content-type"]}`);
  check(header["content-disposition"]?.startsWith("attachment") && !/[<>]/.test(header["content-disposition"]), `${to} is kept: ${header["content-disposition"]}`);
  asked.push({ method: "GET", path: new URL(base + to).pathname, status: answer.status() });
}

// What is done, and the pages that say what came of it.
const form = async (to) => {
  await visit(page, to);
  return page.locator("input[name=once]").first().getAttribute("value");
};
await post(page, "/subscriptions/new", [["once", "x"], ["for_program", attack], ["url", attack + long], ["events", attack], ["events", long], ["description", attack], ["max_in_flight", attack]], 422);
await post(page, "/subscriptions/new", [["once", await form("/subscriptions/new")], ["for_program", program], ["url", `${origin}/new/${"w".repeat(300)}`], ["events", "hostile_thing"]], 200);
await post(page, `/subscriptions/${html}/edit`, [["url", attack + long], ["events", long], ["description", attack + long.repeat(20)], ["max_in_flight", attack]], 422);
await post(page, `/subscriptions/${html}/edit`, [["revision", "0"], ["url", `${origin}/html/`], ["events", "hostile_thing"], ["description", attack]], 409);
await post(page, `/subscriptions/${html}/ping`, [], 200);
await page.locator("#ping").getByText("503").first().waitFor();
await post(page, `/subscriptions/${html}/test`, [["name", attack]], 422);
await post(page, `/subscriptions/${html}/test`, [["name", "hostile_thing"]], 200);
await visit(page, "/find");
await page.evaluate((text) => fetch(`/find/suggest?q=${text}`), q); // as the field does while the visitor types
await post(page, `/subscriptions/${html}/probe`, [], 200); // it is not failing, which is said
await hold(page);
await post(page, `/subscriptions/${html}/pause`, [], 200);
await see(page, "/events/publish?program=acme&name=hostile_thing"); // who would miss it
await post(page, `/subscriptions/${html}/resume`, [], 200);
await post(page, `/subscriptions/${html}/rotate-secret`, [["once", await form(`/subscriptions/${html}/rotate-secret`)]], 200);
await see(page, `/subscriptions/${html}`);
await post(page, `/subscriptions/${html}/replay`, [["from", attack], ["only", attack]], 422);
await post(page, `/subscriptions/${html}/replay`, [["from", "2020-01-01T00:00:00.000Z"], ["only", "all"]], 200);
await post(page, `/subscriptions/${html}/replays/01a00000-0000-7000-8000-000000000000/cancel`, [], 404);
await post(page, `/subscriptions/${json}/delete`, [], 200);
await see(page, `/deliveries/${deliveries["/json"]}`);
await post(page, `/deliveries/${delivery}/redeliver`, [], 200);
await see(page, `/deliveries/${delivery}`);
await post(page, `/deliveries/${deliveries["/bytes"]}/cancel`, [], 200);
await post(page, "/subscriptions/check-url", [["url", attack]], 200).catch(() => {}); // a part of a page: without a title
while (faults.length && faults.at(-1).includes("/check-url")) faults.pop();
await inert(page);
answering = 200;
for (const [verb, of] of [["redeliver", "failed"], ["cancel", "retryable"]]) {
  await visit(page, `/deliveries/${verb}?filter[status]=${of}`);
  await page.locator("form.confirm button").click();
  await page.waitForURL(/bulk-runs/);
  await until("the end of the run", async () => (await page.locator("#bulk-run .state-success").count()) > 0 || (await page.reload(), false));
  await hold(page);
}
const run = new URL(page.url()).pathname;
await post(page, `${run}/cancel`, [], 409); // it has ended
await see(page, "/bulk-runs");
await see(page, "/bulk-runs/no-such", 404);
await page.evaluate((to) => fetch(to).then(() => {}), "/deliveries/count?filter[status]=failed");
await page.evaluate(() => Promise.all(["deliveries", "events", "subscriptions", "audit"].map((list) => fetch(`/${list}/arrivals?since=1`))).then(() => {}));
for (const verb of ["redeliver", "cancel"]) await see(page, `/deliveries/${verb}/count?run=${q}`, 400);
await post(page, "/preferences", [["zone", attack], ["theme", attack]], 422);
await post(page, "/account/password", [["current", "x"], ["password", "y"], ["again", "z"]], 422);
await post(page, "/account/sessions/no-such/revoke", [], 404);
await post(page, "/tokens/new", [["program", attack], ["user", attack + long], ["name", attack + long], ["scope", attack], ["days", attack]], 422);
await post(page, "/tokens/new", [["program", program], ["user", "u".repeat(64)], ["name", attack.slice(0, 150)], ["scope", "events.read"], ["days", "90"]], 200);
await see(page, "/tokens");
await post(page, `${token}/revoke`, [], 200);
await see(page, `${token}/revoke`);
await post(page, "/alerts/new", [["name", attack + long], ["kind", attack], ["url", attack + long], ["to", attack], ["alert", attack]], 422);
await post(page, "/alerts/new", [["name", attack.slice(0, 60)], ["kind", "slack"], ["url", `${origin}/html/"'><script>alert(1)</script>`], ["alert", "subscription_failing"]], 200);
const channel = new URL(page.url()).pathname;
for (const to of [channel, `${channel}/edit`, `${channel}/delete`, "/alerts"]) await see(page, to);
await post(page, `${channel}/edit`, [["name", ""]], 422);
await post(page, `${channel}/edit`, [["name", attack.slice(0, 60)], ["active", "true"], ["alert", "events_lost"]], 200);
await post(page, `${channel}/test`, [], 200);
await post(page, `${channel}/delete`, [], 200);
await post(page, "/admins/invite", [["email", attack + long], ["role", attack]], 422);
await post(page, "/admins/invite", [["email", `i${email}`], ["role", "viewer"]], 200);
const invitation = new URL(await page.getByLabel("Link", { exact: true }).textContent()).pathname;
await see(stranger, invitation);
await post(stranger, invitation, [], 200, "/sign-in");
await post(stranger, invitation, [["password", attack], ["again", long]], 422, "/sign-in");
await see(page, "/admins");
await post(page, await page.locator("form[action^='/admins/invitations/']").getAttribute("action"), [], 200);
await see(stranger, invitation, 404);
await post(page, `${other}/role`, [["role", attack]], 422);
await post(page, `${other}/role`, [["role", "viewer"]], 200);
await post(page, `${other}/end-sessions`, [], 200);
await post(page, "/events/publish", [["program", attack], ["event", `{"name":"${long}","${long}":${JSON.stringify(attack)}}`]], 422);
await post(page, "/events/publish", [["program", "acme"], ["event", `${attack}${control}`]], 422);
await post(page, "/events/publish", [["program", "acme"], ["event", JSON.stringify({ name: "hostile_thing", version: "1", note: attack })]], 200);
await post(page, "/system/release", [], 409); // nothing is held
await see(page, "/audit");
await see(page, "/");

// Signed in as somebody whose address is as long as it can be, and out.
await post(stranger, "/sign-in", [["email", attack], ["password", attack], ["next", attack]], 401, "/sign-in");
await post(stranger, `/sign-in/${q}`, [], 404, "/sign-in");
await post(stranger, `/setup/${q}`, [["email", attack]], 404, "/sign-in");
await post(stranger, "/sign-in", [["email", email], ["password", admin.password], ["next", "/account"]], 200, "/sign-in");
await see(stranger, "/");
await post(stranger, "/account/sign-out-everywhere", [], 200);
await post(stranger, "/sign-in", [["email", email], ["password", admin.password], ["next", "/"]], 200, "/sign-in");
await post(stranger, "/tokens/new", [["program", attack]], 403);
await post(stranger, "/sign-out", [], 200);
await post(page, `${other}/remove`, [], 200);

// The service's own fault.
await restart("0s", "audit");
await see(page, "/audit", 500);

const missed = [];
for (const route of patterns) {
  for (const [method, has] of [["GET", route.get], ["POST", route.post]]) {
    if (has && !asked.some((a) => a.method === method && route.of.test(a.path) && a.status < 500)) missed.push(`${method} ${route.path}`);
  }
}
if (missed.length) faults.push(`these are in the table of web/web.go, and the tour does not go there: ${missed.join(", ")}`);
if (faults.length) throw new Error(faults.join("\n"));
console.log(`${looked} pages were looked at, ${byAxe} of them by axe`);
server.close();
await done();
