// serve --allow-http --allow-destination 127.0.0.1/32 --retry-jitter 0 --rejecting-after 0 --attempt-timeout 5m
// and without JavaScript
// What comes into a list while it is looked at: rows are counted and do not move; a delivery
// that matches the filter only once it has failed appears at its place.
import { api, check, done, follow, holding, looks, script, signedIn, until, visit } from "./lib.mjs";

const { page, context } = await signedIn();
const server = await holding();
const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
let n = 0;
const publish = async (name) => {
  const answer = await api("POST", "/v2/events", { name, version: "1", content_id: ++n });
  check(answer.status === 201, "an event is accepted");
};
for (let i = 0; i < 4; i++) await publish("content_unpublished");

// The second page of the events: new ones do not move it.
await visit(page, "/events?page[size]=2");
await follow(page, () => page.locator(".pager [rel=next]").click());
const row = page.locator("tr[data-row]").first();
const where = async () => JSON.stringify([await row.getAttribute("id"), (await row.boundingBox()).y]);
const was = await where();
const show = page.locator("#new-rows a");
check(await show.count() === 0, "nothing is new");
await publish("content_unpublished");
await publish("content_deleted");
if (!script) await page.reload(); // with a script it comes by itself
await page.getByText("2 new · Show").waitFor();
check(await where() === was, "no row has moved");
await looks(page);
await follow(page, () => show.click());
check(!page.url().includes("cursor") && await page.locator("tr[data-row]").count() === 2, `the first page, got ${page.url()}`);
check(await page.locator("#new-rows a").count() === 0, "nothing is new there");

await server.attempt(1);
if (!script) {
  await server.answer(204);
} else {
  // A list of failures: what was in flight when it was loaded comes in once it has failed,
  // in the order of the list.
  const failed = await context.newPage();
  await visit(failed, "/deliveries?filter[status]=failed");
  check(await failed.getByText("No results").count() === 1, "nothing has failed");
  await server.answer(410);
  await failed.waitForSelector("[data-live-list] tr");
  await until("the stream", () => failed.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
  const ids = () => failed.locator("[data-live-list] tr").evaluateAll((all) => all.map((tr) => tr.id));
  const [first] = await ids();
  await publish("content_deleted");
  await server.attempt(2);
  await server.answer(410);
  await until("the second failure", async () => (await ids()).length === 2);
  check((await ids())[1] === first, "the newest comes first");
  const shown = await ids();
  await visit(failed, "/deliveries?filter[status]=failed");
  check((await ids()).join() === shown.join(), "in the order of the list");
}

server.close();
await done();
