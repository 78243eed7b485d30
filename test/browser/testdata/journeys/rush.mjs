// serve --allow-http --allow-destination 127.0.0.1/32 --batch-size 1 --rate-limit 0 --rejecting-after 0
// The live list at 10 to 2,000 deliveries per second: processor time of the renderer, response
// time of the page, rows and memory. The list can be paused and filtered, and shows new rows
// on request. SERVICE_TEST_RUSH_SECONDS=600 runs ten minutes at 2,000/s.
import http from "node:http";
import { api, base, check, done, signIn, timeout, until, visit } from "./lib.mjs";

const slowdown = timeout / 60_000; // allowance for a machine slower than a developer's
const server = http.createServer((req, res) => { req.resume().on("end", () => res.writeHead(204).end()); });
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const created = await api("POST", "/v2/webhooks/subscriptions", {
  url: `http://127.0.0.1:${server.address().port}/`, max_in_flight: 64, events: [{ name: "content_deleted" }],
});
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);

const { page, context } = await signIn();
await visit(page, "/deliveries");
await page.waitForSelector("[data-live-list] tr"); // the ping
const cdp = await context.newCDPSession(page);
await cdp.send("Performance.enable");
const metrics = async () => Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
const toggle = page.locator("[data-live-toggle]");
const showButton = page.locator("[data-live-show]");
const firstRowId = () => page.locator("[data-live-list] tr").first().getAttribute("id");
const rowCount = () => page.locator("[data-live-list] tr").count();

// publisher publishes rate events per second, or as many as the machine can.
let rate = 0;
let published = 0;
let stopped = false;
const publisher = (async () => {
  for (let id = 0, lastTick = Date.now(), due = 0; !stopped;) {
    await new Promise((r) => setTimeout(r, 100));
    due = Math.min(due + rate * (Date.now() - lastTick) / 1000, 500);
    lastTick = Date.now();
    const events = Array.from({ length: Math.floor(due) }, () => ({ name: "content_deleted", version: "1", content_id: ++id }));
    if (!events.length) continue;
    due -= events.length;
    const response = await api("POST", "/v2/events", { events });
    check(response.status === 201, `events are accepted, got ${JSON.stringify(response.body)}`);
    published += events.length;
  }
})();

// Tasks of the page that take longer than 50 ms.
await page.evaluate(() => {
  window.longTasks = [];
  new PerformanceObserver((l) => window.longTasks.push(...l.getEntries().map((e) => e.duration))).observe({ entryTypes: ["longtask"] });
});
const metricsBefore = await metrics();
for (const [targetRate, seconds] of [[10, 5], [50, 5], [500, 5], [2000, Number(process.env.SERVICE_TEST_RUSH_SECONDS ?? 20)]]) {
  rate = targetRate;
  await page.evaluate(() => { window.longTasks = []; });
  const [before, publishedBefore, start] = [await metrics(), published, Date.now()];
  let slowestResponse = 0;
  let maxRows = 0;
  while (Date.now() - start < seconds * 1000) {
    const queryStart = Date.now();
    maxRows = Math.max(maxRows, await rowCount());
    slowestResponse = Math.max(slowestResponse, Date.now() - queryStart);
    await new Promise((r) => setTimeout(r, 250));
  }
  const after = await metrics();
  const elapsed = (Date.now() - start) / 1000;
  const cpu = (after.ProcessTime - before.ProcessTime) / elapsed;
  const longTasks = await page.evaluate(() => window.longTasks);
  console.log(`${targetRate}/s: published ${Math.round((published - publishedBefore) / elapsed)}/s; renderer ${Math.round(cpu * 100)} % of a core; ` +
    `longest task ${Math.round(Math.max(0, ...longTasks))} ms; slowest response ${slowestResponse} ms; ${maxRows} rows; ${Math.round(after.JSHeapUsedSize / 1e6)} MB; ${after.Nodes} nodes`);
  check(cpu < 0.25, `at ${targetRate}/s the renderer takes less than 25 % of a core, got ${Math.round(cpu * 100)} %`);
  // The limits are generous: under other load a task of 20 ms takes five times as long.
  check(Math.max(0, ...longTasks) < 1000 * slowdown, `at ${targetRate}/s tasks shorter than ${1000 * slowdown} ms, got ${Math.max(...longTasks)}`);
  check(maxRows <= 50, `at most 50 rows, got ${maxRows}`);
  if (targetRate <= 10) {
    check(await showButton.isHidden(), `at ${targetRate}/s rows appear immediately`);
    continue;
  }
  // At a higher rate new rows are counted, and the list does not change.
  check(/^(at least )?[\d,]+ new( · [\d,]+\/s)? · Show$/.test(await showButton.textContent()), `at ${targetRate}/s a count of new rows, got ${await showButton.textContent()}`);
  const previousRow = await firstRowId();
  await showButton.click();
  await until(`the newest row at ${targetRate}/s`, async () => await firstRowId() !== previousRow);
  await toggle.click();
  check(await toggle.getAttribute("aria-pressed") === "true", `the list can be paused at ${targetRate}/s`);
  const pausedRow = await firstRowId();
  await until("a count while the list is paused", async () => /new/.test(await showButton.textContent()) && await showButton.isVisible());
  check(await firstRowId() === pausedRow, "the paused list does not change");
  await toggle.click();
}

// After a garbage collection the heap is not much larger than at the start.
await cdp.send("HeapProfiler.collectGarbage");
const metricsAfter = await metrics();
check(metricsAfter.JSHeapUsedSize < metricsBefore.JSHeapUsedSize * 2 + 4e6, `a heap near the ${metricsBefore.JSHeapUsedSize} bytes of the start, got ${metricsAfter.JSHeapUsedSize}`);
check(metricsAfter.Nodes < 2 * 200 * 50, `fewer nodes than 100 rows have, got ${metricsAfter.Nodes}`);

// A filter works at this rate, and only matching rows are counted.
await page.locator(".drop summary", { hasText: "Status" }).click();
await page.locator(".pills label", { hasText: "success" }).click();
await page.waitForURL(/filter/);
await until("a count of matching rows", async () => await showButton.isVisible());

// Without load, rows appear immediately again.
stopped = true;
await publisher;
// The backlog is gone when the newest delivery stays the same and none is pending.
const newest = async () => (await api("GET", "/v2/deliveries?page[size]=1&sort=-created_at")).body;
let last = "";
let since = Date.now();
await until("the last delivery", async () => {
  const now = JSON.stringify(await newest());
  if (now !== last) [last, since] = [now, Date.now()];
  return Date.now() - since > 2000 && (await (await page.request.get(`${base}/deliveries?filter[status]=pending`)).text()).includes("No results");
});
await until("the end of the rate", async () => !/\/s/.test(await showButton.textContent()));
if (await showButton.isVisible()) await showButton.click();
await until("the newest rows", () => showButton.isHidden());
const previousRow = await firstRowId();
const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(response.status === 201, `an event is accepted, got status ${response.status}`);
await until("the row of the last event", async () => await firstRowId() !== previousRow);

// Rows that left the page are on the next one, without repeats.
const rowIds = () => page.locator("[data-live-list] tr").evaluateAll((all) => all.map((row) => row.id));
const shownIds = await rowIds();
await page.locator(".pager [rel=next]").click();
await page.waitForURL(/cursor/);
check(!(await rowIds()).some((id) => shownIds.includes(id)), "the next page repeats no row");

server.closeAllConnections();
server.close();
await done();
