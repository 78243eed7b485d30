// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// A partner is found by name and by URL, an event by a value in its payload, and the time
// of a list by its histogram. A test event goes to one subscription alone.
import { api, base, check, done, follow, looks, receiver, script, signedIn, until, visit } from "./lib.mjs";

const { page } = await signedIn();
const server = await receiver(() => 204);
const ids = [];
for (const [path, description] of [["x", "Partner X, streaming"], ["y", "Partner Y"]]) {
  const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url + path, description, events: [{ name: "content_updated" }] });
  check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
  ids.push(made.body.data.id);
}
await until("both pings", () => server.requests.length === 2);
for (const content_id of [4711, 4712]) {
  const answer = await api("POST", "/v2/events", { name: "content_updated", version: "1", content_id });
  check(answer.status === 201, "an event is accepted");
}
await until("their deliveries", () => server.requests.length >= 4);

const search = async (text) => {
  await visit(page, "/");
  await page.fill("#find", text);
  await follow(page, () => page.press("#find", "Enter"));
};
await search("partner x");
check(page.url() === `${base}/subscriptions/${ids[0]}`, `the only partner of the name, got ${page.url()}`);
await search("partner");
check(await page.locator("main tbody tr").count() === 2, "both partners");
await looks(page);
await search("content_id:4711");
check(await page.locator("main tbody tr").count() === 1, "one event");
check((await page.locator("main").innerText()).includes("all events of this period"), "how far back it was looked");
await looks(page);
if (script) {
  await visit(page, "/");
  await page.locator("#find").pressSequentially("streaming");
  await page.locator(".found a").waitFor();
  await looks(page);
  await page.keyboard.press("ArrowDown");
  await follow(page, () => page.keyboard.press("Enter"));
  check(page.url() === `${base}/subscriptions/${ids[0]}`, `the suggestion, got ${page.url()}`);
}

// A test event, to this subscription alone.
const before = server.requests.length;
await visit(page, `/subscriptions/${ids[1]}`);
await page.selectOption("#test-name", "channel_created");
await page.getByRole("button", { name: "Send test event" }).click();
await page.locator("#ping .state-success").waitFor();
check(server.requests.length === before + 1, "one request");
const request = server.requests.at(-1);
check(JSON.parse(request.body).events[0].name === "channel_created", "the type that was chosen");
check(request.headers["x-service-test"] === "true", "it is marked as a test");
await looks(page);

// The bar of the histogram is the time of the list, from the chart and from its table.
await until("statistics", async () => {
  await visit(page, "/deliveries?span=1h");
  return page.locator("figure[data-pick]").count();
});
if (script) {
  await page.locator("figure[data-pick] input").focus();
  check(/^.+: Success \d+/.test(await page.locator("figure[data-pick] .readout").innerText()), "the values of the last step");
  await looks(page); // it is folded while the page is narrow
  await page.locator("figure[data-pick] input").focus();
  await follow(page, () => page.keyboard.press("Enter"));
} else {
  await page.locator("figure[data-pick] summary").click();
  await follow(page, () => page.locator("figure[data-pick] tbody a").last().click());
}
check(decodeURIComponent(page.url()).includes("filter[created_at.to]="), `a span of time, got ${page.url()}`);
await page.locator(".chips a").first().waitFor();
await follow(page, () => page.locator(".chips a").first().click());
check(!page.url().includes("created_at"), `the filter is removed, got ${page.url()}`);

// Applying other filters keeps the time.
await visit(page, "/deliveries?span=24h");
await page.selectOption("#filter-event", "content_updated");
await follow(page, () => page.getByRole("button", { name: "Apply" }).click());
const now = decodeURIComponent(page.url());
check(now.includes("span=24h") && now.includes("filter[event]=content_updated"), `both, got ${now}`);
await done();
