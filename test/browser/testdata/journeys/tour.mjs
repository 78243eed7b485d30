// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0
// The tour visits every page with hostile text in every field that a partner, a publisher or
// an admin sets. Each page passes axe in light and dark, narrow and wide, does not overflow
// and logs no error. No hostile text runs, becomes an element or changes the text direction.
// The tour fails for a route of web/web.go that it does not visit.
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { admin, api, responses, base, check, runCommand, runCommandWithInput, data, done, newPage, startupLink, checkNewParts, restart, routes, signIn, until, visit } from "./lib.mjs";

// Hostile text tries to escape an attribute or element, to run a script, to hide or reverse
// characters, and to break the layout.
const rlo = "\u202e";
const attack = `"'><script>window.ran=1;alert(1)</script><img src=x onerror="window.ran=1;alert(1)"><b id=injected>${rlo}\u2066\u200b`;
const controlCharacters = "\u0000\u0001\u001b[31m\u007f\u0085\r";
const longText = "W".repeat(600);
const problems = [];

// checkInjection adds a problem for each effect of hostile text on a page.
async function checkInjection(page) {
  const injected = await page.evaluate(() => {
    const invisible = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;
    const found = [];
    if (window.ran) found.push("hostile text ran a script");
    for (const e of document.querySelectorAll("img, iframe, object, embed, base, style, link:not([href^='/assets/']), script:not([src^='/assets/']), #injected, svg script, svg foreignObject, a[href^='javascript:' i], form[action]:not([action^='/'])")) found.push(`hostile text made an element: ${e.outerHTML.slice(0, 200)}`);
    for (const e of document.querySelectorAll("*")) {
      for (const a of e.attributes) {
        if (/^on/i.test(a.name)) found.push(`an event handler: ${e.outerHTML.slice(0, 200)}`);
        if (!["value", "data-picker-text"].includes(a.name) && invisible.test(a.value)) found.push(`${e.localName}[${a.name}] has an invisible character: ${JSON.stringify(a.value.slice(0, 80))}`);
      }
    }
    const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    for (let t = walk.nextNode(); t; t = walk.nextNode()) {
      if (!["TEXTAREA", "SCRIPT"].includes(t.parentElement.tagName) && invisible.test(t.data)) found.push(`${t.parentElement.localName}.${t.parentElement.className} has an invisible character: ${JSON.stringify(t.data.slice(0, 80))}`);
    }
    return found;
  });
  problems.push(...injected.map((f) => `${page.url().slice(0, 120)}: ${f}`));
}

// routeOf returns the most specific route of web/web.go for a path.
const routePatterns = routes.map((route) => ({ ...route, pattern: new RegExp(`^${route.path.replace("{$}", "").split(/\{[^}]+\}/).map((s) => s.replace(/[.*+?^$()|[\]\\]/g, "\\$&")).join("[^/]+")}$`) }));
const routeOf = (path) => routePatterns.filter((route) => route.pattern.test(path)).sort((a, b) => a.path.split("{").length - b.path.split("{").length)[0]?.path ?? "none";

let inspectedCount = 0, axeCount = 0;
async function inspect(page) {
  inspectedCount++;
  await checkInjection(page);
  if (await page.locator("h1").count() !== 1) problems.push(`${page.url()}: got ${await page.locator("h1").count()} h1, want 1`);
  try {
    if (await checkNewParts(page, routeOf(new URL(page.url()).pathname))) axeCount++;
  } catch (err) {
    problems.push(err.message.replace(/^.*/, (url) => url.slice(0, 120)));
  }
}
const expected = ["the server responded with a status of 4", "the server responded with a status of 500"]; // the tour requests pages that respond with 4xx and 500
const inspectPath = async (page, to, status = 200) => {
  const response = await page.goto(base + to);
  if (response.status() !== status) problems.push(`${to.slice(0, 80)}: got status ${response.status()}, want ${status}`);
  await inspect(page);
};

// post submits a form from the page startPath, as the admin UI would, and inspects the response.
async function post(page, to, fields, status, startPath = "/preferences") {
  await visit(page, startPath);
  const [response] = await Promise.all([
    page.waitForNavigation(),
    page.evaluate(([action, values]) => {
      const form = document.createElement("form");
      Object.assign(form, { method: "post", action });
      for (const [name, value] of values) form.append(Object.assign(document.createElement("textarea"), { name, value }));
      document.body.append(form);
      form.submit();
    }, [to, fields]),
  ]);
  if (response.status() !== status) problems.push(`POST ${to}: got status ${response.status()}, want ${status}: ${(await page.locator("body").innerText()).slice(0, 200)}`);
  await inspect(page);
}

// Without an admin.
const visitor = (await newPage({}, expected)).page;
visitor.on("dialog", (d) => { problems.push(`a dialog: ${d.message()}`); d.dismiss(); });
await inspectPath(visitor, "/", 401);
await inspectPath(visitor, "/setup/no-such-code", 404);
await visit(visitor, startupLink.slice(base.length));
await inspect(visitor);
await visitor.evaluate(() => document.querySelectorAll("input").forEach((i) => { i.removeAttribute("required"); i.type = "text"; }));
await visitor.fill("#email", attack);
await visitor.click("button.primary");
await visitor.getByText("Nothing was saved.").waitFor();
await inspect(visitor);
const { page, context } = await signIn({ userAgent: `${attack.replaceAll(/[^ -~]/g, "")}${longText}` }, expected);
const secondPage = (await signIn({}, expected)).page;
for (const p of [page, secondPage]) p.on("dialog", (d) => { problems.push(`a dialog: ${d.message()}`); d.dismiss(); });

// Empty lists.
for (const section of ["/deliveries", "/subscriptions", "/subscriptions/new", "/events", "/programs", "/tokens"]) await inspectPath(page, section);

// Hostile data: event types of the operator, a receiver, tokens, subscriptions, events.
const commonProperties = { id: { type: "string", format: "uuid" }, timestamp: { type: "string", format: "date-time" }, name: { const: "hostile_thing" }, version: { const: "1" } };
fs.mkdirSync(path.join(data, "event_types"), { recursive: true });
fs.writeFileSync(path.join(data, "event_types", "hostile_thing.json"), JSON.stringify({
  title: attack + longText, description: attack + longText, type: "object",
  properties: { ...commonProperties, [attack]: { type: "string", description: attack + controlCharacters + longText }, [longText.slice(0, 256)]: { enum: [attack, longText] }, note: { type: "string" } },
  required: ["id", "timestamp", "name", "version"], additionalProperties: false,
  examples: [{ id: "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", timestamp: "2026-03-14T08:24:48.644Z", name: "hostile_thing", version: "1", [attack]: attack + longText, note: `</pre>${attack}` }],
}));
fs.writeFileSync(path.join(data, "event_types", `${"w".repeat(60)}.json`), JSON.stringify({
  title: "Long", description: "Its name is long.", type: "object", properties: { ...commonProperties, name: { const: "w".repeat(60) } },
  required: ["id", "timestamp", "name", "version"], additionalProperties: false,
  examples: [{ id: "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", timestamp: "2026-03-14T08:24:48.644Z", name: "w".repeat(60), version: "1" }],
}));
await restart();

// The bytes of the receiver's responses, by the path of the request.
const bodies = {
  "/html": Buffer.from(`<!doctype html><script>window.ran=1;alert(1)</script>${attack}`),
  "/json": Buffer.from(JSON.stringify({ [attack]: [attack + controlCharacters, { deep: attack }], line: "x".repeat(1 << 20) })),
  "/line": Buffer.alloc(1 << 20, "W"),
  "/bytes": Buffer.from([0xff, 0xfe, 0x00, 0x80, 0xc0, 0xaf, ...Buffer.from(attack)]),
};
let responseStatus = 503;
const server = net.createServer((socket) => {
  socket.on("error", () => {});
  socket.once("data", (head) => {
    const target = head.toString("latin1").split(" ")[1];
    const body = bodies[Object.keys(bodies).find((prefix) => target.startsWith(prefix))] ?? Buffer.from(attack);
    socket.write(Buffer.concat([
      Buffer.from(`HTTP/1.1 ${responseStatus} ${attack}\r\nContent-Length: ${body.length}\r\nConnection: close\r\nContent-Type: text/html; charset="${attack}\r\nX-Attack: ${attack}\r\nX-Long: ${longText.repeat(10)}\r\nLocation: javascript:alert(1)//${attack}\r\nX-Bytes: `),
      Buffer.from([0xff, 0xc0, 0xaf]), Buffer.from("\r\n\r\n"), body,
    ]));
    socket.end();
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
server.unref();
const origin = `http://127.0.0.1:${server.address().port}`;

// IDs of programs and users contain only letters, digits, dots and hyphens, but can be long.
const program = "p".repeat(64);
runCommand("token", "create", "--data", data, "--program", program, "--user", "u".repeat(64), "--scope", "webhooks.read", "--name", `${rlo}<script>alert(1)</script>\u0001${"W".repeat(120)}`);
const email = `o'brien&lt!--\${{${"w".repeat(200)}}}@example.com`;
runCommandWithInput(admin.password, "admin", "create", "--data", data, "--email", email);

const subscriptions = {};
for (const kind of ["/html", "/json", "/line", "/bytes"]) {
  const url = `${origin}${kind}/"'><script>alert(1)</script>/%00%1b%E2%80%AE/${"w".repeat(kind === "/line" ? 1800 : 100)}?secret=<b>`;
  const { status, body } = await api("POST", "/v2/webhooks/subscriptions", { url, description: `${attack}${controlCharacters}${rlo}${longText}`, events: [{ name: "hostile_thing" }, { name: "content_deleted" }, { name: "w".repeat(60) }] });
  check(status === 201, `a subscription is created, got ${JSON.stringify(body)}`);
  subscriptions[kind] = body.data.id;
}
const events = [];
for (const note of [`${attack}${controlCharacters}`, longText.repeat(20), "line\nline\r\nline", "x".repeat(100_000)]) {
  const { status, body } = await api("POST", "/v2/events", { name: "hostile_thing", version: "1", note, [attack]: note });
  check(status === 201, `an event is accepted, got ${JSON.stringify(body)}`);
  events.push(body.data?.id ?? body.data?.[0]?.id);
}
await api("POST", "/v2/events", { name: "w".repeat(60), version: "1" });
const deliveries = {};
for (const [kind, id] of Object.entries(subscriptions)) {
  deliveries[kind] = await until(`deliveries of ${kind}`, async () => {
    const { body } = await api("GET", `/v2/webhooks/subscriptions/${id}/deliveries?filter[status]=retryable&filter[event]=hostile_thing`);
    return body.data.length && body.data.at(-1).id;
  });
}
// The receiver rejects the next deliveries, which opens incidents.
responseStatus = 410;
await api("POST", "/v2/events", { name: "hostile_thing", version: "1", note: attack });
const incident = await until("an incident of each subscription", async () => {
  const { body } = await api("GET", "/v2/incidents?filter[status]=open");
  return body.data.length === Object.keys(subscriptions).length && body.data[0].id;
});
responseStatus = 503;

// Every page by GET. Nothing changes the data, so two browser pages share the work.
const hostileQuery = encodeURIComponent(attack + longText);
const [htmlSubscription, jsonSubscription] = [subscriptions["/html"], subscriptions["/json"]];
const delivery = deliveries["/html"];
await visit(page, "/tokens");
const token = await page.locator("tr[data-row] a[href^='/tokens/']").first().getAttribute("href");
await visit(page, "/admins");
const otherAdmin = await page.locator("tr[data-row] a[href^='/admins/']", { hasText: "brien" }).getAttribute("href");
const paths = [
  ...["/", "/deliveries", "/subscriptions", "/events", "/event-types", "/tokens", "/audit", "/system", "/account", "/preferences", "/find"],
  [`/find?q=${hostileQuery}`, 404],
  `/?program=${program}`,
  ...["/incidents", "/incidents?all=true", "/incidents?filter[status]=resolved", `/incidents/${incident}`],
  ["/incidents/no-such", 404],
  ...["/programs", "/programs?filter[failing]=true", "/programs/-/new", "/programs/acme", `/programs/${program}`, `/programs/${program}/edit`, `/programs/${program}/erase`],
  ["/programs/no-such", 404],
  ...["/alerts", "/alerts/new"],
  ["/alerts/no-such", 404],
  ...["/admins", "/admins/invite", otherAdmin, `${otherAdmin}/remove`],
  ["/admins/no-such", 404],
  ["/invitation/no-such", 404],
  ["/sign-in/oidc", 404], // no provider
  ["/sign-in/oidc/callback", 404],
  ...["/deliveries", "/audit", "/incidents", "/programs"].map((list) => [`${list}?filter[nonsense]=${hostileQuery}&sort=${hostileQuery}&page[size]=${hostileQuery}`, 400]), // rejected filters
  [`/deliveries?filter[event]=${hostileQuery}&program=${hostileQuery}`, 400],
  "/deliveries?filter[status]=pending", // no match
  ["/deliveries?page[cursor]=%zz", 400],
  [`/${hostileQuery}`, 404],
  ["/sign-out", 405],
  [`/sign-in/${hostileQuery}`, 404],
  ...["/html", "/line"].map((kind) => `/subscriptions/${subscriptions[kind]}`),
  ...["edit", "rotate-secret", "replay", "replay?from=2020-01-01T00:00&only=all", "delete", "reconciliation", "reconciliation?count=all&span=7d&filter[status]=failed,waiting"].map((what) => `/subscriptions/${htmlSubscription}/${what}`),
  [`/subscriptions/${htmlSubscription}/replay?from=${hostileQuery}&to=${hostileQuery}&only=${hostileQuery}`, 422],
  "/subscriptions/new",
  ...Object.values(deliveries).map((id) => `/deliveries/${id}`),
  ...["redeliver", "cancel"].flatMap((what) => [`/deliveries/${delivery}/${what}`, `/deliveries/${what}?filter[status]=retryable`]),
  [`/deliveries/redeliver?filter[nonsense]=${hostileQuery}`, 400],
  `/events/acme/${events[0]}`,
  `/events/acme/${events[1]}`,
  "/events/publish?program=acme&name=hostile_thing",
  `/events/publish?program=acme&like=${events[0]}`,
  ...["hostile_thing", "w".repeat(60), "ping"].map((name) => `/event-types/${name}`),
  ...[token, `${token}/revoke`, "/tokens/new"],
  ["/tokens/no-such", 404],
].map((to) => [to].flat());
const inspectPaths = async (page) => {
  for (let next = paths.shift(); next; next = paths.shift()) {
    await inspectPath(page, ...next);
    if (await page.evaluate(() => [...document.querySelectorAll("details")].filter((d) => !d.open).map((d) => { d.open = true; }).length)) await checkInjection(page);
  }
};
await Promise.all([inspectPaths(page), inspectPaths(secondPage)]);
await secondPage.close();

// Downloads are attachments in plain text.
const statusResponse = await context.request.get(`${base}/status`); // a fragment of every page
check(statusResponse.ok() && (await statusResponse.text()).includes("4 incidents"), "the status has 4 incidents");
responses.push({ method: "GET", path: "/status", status: statusResponse.status() });
for (const to of [...["deliveries", "events", "subscriptions", "tokens", "audit"].flatMap((list) => [`/${list}/export?format=ndjson`, `/${list}/export?format=csv`]),
  `/subscriptions/${htmlSubscription}/reconciliation/export?format=ndjson`, `/deliveries/${delivery}/body.json.txt`, `/deliveries/${delivery}/attempts/1/body.txt`, `/events/acme/${events[0]}/body.json.txt`]) {
  const response = await context.request.get(base + to);
  const headers = response.headers();
  check(response.ok(), `${to} responds with success, got ${response.status()}`);
  check(headers["x-content-type-options"] === "nosniff" && !/html|xml|svg/.test(headers["content-type"]), `${to} has a type that no browser renders, got ${headers["content-type"]}`);
  check(headers["content-disposition"]?.startsWith("attachment") && !/[<>]/.test(headers["content-disposition"]), `${to} is an attachment, got ${headers["content-disposition"]}`);
  responses.push({ method: "GET", path: new URL(base + to).pathname, status: response.status() });
}

// Every action, and the page with its result.
await post(page, `/incidents/${incident}/message`, [["role", attack]], 422);
await post(page, `/incidents/${incident}/message`, [["role", "read"]], 200);
const onceToken = async (to) => {
  await visit(page, to);
  return page.locator("input[name=once]").first().getAttribute("value");
};
await post(page, "/subscriptions/new", [["once", "x"], ["for_program", attack], ["url", attack + longText], ["events", attack], ["events", longText], ["description", attack], ["max_in_flight", attack]], 422);
await post(page, "/subscriptions/new", [["once", await onceToken("/subscriptions/new")], ["for_program", program], ["url", `${origin}/new/${"w".repeat(300)}`], ["events", "hostile_thing"]], 200);
await post(page, `/subscriptions/${htmlSubscription}/edit`, [["url", attack + longText], ["events", longText], ["description", attack + longText.repeat(20)], ["max_in_flight", attack]], 422);
await post(page, `/subscriptions/${htmlSubscription}/edit`, [["revision", "0"], ["url", `${origin}/html/`], ["events", "hostile_thing"], ["description", attack]], 409);
await post(page, `/subscriptions/${htmlSubscription}/ping`, [], 200);
await page.locator("#ping").getByText("503").first().waitFor();
await post(page, `/subscriptions/${htmlSubscription}/test`, [["name", attack]], 422);
await post(page, `/subscriptions/${htmlSubscription}/test`, [["name", "hostile_thing"]], 200);
await visit(page, "/find");
await page.evaluate((text) => fetch(`/find/suggest?q=${text}`), hostileQuery); // as the search field does while an admin types
await post(page, `/subscriptions/${htmlSubscription}/probe`, [], 200); // the page says that the subscription is not failing
await inspect(page);
await post(page, `/subscriptions/${htmlSubscription}/pause`, [], 200);
await inspectPath(page, "/events/publish?program=acme&name=hostile_thing"); // the page names the subscriptions that would not receive it
await post(page, `/subscriptions/${htmlSubscription}/resume`, [], 200);
await post(page, `/subscriptions/${htmlSubscription}/rotate-secret`, [["once", await onceToken(`/subscriptions/${htmlSubscription}/rotate-secret`)]], 200);
await inspectPath(page, `/subscriptions/${htmlSubscription}`);
await post(page, `/subscriptions/${htmlSubscription}/replay`, [["from", attack], ["only", attack]], 422);
await post(page, `/subscriptions/${htmlSubscription}/replay`, [["from", "2020-01-01T00:00:00.000Z"], ["only", "all"]], 200);
await post(page, `/subscriptions/${htmlSubscription}/replays/01a00000-0000-7000-8000-000000000000/cancel`, [], 404);
await post(page, `/subscriptions/${jsonSubscription}/delete`, [], 200);
await inspectPath(page, `/deliveries/${deliveries["/json"]}`);
await post(page, `/deliveries/${delivery}/redeliver`, [], 200);
await inspectPath(page, `/deliveries/${delivery}`);
await post(page, `/deliveries/${deliveries["/bytes"]}/cancel`, [], 200);
await post(page, "/subscriptions/check-url", [["url", attack]], 200).catch(() => {}); // a fragment without a title
while (problems.length && problems.at(-1).includes("/check-url")) problems.pop();
await checkInjection(page);
await visit(page, "/subscriptions/new");
await page.locator("summary", { hasText: "Filters" }).click();
await page.check("#events input[value=hostile_thing]");
await page.fill("#filters", JSON.stringify({ hostile_thing: { all: [{ path: attack, op: "eq", value: attack }] } }));
await page.locator("[data-filter-rows] .fault").waitFor();
await inspect(page);
responseStatus = 200;
for (const [verb, status] of [["redeliver", "failed"], ["cancel", "retryable"]]) {
  await visit(page, `/deliveries/${verb}?filter[status]=${status}`);
  await page.locator("form.confirm button").click();
  await page.waitForURL(/bulk-runs/);
  await until("the end of the bulk run", async () => (await page.locator("#bulk-run .state-success").count()) > 0 || (await page.reload(), false));
  await inspect(page);
}
const run = new URL(page.url()).pathname;
await post(page, `${run}/cancel`, [], 409); // the run is complete
// The run page follows a run. These runs may end before their page is loaded.
await page.evaluate((to) => fetch(to).then((response) => response.body.cancel()), `${run}/stream`);
await inspectPath(page, "/bulk-runs");
await inspectPath(page, "/bulk-runs/no-such", 404);
await page.evaluate((to) => fetch(to).then(() => {}), "/deliveries/count?filter[status]=failed");
await page.evaluate(() => Promise.all(["deliveries", "events", "subscriptions", "audit"].map((list) => fetch(`/${list}/arrivals?since=1`))).then(() => {}));
for (const verb of ["redeliver", "cancel"]) await inspectPath(page, `/deliveries/${verb}/count?run=${hostileQuery}`, 400);
await post(page, "/preferences", [["zone", attack], ["theme", attack]], 422);
await post(page, "/account/password", [["current", "x"], ["password", "y"], ["again", "z"]], 422);
await post(page, "/account/sessions/no-such/revoke", [], 404);
await post(page, "/tokens/new", [["program", attack], ["user", attack + longText], ["name", attack + longText], ["scope", attack], ["days", attack]], 422);
await post(page, "/tokens/new", [["program", program], ["user", "u".repeat(64)], ["name", attack.slice(0, 150)], ["scope", "events.read"], ["days", "90"]], 200);
await inspectPath(page, "/tokens");
await post(page, `${token}/revoke`, [], 200);
await inspectPath(page, `${token}/revoke`);
await post(page, "/programs/-/new", [["id", attack + longText], ["name", attack + longText], ["rate_limit", attack]], 422);
await post(page, "/programs/-/new", [["id", "q".repeat(64)], ["name", attack.replace(/[\u0000-\u001f]/g, "").slice(0, 200)], ["rate_limit", "1000000"], ["max_in_flight", "100000"], ["max_subscriptions", "0"]], 200);
await inspectPath(page, "/programs");
await post(page, `/programs/${program}/edit`, [["name", controlCharacters], ["max_subscriptions", longText]], 422);
await post(page, `/programs/${program}/edit`, [["name", "W".repeat(200)], ["max_subscriptions", "7"]], 200);
await post(page, `/programs/${"q".repeat(64)}/erase`, [["confirm", attack + longText]], 422);
await post(page, `/programs/${"q".repeat(64)}/erase`, [["confirm", "q".repeat(64)]], 200);
await inspectPath(page, "/programs");
await post(page, "/alerts/new", [["name", attack + longText], ["kind", attack], ["url", attack + longText], ["to", attack], ["alert", attack]], 422);
await post(page, "/alerts/new", [["name", attack.slice(0, 60)], ["kind", "slack"], ["url", `${origin}/html/"'><script>alert(1)</script>`], ["alert", "subscription_failing"]], 200);
const channel = new URL(page.url()).pathname;
for (const to of [channel, `${channel}/edit`, `${channel}/delete`, "/alerts"]) await inspectPath(page, to);
await post(page, `${channel}/edit`, [["name", ""]], 422);
await post(page, `${channel}/edit`, [["name", attack.slice(0, 60)], ["active", "true"], ["alert", "events_lost"]], 200);
await post(page, `${channel}/test`, [], 200);
await post(page, `${channel}/delete`, [], 200);
await post(page, "/admins/invite", [["email", attack + longText], ["role", attack]], 422);
await post(page, "/admins/invite", [["email", `i${email}`], ["role", "viewer"]], 200);
const invitation = new URL(await page.getByLabel("Link", { exact: true }).textContent()).pathname;
await inspectPath(visitor, invitation);
await post(visitor, invitation, [], 200, "/sign-in");
await post(visitor, invitation, [["password", attack], ["again", longText]], 422, "/sign-in");
await inspectPath(page, "/admins");
await post(page, await page.locator("form[action^='/admins/invitations/']").getAttribute("action"), [], 200);
await inspectPath(visitor, invitation, 404);
await post(page, `${otherAdmin}/role`, [["role", attack]], 422);
await post(page, `${otherAdmin}/role`, [["role", "viewer"]], 200);
await post(page, `${otherAdmin}/end-sessions`, [], 200);
await post(page, "/events/publish", [["program", attack], ["event", `{"name":"${longText}","${longText}":${JSON.stringify(attack)}}`]], 422);
await post(page, "/events/publish", [["program", "acme"], ["event", `${attack}${controlCharacters}`]], 422);
await post(page, "/events/publish", [["program", "acme"], ["event", JSON.stringify({ name: "hostile_thing", version: "1", note: attack })]], 200);
await post(page, "/system/release", [], 409); // no delivery is held
await inspectPath(page, `/events/acme/${events[1]}/erase`);
await post(page, `/events/acme/${events[1]}/erase`, [], 200);
await inspectPath(page, `/events/acme/${events[1]}`);
await inspectPath(page, "/audit");
await inspectPath(page, "/");

// Sign in and out with the longest email.
await post(visitor, "/sign-in", [["email", attack], ["password", attack], ["next", attack]], 401, "/sign-in");
await post(visitor, `/sign-in/${hostileQuery}`, [], 404, "/sign-in");
await post(visitor, `/setup/${hostileQuery}`, [["email", attack]], 404, "/sign-in");
await post(visitor, "/sign-in", [["email", email], ["password", admin.password], ["next", "/account"]], 200, "/sign-in");
await inspectPath(visitor, "/");
await post(visitor, "/account/sign-out-everywhere", [], 200);
await post(visitor, "/sign-in", [["email", email], ["password", admin.password], ["next", "/"]], 200, "/sign-in");
await post(visitor, "/tokens/new", [["program", attack]], 403);
await post(visitor, "/sign-out", [], 200);
await post(page, `${otherAdmin}/remove`, [], 200);

// An internal error.
await restart("0s", "invitations");
await inspectPath(page, "/admins", 500);

// The journeys passkeys, share and portal visit these.
const elsewhere = /\/passkeys?(\/|$)|\/shares?(\/|$)|^\/programs\/\{id\}\/portal|^\/link\/|^\/verify$/;
const missedRoutes = [];
for (const route of routePatterns.filter((route) => !elsewhere.test(route.path))) {
  for (const [method, handled] of [["GET", route.get], ["POST", route.post]]) {
    if (handled && !responses.some((a) => a.method === method && route.pattern.test(a.path) && a.status < 500)) missedRoutes.push(`${method} ${route.path}`);
  }
}
if (missedRoutes.length) problems.push(`routes of web/web.go that the tour does not visit: ${missedRoutes.join(", ")}`);
if (problems.length) throw new Error(problems.join("\n"));
console.log(`inspected ${inspectedCount} pages, ${axeCount} of them with axe`);
server.close();
await done();
