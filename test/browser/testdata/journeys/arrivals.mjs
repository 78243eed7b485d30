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
}

server.close();
await done();
