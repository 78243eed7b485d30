// serve --allow-http --allow-destination 127.0.0.1/32 --batch-size 1 --rate-limit 0 --rejecting-after 0
// The live list while deliveries come in at 10 to 2,000 a second: what the renderer
// costs, how soon the page answers, how much it keeps, and that it can be paused,
// shown what is new, and filtered. SERVICE_TEST_RUSH_SECONDS=600 takes ten minutes at 2,000/s.
import http from "node:http";
import { api, base, check, done, signedIn, timeout, until, visit } from "./lib.mjs";

const slow = timeout / 60_000; // how much slower than a developer's the machine is taken to be
const server = http.createServer((req, res) => { req.resume().on("end", () => res.writeHead(204).end()); });
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const made = await api("POST", "/v2/webhooks/subscriptions", {
  url: `http://127.0.0.1:${server.address().port}/`, max_in_flight: 64, events: [{ name: "content_deleted" }],
});
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);

const { page, context } = await signedIn();
await visit(page, "/deliveries");
await page.waitForSelector("[data-live-list] tr"); // of its ping
const cdp = await context.newCDPSession(page);
await cdp.send("Performance.enable");
const metrics = async () => Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
const toggle = page.locator("[data-live-toggle]");
const show = page.locator("[data-live-show]");
const top = () => page.locator("[data-live-list] tr").first().getAttribute("id");
const rows = () => page.locator("[data-live-list] tr").count();

// publish publishes so many events a second, as far as the machine gets.
let rate = 0;
let published = 0;
let ended = false;
const publishing = (async () => {
  for (let id = 0, at = Date.now(), due = 0; !ended;) {
    await new Promise((r) => setTimeout(r, 100));
    due = Math.min(due + rate * (Date.now() - at) / 1000, 500);
    at = Date.now();
    const events = Array.from({ length: Math.floor(due) }, () => ({ name: "content_deleted", version: "1", content_id: ++id }));
    if (!events.length) continue;
    due -= events.length;
    const answer = await api("POST", "/v2/events", { events });
    check(answer.status === 201, `events are accepted: ${JSON.stringify(answer.body)}`);
    published += events.length;
  }
})();

// Tasks of the page that took longer than 50 ms.
await page.evaluate(() => {
  window.tasks = [];
  new PerformanceObserver((l) => window.tasks.push(...l.getEntries().map((e) => e.duration))).observe({ entryTypes: ["longtask"] });
});
const first = await metrics();
for (const [of, seconds] of [[10, 10], [50, 10], [500, 10], [2000, Number(process.env.SERVICE_TEST_RUSH_SECONDS ?? 60)]]) {
  rate = of;
  await page.evaluate(() => { window.tasks = []; });
  const [before, from, began] = [await metrics(), published, Date.now()];
  let longest = 0;
  let most = 0;
  while (Date.now() - began < seconds * 1000) {
    const asked = Date.now();
    most = Math.max(most, await rows());
    longest = Math.max(longest, Date.now() - asked);
    await new Promise((r) => setTimeout(r, 250));
  }
  const after = await metrics();
  const wall = (Date.now() - began) / 1000;
  const cpu = (after.ProcessTime - before.ProcessTime) / wall;
  const tasks = await page.evaluate(() => window.tasks);
  console.log(`${of}/s: published ${Math.round((published - from) / wall)}/s; renderer ${Math.round(cpu * 100)} % of a core; ` +
    `longest task ${Math.round(Math.max(0, ...tasks))} ms; slowest answer ${longest} ms; ${most} rows; ${Math.round(after.JSHeapUsedSize / 1e6)} MB; ${after.Nodes} nodes`);
  check(cpu < 0.25, `at ${of}/s the renderer takes less than 25 % of a core, got ${Math.round(cpu * 100)} %`);
  // What was measured is printed; beside other work of the machine a task of 20 ms takes five times as long.
  check(Math.max(0, ...tasks) < 1000 * slow, `at ${of}/s no task of the page takes a second, got ${Math.max(...tasks)}`);
  check(most <= 50, `at most 50 rows are kept, got ${most}`);
  if (of <= 10) {
    check(await show.isHidden(), `at ${of}/s rows are shown as they come`);
    continue;
  }
  // Too many to show: they are counted, and the list stays as it is.
  check(/^(at least )?[\d,]+ new( · [\d,]+\/s)? · Show$/.test(await show.textContent()), `at ${of}/s they are counted: ${await show.textContent()}`);
  const was = await top();
  await show.click();
  await until(`the newest at ${of}/s`, async () => await top() !== was);
  await toggle.click();
  check(await toggle.getAttribute("aria-pressed") === "true", `it can be paused at ${of}/s`);
  const still = await top();
  await until("a count while it is paused", async () => /new/.test(await show.textContent()) && await show.isVisible());
  check(await top() === still, "nothing moves while it is paused");
  await toggle.click();
}

// The memory that is left after a collection is what it was.
await cdp.send("HeapProfiler.collectGarbage");
const last = await metrics();
check(last.JSHeapUsedSize < first.JSHeapUsedSize * 2 + 4e6, `the heap stays level: ${first.JSHeapUsedSize} to ${last.JSHeapUsedSize} bytes`);
check(last.Nodes < 2 * 200 * 50, `the nodes of 50 rows, got ${last.Nodes}`);

// Filters work meanwhile, and what comes in is counted by them.
await page.locator(".pills label", { hasText: "success" }).click();
await page.waitForURL(/filter/);
await until("a count of what matches", async () => await show.isVisible());

// Once it is quiet, rows are shown again as they come.
ended = true;
await publishing;
await until("the last result", async () => (await (await page.request.get(`${base}/deliveries?filter[status]=pending`)).text()).includes("No results"));
await until("the end of the rate", async () => !/\/s/.test(await show.textContent()));
if (await show.isVisible()) await show.click();
await until("the newest rows", () => show.isHidden());
const was = await top();
const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(answer.status === 201, "one more event");
await until("its row", async () => await top() !== was);

// What is not on the page any more is behind its last row.
const ids = () => page.locator("[data-live-list] tr").evaluateAll((all) => all.map((row) => row.id));
const shown = await ids();
await page.locator(".pager [rel=next]").click();
await page.waitForURL(/cursor/);
check(!(await ids()).some((id) => shown.includes(id)), "the next page begins behind the last row");

server.closeAllConnections();
server.close();
await done();
