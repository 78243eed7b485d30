// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// and in Firefox
// The search finds a partner by description and an event by a value in its payload. The
// histogram sets the time range of a list. A test event goes to one subscription only.
import { api, base, check, done, waitForLoad, checkPage, startReceiver, javaScript, signIn, until, visit } from "./lib.mjs";

const { page } = await signIn();
const server = await startReceiver(() => 204);
const ids = [];
for (const [path, description] of [["x", "Partner X, streaming"], ["y", "Partner Y"]]) {
  const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url + path, description, events: [{ name: "content_updated" }] });
  check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
  ids.push(created.body.data.id);
}
await until("both pings", () => server.requests.length === 2);
for (const content_id of [4711, 4712]) {
  const response = await api("POST", "/v2/events", { name: "content_updated", version: "1", content_id });
  check(response.status === 201, `an event is accepted, got status ${response.status}`);
}
await until("their deliveries", () => server.requests.length >= 4);

const search = async (text) => {
  await visit(page, "/");
  await page.fill("#find", text);
  await waitForLoad(page, () => page.press("#find", "Enter"));
};
await search("partner x");
check(page.url() === `${base}/subscriptions/${ids[0]}`, `the page of the only match, got ${page.url()}`);
await search("partner");
check(await page.locator("main tbody tr").count() === 2, "both partners match");
await checkPage(page);
await search("content_id:4711");
check(await page.locator("main tbody tr").count() === 1, "one event matches");
check((await page.locator("main").innerText()).includes("all events of this period"), "the page says which period was searched");
await checkPage(page);
if (javaScript) {
  await visit(page, "/");
  await page.locator("#find").pressSequentially("streaming");
  await page.locator(".found a").waitFor();
  await checkPage(page);
  await page.keyboard.press("ArrowDown");
  await waitForLoad(page, () => page.keyboard.press("Enter"));
  check(page.url() === `${base}/subscriptions/${ids[0]}`, `the page of the suggestion, got ${page.url()}`);
}

// A test event goes to this subscription only.
const tests = () => server.requests.filter((r) => JSON.parse(r.body).events[0].name === "channel_created");
const testsBefore = tests().length;
await visit(page, `/subscriptions/${ids[1]}`);
await page.selectOption("#test-name", "channel_created");
await page.getByRole("button", { name: "Send test event" }).click();
if (javaScript) { // next to the button, which keeps the focus
  await page.locator("#tested[role=status] .state-success").waitFor();
  check(await page.evaluate(() => document.activeElement.innerText.includes("Send test event")), "the focus stays at the button");
} else {
  await page.locator("#ping .state-success").waitFor();
}
check(tests().length === testsBefore + 1, `one request with the chosen event type arrived, got ${tests().length - testsBefore}`);
const request = tests().at(-1);
check(request.headers["x-service-test"] === "true", "the request is marked as a test");
await checkPage(page);

// A list finds a subscription by its name; deliveries can be filtered by a subscription's name.
await visit(page, "/subscriptions");
await page.fill("#filter-search", "streaming");
await waitForLoad(page, () => page.press("#filter-search", "Enter"));
check(decodeURIComponent(page.url()) === `${base}/subscriptions?filter[search]=streaming`, `the URL has this filter only, got ${page.url()}`);
check(await page.locator("main tbody tr").count() === 1, "one subscription matches");
await visit(page, "/subscriptions?sort=name");
await waitForLoad(page, () => page.getByRole("columnheader", { name: "Subscription" }).getByRole("link").click());
check((await page.locator("main tbody tr").first().innerText()).includes("Partner Y"), "the header reverses the order");
await checkPage(page);
await visit(page, "/deliveries");
if (javaScript) {
  await page.locator("#filter-subscription").pressSequentially("partner");
  await until("the suggested names", () => page.locator("#subscription-names option[value='Partner X, streaming']").count());
}
await page.fill("#filter-subscription", "partner x, streaming");
await waitForLoad(page, () => page.press("#filter-subscription", "Enter"));
check(decodeURIComponent(page.url()) === `${base}/deliveries?filter[subscription_id]=${ids[0]}`, `the URL has the ID, got ${page.url()}`);
check((await page.locator(".chips").innerText()).includes("Subscription: Partner X, streaming"), "the chip has the name");
await checkPage(page);

// A bar of the histogram sets the time range of the list: in the chart, or in its table without
// JavaScript.
await until("statistics", async () => {
  await visit(page, "/deliveries?span=1h");
  return page.locator("figure[data-pick]").count();
});
if (javaScript) {
  await page.locator("figure[data-pick] input").focus();
  check(/^.+: Success \d+/.test(await page.locator("figure[data-pick] .readout").innerText()), "the readout shows the values of the last bar");
  await checkPage(page); // it closes the readout while the page is narrow
  await page.locator("figure[data-pick] input").focus();
  await waitForLoad(page, () => page.keyboard.press("Enter"));
} else {
  await page.locator("figure[data-pick] summary").click();
  await waitForLoad(page, () => page.locator("figure[data-pick] tbody a").last().click());
}
check(decodeURIComponent(page.url()).includes("filter[created_at.to]="), `the URL has a time range, got ${page.url()}`);
await page.locator(".chips a").first().waitFor();
await waitForLoad(page, () => page.locator(".chips a").first().click());
check(!page.url().includes("created_at"), `the URL has no time range, got ${page.url()}`);

// Applying another filter keeps the time range.
await visit(page, "/deliveries?span=24h");
await waitForLoad(page, async () => {
  await page.selectOption("#filter-event", "content_updated");
  if (!javaScript) await page.getByRole("button", { name: "Apply" }).last().click();
});
const currentURL = decodeURIComponent(page.url());
check(currentURL.includes("span=24h") && currentURL.includes("filter[event]=content_updated"), `the URL has both filters, got ${currentURL}`);
await done();
