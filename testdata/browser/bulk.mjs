// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1s,1s,1h,1h --retry-jitter 0
// The list of deliveries: a receiver that fails twice and then succeeds, watched
// live; pausing; filters; a bulk redelivery, whose counts are those of the API
// and of the metrics; a bulk cancel; the same without JavaScript.
import { api, base, check, done, looks, receiver, screenshot, signedIn, visit } from "./lib.mjs";

const until = async (what, found) => {
  for (const end = Date.now() + 20_000; Date.now() < end;) {
    const value = await found();
    if (value) return value;
    await new Promise((r) => setTimeout(r, 50));
  }
  throw new Error(`did not come: ${what}`);
};

const { page } = await signedIn();
await visit(page, "/deliveries");
check(await page.getByText("Nothing has been sent yet.").isVisible(), "the page of nothing says what to do");
await looks(page);

// Live: the first row comes by itself, and what becomes of it in its place.
let status = 204;
const flaky = await receiver((r) => (JSON.parse(r.body).events[0].name === "ping" ? 204 : status));
const subscribe = async (url) => {
  const answer = await api("POST", "/v2/webhooks/subscriptions", { url, events: [{ name: "content_deleted" }] });
  check(answer.status === 201, `a subscription: ${JSON.stringify(answer.body)}`);
  return answer.body.data.id;
};
const subscription = await subscribe(flaky.url);
await page.waitForSelector("[data-live-list] tr");
status = 503;
let n = 0;
const publish = async () => {
  const before = flaky.requests.length;
  const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: ++n });
  check(answer.status === 201, "an event is accepted");
  await until("the delivery", () => flaky.requests.length > before);
};
await publish();
const row = page.locator("[data-live-list] tr", { hasText: "content_deleted" });
await row.getByText("Retryable").waitFor();
const url = page.url();
await until("the second attempt", () => flaky.requests.length >= 3);
status = 200;
await row.getByText("Success").waitFor();
check((await row.textContent()).includes("3/5"), "the third attempt has succeeded");
check(page.url() === url && await row.count() === 1, "the row was changed in its place");

// Paused, what is new waits, and is counted.
await page.click("[data-live-toggle]");
check(await page.locator("[data-live-toggle]").getAttribute("aria-pressed") === "true", "the button says that it is paused");
await publish();
await page.getByText("1 new, show").waitFor();
check(await row.count() === 1, "nothing moved while it was paused");
await page.click("[data-live-show]");
await until("the new row", async () => await row.count() === 2);

// Failures, over more than a page.
status = 410;
const failures = 30;
for (let i = 0; i < failures; i++) await publish();
await visit(page, "/deliveries?filter[status]=failed");
check(await page.locator("tr[data-row]").count() === 25, "a page of failed ones");
await looks(page);
for (const colorScheme of ["light", "dark"]) {
  await page.emulateMedia({ colorScheme });
  await screenshot(page, `deliveries-${colorScheme}`);
}
await page.emulateMedia({ colorScheme: "light" });

// A range is ticked with Shift.
const ticks = page.locator("input[data-tick]");
await ticks.nth(1).click();
await ticks.nth(4).click({ modifiers: ["Shift"] });
check(await page.locator("[data-ticked]").textContent() === "4", "four are ticked");
await page.click("form.bulk [data-key=redeliver]");
await page.getByText("4 deliveries will be sent again.").waitFor();
await page.getByRole("link", { name: "Leave them" }).click();
await page.waitForURL(/\/deliveries/);

// All that match, whatever page they are on.
await visit(page, "/deliveries?filter[status]=failed");
await page.getByLabel("Redeliver all that match").click();
await page.getByText(`${failures} deliveries will be sent again.`).waitFor();
await looks(page);
status = 200;
const arrived = flaky.requests.length;
await page.getByRole("button", { name: `Redeliver ${failures} deliveries` }).click();
await page.getByText(`${failures} deliveries queued to be sent again.`).waitFor();
await looks(page);
await until("all of them", () => flaky.requests.length === arrived + failures);

// The counts are the same everywhere.
const succeeded = failures + 3; // and the ping, the one that was tried again, and the one after it
const shown = async () => {
  await visit(page, `/deliveries?filter[status]=success&page[size]=100&filter[subscription_id]=${subscription}`);
  return page.locator("tr[data-row]").count();
};
await until("the results", async () => await shown() === succeeded);
const listed = await api("GET", `/v2/webhooks/subscriptions/${subscription}/deliveries?filter[status]=success&page[size]=100`);
check(listed.body.data.length === succeeded, `the API has ${listed.body.data.length} successes, want ${succeeded}`);
const metrics = await (await fetch(`${base}/metrics`)).text();
const ended = (labels) => Number(metrics.split("\n").find((l) => l.startsWith(`service_deliveries_ended_total{${labels}}`))?.split(" ").pop());
check(ended('failure_reason="",status="success"') === succeeded, "the metrics count as many successes");
check(ended('failure_reason="rejected",status="failed"') === failures, "and as many failures");
await visit(page, "/deliveries/redeliver?filter[status]=failed");
check(await page.getByText(`${failures}: redelivered already`).isVisible(), "a second time there is nothing to do");

// By keyboard: a row is opened by Enter.
await visit(page, "/deliveries");
await page.keyboard.press("j");
await page.keyboard.press("Enter");
await page.waitForURL(/\/deliveries\/[0-9a-f-]{36}$/);

// Without JavaScript: what waits is cancelled.
status = 503;
await publish();
const plain = (await signedIn({ javaScriptEnabled: false })).page;
await until("a retryable one", async () => {
  await visit(plain, "/deliveries?filter[status]=retryable");
  return await plain.locator("tr[data-row]").count() === 1;
});
check(await plain.getByRole("link", { name: "Refresh" }).count() === 1, "there is a link to refresh");
await plain.locator("input[data-tick]").check();
await plain.locator('button[formaction="/deliveries/cancel"]').click();
await plain.getByText("will be cancelled.").waitFor();
await plain.locator("form.confirm button").click();
check((await plain.textContent("main")).includes("cancelled."), "the report says so");
await visit(plain, "/deliveries?filter[status]=failed&page[size]=100");
const states = await plain.locator("tr[data-row] .sub").allTextContents();
check(states.some((s) => s.includes("cancelled")), "it is listed as cancelled");
const exported = await plain.request.get(`${base}/deliveries/export?format=csv&filter[status]=failed`);
check((await exported.text()).trim().split("\n").length === failures + 2, "the export has a line for each and one for their names");

flaky.close();
await done();
