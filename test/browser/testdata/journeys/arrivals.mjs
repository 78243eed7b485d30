// serve --allow-http --allow-destination 127.0.0.1/32 --retry-jitter 0 --rejecting-after 0 --attempt-timeout 5m
// and without JavaScript
// New rows of an open list are counted, and the rows on the page do not move. A delivery
// that matches the filter only after it failed appears at its position.
import { api, check, done, waitForLoad, startManualReceiver, checkPage, javaScript, signIn, until, visit } from "./lib.mjs";

const { page, context } = await signIn();
const server = await startManualReceiver();
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
let n = 0;
const publish = async (name) => {
  const response = await api("POST", "/v2/events", { name, version: "1", content_id: ++n });
  check(response.status === 201, `an event is accepted, got status ${response.status}`);
};
for (let i = 0; i < 4; i++) await publish("content_unpublished");

// New events do not move the rows of the second page.
await visit(page, "/events?page[size]=2");
await waitForLoad(page, () => page.locator(".pager [rel=next]").click());
const row = page.locator("tr[data-row]").first();
const rowPosition = async () => JSON.stringify([await row.getAttribute("id"), (await row.boundingBox()).y]);
const positionBefore = await rowPosition();
const showLink = page.locator("#new-rows a");
check(await showLink.count() === 0, "no new rows at first");
await publish("content_unpublished");
await publish("content_deleted");
if (!javaScript) await page.reload(); // with JavaScript the page updates itself
await page.getByText("2 new · Show").waitFor();
check(await rowPosition() === positionBefore, "no row moved");
await checkPage(page);
await waitForLoad(page, () => showLink.click());
check(!page.url().includes("cursor") && await page.locator("tr[data-row]").count() === 2, `the first page, got ${page.url()}`);
check(await page.locator("#new-rows a").count() === 0, "no new rows on the first page");

await server.waitForAttempt(1);
if (!javaScript) {
  await server.respond(204);
} else {
  // A delivery that was in flight when the list of failures was loaded appears once it has
  // failed, in the order of the list.
  const failedPage = await context.newPage();
  await visit(failedPage, "/deliveries?filter[status]=failed");
  check(await failedPage.getByText("No results").count() === 1, "no failures at first");
  await server.respond(410);
  await failedPage.waitForSelector("[data-live-list] tr");
  await until("the live stream", () => failedPage.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
  const rowIds = () => failedPage.locator("[data-live-list] tr").evaluateAll((all) => all.map((tr) => tr.id));
  const [firstFailure] = await rowIds();
  await publish("content_deleted");
  await server.waitForAttempt(2);
  await server.respond(410);
  await until("the second failure", async () => (await rowIds()).length === 2);
  check((await rowIds())[1] === firstFailure, "the newest failure comes first");
  const liveOrder = await rowIds();
  await visit(failedPage, "/deliveries?filter[status]=failed");
  check((await rowIds()).join() === liveOrder.join(), "live rows have the order of the list");

  // A page may be newer than the start of its stream. The stream then repeats rows that are already
  // on the page. They are not new, and the next delivery appears immediately.
  const list = await context.newPage();
  const streams = [];
  list.on("request", (r) => { if (r.url().includes("/stream")) streams.push(r.headers()["last-event-id"]); });
  await list.route(/\/deliveries$/, async (route) => {
    const answer = await route.fetch();
    const body = (await answer.text()).replace(/(Last-Event-ID&#34;:&#34;)\d+-\d+-/, "$10-0-");
    await route.fulfill({ response: answer, body });
  });
  const repeated = list.waitForResponse((r) => r.url().includes("/stream"));
  await visit(list, "/deliveries");
  await repeated;
  check(/^0-0-\d+$/.test(streams[0]), `the stream begins before the rows of the page, got ${streams[0]}`);
  const firstRowId = () => list.locator("[data-live-list] tr").first().getAttribute("id");
  const rowsBefore = await list.locator("[data-live-list] tr").count();
  const firstBefore = await firstRowId();
  await publish("content_deleted");
  await server.waitForAttempt(3);
  await server.respond(410);
  await until("the row of the new delivery", async () => await firstRowId() !== firstBefore);
  check(await list.locator("[data-live-list] tr").count() === rowsBefore + 1, "no row is repeated");
  check(await list.locator("[data-live-show]").isHidden(), "nothing waits to be shown");
}

server.close();
await done();
