// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --rejecting-after 2
// and without JavaScript
// An endpoint rejects deliveries. An admin goes from the overview to the response that explains
// why, probes the endpoint and resends the failed deliveries. The subscription page updates without
// a reload.
import { api, check, copied, done, waitForLoad, checkPage, startReceiver, javaScript, signIn, until, visit } from "./lib.mjs";

let status = 401;
const server = await startReceiver(() => ({ status, headers: { "Content-Type": "text/plain" }, body: status === 401 ? "token expired\n" : "ok\n" }));
const { page } = await signIn();
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }], description: "Partner X" });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
const id = created.body.data.id;
await until("the first ping", () => server.requests.length === 1);
const subscriptionStatus = async () => (await api("GET", `/v2/webhooks/subscriptions/${id}`)).body.data.status;
for (let n = 1; n <= 3; n++) {
  const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: n });
  check(response.status === 201, `an event is accepted, got status ${response.status}`);
  if (n < 3) await until("the rejection", async () => (await api("GET", `/v2/webhooks/subscriptions/${id}/deliveries?filter[status]=failed&filter[event]=content_deleted`)).body.data.length >= n);
}
await until("the circuit breaker", async () => await subscriptionStatus() === "failing");

// The reason is one click from the overview.
await visit(page, "/");
const incidentCard = page.locator("#overview-incidents .incident");
check((await incidentCard.innerText()).includes("Partner X") && (await incidentCard.innerText()).includes("401 Unauthorized"), "the overview shows the incident");
await checkPage(page);
// A probe shows its result in the row. Keys act on the focused row, and the focus stays there.
if (javaScript) {
  await page.keyboard.press("j");
  await page.keyboard.press("p");
  await incidentCard.locator(".probed").getByText("401").waitFor();
  check(await page.evaluate(() => Boolean(document.activeElement.closest(".incident"))) && new URL(page.url()).pathname === "/", "the focus stays in the row");
  await checkPage(page);
  await incidentCard.getByRole("link", { name: "Partner X", exact: true }).focus();
  await page.keyboard.press("c");
  const message = await incidentCard.locator("pre[id^=message]").textContent();
  await copied(page, (text) => text === message);
}
await incidentCard.getByRole("button", { name: "More for Partner X" }).click();
await waitForLoad(page, () => incidentCard.getByRole("link", { name: "View response" }).click());
check((await page.locator("#response").innerText()).includes("token expired"), "the response shows the reason");

// On the page of a failed delivery, / goes to the search and r to its resend.
if (javaScript) {
  await page.keyboard.press("/");
  check(await page.evaluate(() => document.activeElement.id) === "find", "/ focuses the search");
  await page.evaluate(() => document.activeElement.blur());
  await waitForLoad(page, () => page.keyboard.press("r"));
  check(page.url().endsWith("/redeliver"), `r asks to resend the delivery, got ${page.url()}`);
  await visit(page, "/deliveries");
  await page.keyboard.press("/");
  check(await page.evaluate(() => document.activeElement.id) === "find", "/ focuses the search on a list with filters");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("f");
  check(await page.evaluate(() => document.activeElement.closest("form.filters") !== null), "f focuses the filters");
}

// Deliveries that failed permanently are counted separately from waiting events.
await visit(page, `/subscriptions/${id}`);
const alarms = page.locator("#subscription-alarms");
check((await alarms.innerText()).includes("The endpoint has rejected deliveries for"), "the page says why the subscription is failing");
check(/\d+ deliver(y|ies) failed permanently/.test(await alarms.innerText()), "the page counts permanent failures");
check((await alarms.innerText()).includes("Next probe"), "the page shows the time of the next probe");
await checkPage(page);

// The partner repairs the endpoint. A ping or probe succeeds and the page shows the new state.
status = 200;
if (javaScript) {
  await page.evaluate(() => { window.loadedOnce = true; });
  await page.getByRole("button", { name: "Ping", exact: true }).click();
  await page.locator("#ping").getByText("200").first().waitFor();
  await until("the new state on the page", async () => (await page.locator("#subscription-state").innerText()).toLowerCase().includes("healthy") || (await page.locator("#subscription-state").innerText()).toLowerCase().includes("degraded"));
  check(await page.evaluate(() => window.loadedOnce), "the page did not reload");
} else {
  await waitForLoad(page, () => page.getByRole("button", { name: "Probe now" }).click());
  check((await page.locator("#ping").innerText()).includes("200"), "the page shows the result of the probe");
}
await until("the recovery", async () => await subscriptionStatus() === "healthy");

// The failed deliveries are resent, and the incident's timeline says so.
await visit(page, `/subscriptions/${id}`);
const failedCount = Number((await alarms.innerText()).match(/(\d+) deliver(y|ies) failed permanently/)[1]);
const incidentLink = await alarms.getByRole("link", { name: "View incident" }).getAttribute("href");
const requestsBefore = server.requests.length;
await waitForLoad(page, () => alarms.getByRole("button", { name: `Resend failed (${failedCount})` }).click());
await until("the resent deliveries", () => server.requests.length > requestsBefore);
await until("the entry in the timeline", async () => {
  await visit(page, incidentLink);
  return /resent in \d+ deliver(y|ies) by ada@example.com: \d+ succeeded/.test(await page.locator("#incident-timeline").innerText());
});
await checkPage(page);

// The message for the partner gets a portal link, and the button copies both.
const addLink = () => page.getByRole("button", { name: "Copy with a link to view" }).click();
await (javaScript ? addLink() : waitForLoad(page, addLink));
const withLink = page.locator("#partner-message", { hasText: "/portal/link/" });
await withLink.waitFor();
if (javaScript) {
  await until("the message with the link in the clipboard", async () => await page.evaluate(() => navigator.clipboard.readText()) === await withLink.textContent());
}
await checkPage(page);

// The result of a test alert appears on the page.
await visit(page, "/alerts/new");
await page.getByLabel("Name").fill("On call");
await page.getByLabel("URL").fill(server.url);
await waitForLoad(page, () => page.getByRole("button", { name: "Create channel" }).click());
await visit(page, "/alerts");
const test = () => page.getByRole("button", { name: "Send test alert to On call" }).click();
await (javaScript ? test() : waitForLoad(page, test));
await page.locator("#tested").getByText("On call: test alert sent (200 OK)").waitFor();
check(!javaScript || new URL(page.url()).pathname === "/alerts", "the result appears where the button is");
await checkPage(page);
server.close();
await done();
