// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0 --rejecting-after 0
// and without JavaScript
// An admin filters failed deliveries and resends all that match. The preview, the report,
// the API, the metrics and the receiver agree on their number. A scheduled retry is
// cancelled the same way.
import { api, base, check, done, waitForLoad, checkPage, startReceiver, screenshot, javaScript, signIn, until, visit } from "./lib.mjs";

const { page } = await signIn();
let status = 204;
const server = await startReceiver((r) => (JSON.parse(r.body).events[0].name === "ping" ? 204 : status));
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
const subscription = created.body.data.id;
const otherCreated = await api("POST", "/v2/webhooks/subscriptions", { url: `${server.url}other`, events: [{ name: "content_published" }] });
check(otherCreated.status === 201, "a second subscription is created, without matching deliveries");
await until("both pings", () => server.requests.length === 2);
let n = 0;
const publish = async (count) => {
  const requestsBefore = server.requests.length;
  for (let i = 0; i < count; i++) { // one after another, so each event has its own delivery
    const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: ++n });
    check(response.status === 201, `an event is accepted, got status ${response.status}`);
    await until("the delivery", () => server.requests.length === requestsBefore + i + 1);
  }
};

// The number of deliveries with a status: in all pages of the API, in the metrics, on the page.
const countFromAPI = async (deliveryStatus) => {
  let total = 0;
  for (let cursor = ""; ;) {
    const { body } = await api("GET", `/v2/webhooks/subscriptions/${subscription}/deliveries?filter[status]=${deliveryStatus}&page[size]=100${cursor}`);
    total += body.data.length;
    if (!body.meta.pagination.next) return total;
    cursor = `&page[cursor]=${encodeURIComponent(body.meta.pagination.next)}`;
  }
};
const countFromMetrics = async (labels) => {
  const metrics = await (await fetch(`${base}/metrics`)).text();
  return Number(metrics.split("\n").find((l) => l.startsWith(`webhooks_deliveries_ended_total{${labels}}`))?.split(" ").pop() ?? 0);
};
const countOnPage = async (query) => {
  await visit(page, `/deliveries?page[size]=100&${query}`);
  return page.locator("tr[data-row]").count();
};

// More failures than fit on one page.
status = 410;
const failures = 30;
await publish(failures);
await until("the failures", async () => await countFromAPI("failed") === failures);
await visit(page, "/deliveries");
await page.locator(".drop summary", { hasText: "Status" }).click();
await page.locator(".pills label", { hasText: "failed" }).click();
if (!javaScript) await page.getByRole("button", { name: "Apply" }).click();
await page.waitForURL(/filter/);
check(decodeURIComponent(page.url()).includes("filter[status]=failed"), `the URL has the filter, got ${page.url()}`);
check(await page.locator("tr[data-row]").count() === 25, "a page of failed deliveries");
await checkPage(page);
for (const colorScheme of javaScript ? ["light", "dark"] : []) {
  await page.emulateMedia({ colorScheme });
  await screenshot(page, `deliveries-${colorScheme}`);
}
await page.emulateMedia({ colorScheme: "light" });

// Select four deliveries: with Shift where JavaScript runs.
const checkboxes = page.locator("input[data-tick]");
if (javaScript) {
  await checkboxes.nth(1).click();
  await checkboxes.nth(4).click({ modifiers: ["Shift"] });
  check(await page.locator("[data-ticked]").textContent() === "4 selected", "4 selected");
  await page.getByText(`Select all ${failures} matching deliveries`).waitFor();
} else {
  for (const i of [1, 2, 3, 4]) await checkboxes.nth(i).check();
}
await page.click("form.bulk [data-key=redeliver]");
await page.getByText("4 deliveries will be resent.").waitFor();
await page.getByRole("link", { name: "Back", exact: true }).click();
await page.waitForURL(/\/deliveries(\?|$)/);

// Select all matching deliveries, including those on other pages. They are counted before the
// resend.
await visit(page, "/deliveries?filter[status]=failed");
const selectionBar = page.getByRole("group", { name: "Selected deliveries" });
check(await selectionBar.isHidden(), "the selection bar is hidden while nothing is selected");
if (javaScript) await page.getByLabel("Select all on this page").click();
else await checkboxes.first().check();
await selectionBar.getByLabel(/Select all/).check();
if (javaScript) check(await page.locator("[data-ticked]").textContent() === "All selected", "All selected");
await selectionBar.getByRole("button", { name: "Resend" }).click();
await page.getByText(`${failures} deliveries will be resent.`).waitFor();
await checkPage(page);
status = 200;
const requestsBefore = server.requests.length;
const successesBefore = await countFromMetrics('failure_reason="",status="success"');
await waitForLoad(page, () => page.getByRole("button", { name: `Resend ${failures} deliveries` }).click());
check(/^\/bulk-runs\/[0-9a-f-]{36}$/.test(new URL(page.url()).pathname), `the bulk run page, got ${page.url()}`);
const runURL = page.url();
await until("the end of the bulk run", async () => {
  if (await page.getByText(`${failures} deliveries resent.`).count()) return true;
  if (!javaScript) await page.reload(); // with JavaScript the page updates itself
});
await checkPage(page);
await until("all requests", () => server.requests.length === requestsBefore + failures);
await until("the results of the deliveries", async () => {
  if (await page.getByRole("link", { name: `${failures} succeeded` }).count()) return true;
  if (!javaScript) await page.reload();
});
await page.getByRole("link", { name: `${failures} succeeded` }).click();
await page.waitForURL(/bulk_run_id/);
check(await page.locator("tr[data-row]").count() === 25, "a page of the deliveries of the bulk run");
await visit(page, "/bulk-runs");
check(await page.locator(`a[href="${new URL(runURL).pathname}"]`).count() === 1, "the bulk run is listed");
await checkPage(page);

// Page, API and metrics show the same counts.
const expectedSuccesses = failures + 1; // and the ping
await until("the results", async () => await countOnPage(`filter[status]=success&filter[subscription_id]=${subscription}`) === expectedSuccesses);
check(await countFromAPI("success") === expectedSuccesses, `${expectedSuccesses} successes in the API, got ${await countFromAPI("success")}`);
check(await countFromAPI("failed") === failures && await countOnPage("filter[status]=failed") === failures, "the original deliveries are still failed");
await until("the successes in the metrics", async () => await countFromMetrics('failure_reason="",status="success"') === successesBefore + failures);
check(await countFromMetrics('failure_reason="rejected",status="failed"') === failures, "the metrics contain the failures");
const resent = server.requests.slice(requestsBefore);
const eventIds = (requests) => requests.flatMap((r) => JSON.parse(r.body).events.map((e) => e.id)).sort().join();
const originals = server.requests.slice(0, requestsBefore).filter((r) => JSON.parse(r.body).events[0].name === "content_deleted");
check(originals.length === failures, "one event per delivery");
check(eventIds(resent) === eventIds(originals), "each event arrived again exactly once");
check(new Set(resent.map((r) => r.headers["webhook-id"])).size === failures, "each event has its own delivery");
await visit(page, "/deliveries/redeliver?filter[status]=failed");
check(await page.getByText(`${failures}: already delivered another way`).isVisible(), "a second resend finds nothing to do");

if (javaScript) { // Keyboard: Enter opens a row.
  await visit(page, "/deliveries");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/deliveries\/[0-9a-f-]{36}$/);
  await visit(page, "/deliveries"); // r resends the row's delivery
  await page.keyboard.press("j");
  const deliveryId = await page.evaluate(() => document.activeElement.closest("[data-row]").id.slice(2));
  await page.keyboard.press("r");
  await page.waitForURL((to) => to.pathname === "/deliveries/redeliver" && to.searchParams.get("filter[id][]") === deliveryId);
}

// A scheduled retry is cancelled.
status = 503;
await publish(1);
await until("a retryable delivery", async () => await countOnPage("filter[status]=retryable") === 1);
check(await page.getByRole("link", { name: "Refresh" }).count() === (javaScript ? 0 : 1), "a Refresh link, without JavaScript only");
await page.locator("input[data-tick]").check();
await waitForLoad(page, () => page.locator('button[formaction="/deliveries/cancel"]').click());
await page.getByText("will be cancelled.").waitFor();
await waitForLoad(page, () => page.locator("form.confirm button").click());
check(new URL(page.url()).pathname.startsWith("/bulk-runs/"), `the bulk run page, got ${page.url()}`);
await until("the cancellation", async () => await countFromAPI("retryable") === 0);
await visit(page, "/deliveries?filter[status]=failed&page[size]=100");
const statuses = await page.locator("tr[data-row] .sub").allTextContents();
check(statuses.some((s) => s.includes("cancelled")), "the delivery is listed as cancelled");
const csvExport = await page.request.get(`${base}/deliveries/export?format=csv&filter[status]=failed`);
check((await csvExport.text()).trim().split("\n").length === failures + 2, "the export has a line per delivery and a header");

server.close();
await done();
