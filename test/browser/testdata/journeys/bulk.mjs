// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0 --rejecting-after 0
// and without JavaScript
// Failures are filtered, and all that match are redelivered: what the dry run and
// the report say, what the API and the metrics count, and what arrives, is the
// same number. What waits is cancelled the same way.
import { api, base, check, done, follow, looks, receiver, screenshot, script, signedIn, until, visit } from "./lib.mjs";

const { page } = await signedIn();
let status = 204;
const server = await receiver((r) => (JSON.parse(r.body).events[0].name === "ping" ? 204 : status));
const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
const subscription = made.body.data.id;
const other = await api("POST", "/v2/webhooks/subscriptions", { url: `${server.url}other`, events: [{ name: "content_published" }] });
check(other.status === 201, "another one, of which nothing matches");
await until("both pings", () => server.requests.length === 2);
let n = 0;
const publish = async (count) => {
  const before = server.requests.length;
  for (let i = 0; i < count; i++) { // one after the other, so that each has a delivery of its own
    const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: ++n });
    check(answer.status === 201, "an event is accepted");
    await until("the delivery", () => server.requests.length === before + i + 1);
  }
};

// What the API has of a status, page by page; the metrics; the list.
const listed = async (of) => {
  let all = 0;
  for (let cursor = ""; ;) {
    const { body } = await api("GET", `/v2/webhooks/subscriptions/${subscription}/deliveries?filter[status]=${of}&page[size]=100${cursor}`);
    all += body.data.length;
    if (!body.meta.pagination.next) return all;
    cursor = `&page[cursor]=${encodeURIComponent(body.meta.pagination.next)}`;
  }
};
const ended = async (labels) => {
  const metrics = await (await fetch(`${base}/metrics`)).text();
  return Number(metrics.split("\n").find((l) => l.startsWith(`service_deliveries_ended_total{${labels}}`))?.split(" ").pop() ?? 0);
};
const shown = async (query) => {
  await visit(page, `/deliveries?page[size]=100&${query}`);
  return page.locator("tr[data-row]").count();
};

// Failures, over more than a page.
status = 410;
const failures = 30;
await publish(failures);
await until("their ends", async () => await listed("failed") === failures);
await visit(page, "/deliveries");
await page.locator(".pills label", { hasText: "failed" }).click();
if (!script) await page.getByRole("button", { name: "Apply" }).click();
await page.waitForURL(/filter/);
check(decodeURIComponent(page.url()).includes("filter[status]=failed"), `the filter is the address, got ${page.url()}`);
check(await page.locator("tr[data-row]").count() === 25, "a page of failed ones");
await looks(page);
for (const colorScheme of script ? ["light", "dark"] : []) {
  await page.emulateMedia({ colorScheme });
  await screenshot(page, `deliveries-${colorScheme}`);
}
await page.emulateMedia({ colorScheme: "light" });

// Four are ticked, with Shift where it can be.
const ticks = page.locator("input[data-tick]");
if (script) {
  await ticks.nth(1).click();
  await ticks.nth(4).click({ modifiers: ["Shift"] });
  check(await page.locator("[data-ticked]").textContent() === "4 selected", "four are selected");
  await page.getByText(`Select all ${failures} matching deliveries`).waitFor();
} else {
  for (const i of [1, 2, 3, 4]) await ticks.nth(i).check();
}
await page.click("form.bulk [data-key=redeliver]");
await page.getByText("4 deliveries will be resent.").waitFor();
await page.getByRole("link", { name: "Back", exact: true }).click();
await page.waitForURL(/\/deliveries(\?|$)/);

// All that match, whatever page they are on: counted first, and told when done.
await visit(page, "/deliveries?filter[status]=failed");
const bar = page.getByRole("group", { name: "Selected deliveries" });
check(await bar.isHidden(), "nothing is selected: the bar takes no room");
if (script) await page.getByLabel("Select all on this page").click();
else await ticks.first().check();
await bar.getByLabel(/Select all/).check();
if (script) check(await page.locator("[data-ticked]").textContent() === "All selected", "all are selected");
await bar.getByRole("button", { name: "Resend" }).click();
await page.getByText(`${failures} deliveries will be resent.`).waitFor();
await looks(page);
status = 200;
const arrived = server.requests.length;
const successes = await ended('failure_reason="",status="success"');
await follow(page, () => page.getByRole("button", { name: `Resend ${failures} deliveries` }).click());
check(/^\/bulk-runs\/[0-9a-f-]{36}$/.test(new URL(page.url()).pathname), `the page of the run, got ${page.url()}`);
const run = page.url();
await until("the end of the run", async () => {
  if (await page.getByText(`${failures} deliveries resent.`).count()) return true;
  if (!script) await page.reload(); // with a script it comes by itself
});
await looks(page);
await until("all of them", () => server.requests.length === arrived + failures);
await until("what became of them", async () => {
  if (await page.getByRole("link", { name: `${failures} succeeded` }).count()) return true;
  if (!script) await page.reload();
});
await page.getByRole("link", { name: `${failures} succeeded` }).click();
await page.waitForURL(/bulk_run_id/);
check(await page.locator("tr[data-row]").count() === 25, "a page of the redeliveries of the run");
await visit(page, "/bulk-runs");
check(await page.locator(`a[href="${new URL(run).pathname}"]`).count() === 1, "the run is on the list of runs");
await looks(page);

// The counts are the same everywhere.
const succeeded = failures + 1; // and its ping
await until("the results", async () => await shown(`filter[status]=success&filter[subscription_id]=${subscription}`) === succeeded);
check(await listed("success") === succeeded, `the API has ${await listed("success")} successes, want ${succeeded}`);
check(await listed("failed") === failures && await shown("filter[status]=failed") === failures, "the old ones are what they were");
await until("as many successes more in the metrics", async () => await ended('failure_reason="",status="success"') === successes + failures);
check(await ended('failure_reason="rejected",status="failed"') === failures, "and as many failures");
const again = server.requests.slice(arrived);
const eventsOf = (requests) => requests.flatMap((r) => JSON.parse(r.body).events.map((e) => e.id)).sort().join();
const before = server.requests.slice(0, arrived).filter((r) => JSON.parse(r.body).events[0].name === "content_deleted");
check(before.length === failures, "each event was sent alone");
check(eventsOf(again) === eventsOf(before), "the same events have arrived again, each once");
check(new Set(again.map((r) => r.headers["webhook-id"])).size === failures, "each in a delivery of its own");
await visit(page, "/deliveries/redeliver?filter[status]=failed");
check(await page.getByText(`${failures}: already resent`).isVisible(), "a second time there is nothing to do");

if (script) { // By keyboard: a row is opened by Enter.
  await visit(page, "/deliveries");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/deliveries\/[0-9a-f-]{36}$/);
  await visit(page, "/deliveries"); // and what it is of is sent again by r
  await page.keyboard.press("j");
  const row = await page.evaluate(() => document.activeElement.closest("[data-row]").id.slice(2));
  await page.keyboard.press("r");
  await page.waitForURL((to) => to.pathname === "/deliveries/redeliver" && to.searchParams.get("filter[id][]") === row);
}

// What waits is cancelled.
status = 503;
await publish(1);
await until("a retryable one", async () => await shown("filter[status]=retryable") === 1);
check(await page.getByRole("link", { name: "Refresh" }).count() === (script ? 0 : 1), "there is a link to refresh where there is no script");
await page.locator("input[data-tick]").check();
await follow(page, () => page.locator('button[formaction="/deliveries/cancel"]').click());
await page.getByText("will be cancelled.").waitFor();
await follow(page, () => page.locator("form.confirm button").click());
check(new URL(page.url()).pathname.startsWith("/bulk-runs/"), `the page of the cancellation, got ${page.url()}`);
await until("the cancellation", async () => await listed("retryable") === 0);
await visit(page, "/deliveries?filter[status]=failed&page[size]=100");
const states = await page.locator("tr[data-row] .sub").allTextContents();
check(states.some((s) => s.includes("cancelled")), "it is listed as cancelled");
const exported = await page.request.get(`${base}/deliveries/export?format=csv&filter[status]=failed`);
check((await exported.text()).trim().split("\n").length === failures + 2, "the export has a line for each and one for their names");

server.close();
await done();
