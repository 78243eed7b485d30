// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 50ms,50ms,1h,1h --retry-jitter 0 --attempt-timeout 5m
// A receiver fails twice and then succeeds. The delivery page and the list show each
// step without a reload, and announce changes to screen readers. Both can be paused, and
// close their streams in a hidden tab.
import { api, check, done, startManualReceiver, checkPage, signIn, until, visit } from "./lib.mjs";

const { page: listPage, context } = await signIn();
await visit(listPage, "/deliveries");
check(await listPage.getByText("No deliveries yet.").isVisible(), "the empty list says what to do");

// The first row appears without a reload.
const server = await startManualReceiver();
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
await listPage.waitForSelector("[data-live-list] tr");
let n = 0;
const publish = async () => { // and waits for the first attempt
  const attemptsBefore = server.attempts().length;
  const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: ++n });
  check(response.status === 201, `an event is accepted, got status ${response.status}`);
  await server.waitForAttempt(attemptsBefore + 1);
};
const markLoaded = (page) => page.evaluate(() => { window.loadedOnce = true; });
const checkNotReloaded = async (page, name) => check(await page.evaluate(() => window.loadedOnce), `${name} did not reload`);
await until("the live stream", () => listPage.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
await markLoaded(listPage);

// The delivery page is opened while the first attempt is in flight.
await publish();
const row = listPage.locator("[data-live-list] tr", { hasText: "content_deleted" });
await row.getByTitle("1 of 5 attempts").waitFor();
const deliveryPage = await context.newPage();
await visit(deliveryPage, await row.locator("a[href^='/deliveries/']").first().getAttribute("href"));
await markLoaded(deliveryPage);
const attempts = deliveryPage.locator("#response");
const details = deliveryPage.locator("#facts");
const steps = attempts.locator(".ladder a");
const attemptNumber = async () => (await attempts.innerText()).match(/Attempt (\d) of 5 is in flight/)?.[1];
check(await attemptNumber() === "1" && await steps.count() === 0, "the first attempt is in flight");
check((await details.innerText()).includes("not yet"), "the delivery is not completed");

// Two attempts fail. The focused part of the page does not change while an admin reads or presses
// it. It is updated once the focus leaves.
await deliveryPage.locator("#record a", { hasText: "Resend" }).focus();
await server.respond(503);
await until("the second attempt on the delivery page", async () => await attemptNumber() === "2");
await until("the second attempt on the list", async () => (await row.innerHTML()).includes("2 of 5 attempts"));
check(await steps.count() === 1 && (await steps.first().textContent()).includes("503"), "the first response is in the ladder");
await server.respond(503);
await until("the third attempt on the delivery page", async () => await attemptNumber() === "3");
check((await steps.first().textContent()).includes("1–2") && await steps.count() === 1, "equal responses are one step of the ladder");
check(await deliveryPage.evaluate(() => document.activeElement.textContent.trim()) === "Resend", "the focus did not move");

// The third attempt succeeds.
await server.respond(200);
await row.getByText("Success").waitFor();
check((await row.innerHTML()).includes("3 of 5 attempts"), "the third attempt succeeded");
check(await row.count() === 1, "the row was updated in place");
await until("the completion on the delivery page", async () => !(await details.innerText()).includes("not yet"));
await until("the third response", async () => await steps.count() === 2);
// An announcement takes 2 s. The announcement of an update that the focus delays must not be lost.
await deliveryPage.waitForTimeout(2500);
const announced = async () => (await deliveryPage.locator("[data-live-status]").textContent()) === "Updated: success";
check(!await announced(), "an update that waits is not announced");
await deliveryPage.evaluate(() => document.activeElement.blur());
await until("the title, after the focus has left it", async () => (await deliveryPage.locator("#record").textContent()).includes("Delivered"));
await until("the announcement of the update", announced);
await checkNotReloaded(deliveryPage, "the delivery page");
await checkNotReloaded(listPage, "the list");
check(server.requests.length === 4, "one ping and three attempts arrived");
const [first, second, third] = server.attempts();
check(first.body === third.body && second.body === third.body && first.headers["webhook-id"] === third.headers["webhook-id"], "all attempts have the same body and webhook-id");

// A paused list does not change. New deliveries are counted and announced once.
await listPage.click("[data-live-toggle]");
const toggle = listPage.locator("[data-live-toggle]");
check(await toggle.getAttribute("aria-pressed") === "true" && await toggle.getAttribute("aria-label") === "Paused: resume live updates", "the button says that the list is paused");
server.respondAlways(410);
await publish();
await publish();
await listPage.getByText("2 new · Show").waitFor();
check(await row.count() === 1, "the paused list did not change");
const liveStatus = listPage.locator("[data-live-status]");
check(await liveStatus.getAttribute("role") === "status", "the announcement is in a polite live region");
await until("the announcement of the count", async () => await liveStatus.textContent() === "2 new deliveries to show");
await checkPage(listPage);
await listPage.click("[data-live-show]");
await until("the new rows", async () => await row.count() === 3);
check(await toggle.getAttribute("aria-pressed") === "true", "the list is still paused");
await toggle.click();
check(await toggle.getAttribute("aria-pressed") === "false", "the list is live again");

// A paused delivery page does not change. Three attempts fail; the fourth is due in an hour.
server.respondAlways(undefined);
await publish();
await until("the row of the delivery", async () => await row.count() === 4);
await visit(deliveryPage, await row.locator("a[href^='/deliveries/']").first().getAttribute("href"));
check(await attemptNumber() === "1", "the first attempt is in flight");
await deliveryPage.click("[data-live-toggle]");
for (let i = 0; i < 3; i++) await server.respond(503);
await row.first().getByText("Retry").waitFor();
await until("the third attempt on the list", async () => (await row.first().innerHTML()).includes("3 of 5 attempts"));
check(await attemptNumber() === "1", "the paused page did not change");
await deliveryPage.click("[data-live-toggle]");
await until("all three attempts on the page", async () => await steps.count() === 1 && (await steps.textContent()).includes("1–3"));

// A hidden tab closes the stream. A visible one resumes it after the last ID.
const streamRequests = [];
listPage.on("request", (r) => r.url().includes("/deliveries/stream") && streamRequests.push(r));
const setHidden = (hidden) => listPage.evaluate((value) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
  Object.defineProperty(document, "visibilityState", { configurable: true, get: () => (value ? "hidden" : "visible") });
  document.dispatchEvent(new Event("visibilitychange"));
}, hidden);
const streamClosed = new Promise((resolve) => listPage.on("requestfailed", (r) => r.url().includes("/deliveries/stream") && resolve()));
await setHidden(true);
await streamClosed;
const rowsBefore = await row.count();
const countSuccesses = async () => (await api("GET", `/v2/webhooks/subscriptions/${created.body.data.id}/deliveries?filter[status]=success`)).body.data.length;
const successesBefore = await countSuccesses();
server.respondAlways(200);
await publish();
await until("its success", async () => await countSuccesses() === successesBefore + 1);
check(await row.count() === rowsBefore && streamRequests.length === 0, "a hidden tab sends no request");
await setHidden(false);
await until("the row of the delivery that completed while the tab was hidden", async () => await row.count() === rowsBefore + 1);
check(streamRequests.length === 1 && streamRequests[0].headers()["last-event-id"], "the stream resumes after the last id");
await checkNotReloaded(listPage, "the list");

server.close();
await done();
