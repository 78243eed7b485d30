// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --rejecting-after 2
// and without JavaScript
// and in Firefox
// At three in the morning an endpoint rejects deliveries. An admin sees why, writes to the partner,
// probes the endpoint once it works again and resends what failed: by mouse with at most 4 clicks
// from the overview, by keyboard with at most 15 keys, on a phone, and without JavaScript. Then the
// admin proves that one event was delivered.
import { api, check, copied, done, inFirefox, javaScript, signIn, startReceiver, until, visit, waitForLoad } from "./lib.mjs";

let published = 0;

// breakEndpoint subscribes an endpoint that rejects two events and keeps a third waiting.
async function breakEndpoint(name) {
  let works = false;
  const delivered = new Set();
  const receiver = await startReceiver((request) => {
    if (!works) return { status: 401, headers: { "Content-Type": "text/plain" }, body: "token expired\n" };
    for (const event of JSON.parse(request.body).events) delivered.add(event.content_id);
    return 204;
  });
  const created = await api("POST", "/v2/webhooks/subscriptions", { url: receiver.url, events: [{ name: "content_deleted" }], description: name });
  check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
  const path = `/v2/webhooks/subscriptions/${created.body.data.id}`;
  await until("the first ping", () => receiver.requests.length === 1);
  const publish = async () => {
    const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 4709 + ++published });
    check(response.status === 201, `an event is accepted, got status ${response.status}`);
    return 4709 + published;
  };
  const events = [];
  for (let n = 1; n <= 2; n++) {
    events.push(await publish());
    await until("the rejection", async () => (await api("GET", `${path}/deliveries?filter[status]=failed&filter[event]=content_deleted`)).body.data.length >= n);
  }
  await until("the circuit breaker", async () => (await api("GET", path)).body.data.status === "failing");
  events.push(await publish());
  return {
    repair: () => { works = true; },
    // mended waits until the endpoint has received all events.
    mended: async () => {
      await until("all events", () => events.every((id) => delivered.has(id)));
      await until("the recovery", async () => (await api("GET", path)).body.data.status === "healthy");
      receiver.close();
    },
  };
}

const incidentOf = (page, name) => page.locator("#overview-incidents .incident", { hasText: name });
const seesWhy = async (row) => check((await row.innerText()).includes("401 Unauthorized"), "the row says why");
const hasMessage = (page) => copied(page, (text) => text.includes("401"));

// The admin uses a mouse, or a finger on a phone.
async function byPointer(page, name, endpoint) {
  let presses = 0;
  const press = (target) => { presses++; return target.click(); };
  await visit(page, "/");
  const row = incidentOf(page, name);
  await seesWhy(row);
  await press(row.getByRole("button", { name: `More for ${name}` }));
  await press(row.locator("[data-key=message]"));
  await hasMessage(page);
  endpoint.repair();
  await press(row.locator("[data-key=probe]"));
  await row.locator(".probed").getByText("204").waitFor();
  await waitForLoad(page, () => press(row.locator("> .act > form > [data-key=resend]")));
  await endpoint.mended();
  return `${presses} clicks`;
}

async function byKeyboard(page, name, endpoint) {
  let keys = 0;
  const press = (key) => { keys++; return page.keyboard.press(key); };
  await visit(page, "/");
  const row = incidentOf(page, name);
  await seesWhy(row);
  while (!await row.evaluate((e) => e.contains(document.activeElement))) await press("j");
  await press("c");
  await hasMessage(page);
  endpoint.repair();
  await press("p");
  await row.locator(".probed").getByText("204").waitFor();
  await row.locator("> .act > form > [data-key=resend]").waitFor();
  await waitForLoad(page, () => press("r"));
  await endpoint.mended();
  check(keys <= 15, `at most 15 keys, got ${keys}`);
  return `${keys} keys`;
}

async function withoutScript(page, name, endpoint) {
  let clicks = 0;
  const follow = (target) => { clicks++; return waitForLoad(page, () => target.click()); };
  await visit(page, "/");
  await seesWhy(incidentOf(page, name));
  await follow(incidentOf(page, name).getByRole("link", { name, exact: true }));
  check((await page.locator("#message").innerText()).includes("401"), "the page has the message for the partner");
  endpoint.repair();
  await follow(page.locator("main [data-key=probe]").first());
  check((await page.locator("#ping").innerText()).includes("204"), "the page has the result of the probe");
  await follow(page.getByRole("button", { name: /^Resend/ }).first());
  await endpoint.mended();
  return `${clicks} clicks`;
}

async function timed(what, play) {
  const start = Date.now();
  console.log(`${what}: ${await play()}, ${((Date.now() - start) / 1000).toFixed(1)} s`);
}

const { page } = await signIn();
if (javaScript) {
  const mouse = await breakEndpoint("Partner M");
  await timed("by mouse", async () => {
    const used = await byPointer(page, "Partner M", mouse);
    check(parseInt(used, 10) <= 4, `at most 4 clicks, got ${used}`);
    return used;
  });
  const keyboard = await breakEndpoint("Partner K");
  await timed("by keyboard", () => byKeyboard(page, "Partner K", keyboard));
  const { page: phone } = await signIn({ viewport: { width: 360, height: 740 }, ...(inFirefox ? {} : { hasTouch: true, isMobile: true }) });
  const finger = await breakEndpoint("Partner P");
  await timed("on a phone", () => byPointer(phone, "Partner P", finger));
} else {
  const none = await breakEndpoint("Partner N");
  await timed("without JavaScript", () => withoutScript(page, "Partner N", none));
}

// Was the event with content_id 4711 delivered? Its page says so.
await timed("proof of a delivery", async () => {
  await visit(page, "/");
  await page.fill("#find", "content_id:4711");
  await waitForLoad(page, () => page.press("#find", "Enter"));
  if (!new URL(page.url()).pathname.startsWith("/events/")) await waitForLoad(page, () => page.locator("main a[href^='/events/']").first().click());
  check(/delivered/i.test(await page.locator("main").innerText()), "the page says that the event was delivered");
  return "a search and at most one click";
});
await done();
