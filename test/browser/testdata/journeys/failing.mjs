// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --rejecting-after 2
// and without JavaScript
// A partner gets nothing: from the overview to the response that says why, a probe, and
// everything resent that failed. The page of the subscription is current without a reload.
import { api, check, done, follow, looks, receiver, script, signedIn, until, visit } from "./lib.mjs";

let status = 401;
const server = await receiver(() => ({ status, headers: { "Content-Type": "text/plain" }, body: status === 401 ? "token expired\n" : "ok\n" }));
const { page } = await signedIn();
const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }], description: "Partner X" });
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
const id = made.body.data.id;
await until("the first ping", () => server.requests.length === 1);
const state = async () => (await api("GET", `/v2/webhooks/subscriptions/${id}`)).body.data.status;
for (let n = 1; n <= 3; n++) {
  const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: n });
  check(answer.status === 201, "an event is accepted");
  if (n < 3) await until("its rejection", async () => (await api("GET", `/v2/webhooks/subscriptions/${id}/deliveries?filter[status]=failed&filter[event]=content_deleted`)).body.data.length >= n);
}
await until("the circuit breaker", async () => await state() === "failing");

// Why: one click from the overview.
await visit(page, "/");
const card = page.locator("#overview-incidents .incident");
check((await card.innerText()).includes("Partner X") && (await card.innerText()).includes("401 Unauthorized"), "the overview begins with the incident");
await looks(page);
await follow(page, () => card.getByRole("link", { name: "View response" }).click());
check((await page.locator("#response").innerText()).includes("token expired"), "the response that says why");

// What is lost if nothing is done is counted, apart from what waits.
await visit(page, `/subscriptions/${id}`);
const alarms = page.locator("#subscription-alarms");
check((await alarms.innerText()).includes("The endpoint has rejected deliveries for"), "why it is failing");
check(/\d+ deliver(y|ies) failed permanently/.test(await alarms.innerText()), "what failed permanently is counted");
check((await alarms.innerText()).includes("Next probe"), "when the next probe is due");
await looks(page);

// The partner repairs the endpoint. A probe finds out, and the page shows it.
status = 200;
if (script) {
  await page.evaluate(() => { window.here = true; });
  await page.getByRole("button", { name: "Ping", exact: true }).click();
  await page.locator("#ping").getByText("200").first().waitFor();
  await until("the new state in place", async () => (await page.locator("#subscription-state").innerText()).toLowerCase().includes("healthy") || (await page.locator("#subscription-state").innerText()).toLowerCase().includes("degraded"));
  check(await page.evaluate(() => window.here), "the page was not loaded again");
} else {
  await follow(page, () => page.getByRole("button", { name: "Probe now" }).click());
  check((await page.locator("#ping").innerText()).includes("200"), "the result of the probe");
}
await until("the recovery", async () => await state() === "healthy");

// What failed is resent, and the incident says so.
await visit(page, `/subscriptions/${id}`);
const failed = Number((await alarms.innerText()).match(/(\d+) deliver(y|ies) failed permanently/)[1]);
const link = await alarms.getByRole("link", { name: "View incident" }).getAttribute("href");
const before = server.requests.length;
await follow(page, () => alarms.getByRole("button", { name: `Resend failed (${failed})` }).click());
await until("everything again", () => server.requests.length > before);
await until("the entry in the timeline", async () => {
  await visit(page, link);
  return /Resent \d+ deliver(y|ies) by ada@example.com: \d+ succeeded/.test(await page.locator("#incident-timeline").innerText());
});
await looks(page);
server.close();
await done();
