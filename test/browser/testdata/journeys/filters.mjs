// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// and in Firefox
// An admin gives a subscription a filter: builds it from the event's fields, sees what it would
// have sent and its errors, changes its JSON, and saves it. Without JavaScript a button tests the
// JSON.
import { api, base, check, done, waitForLoad, checkPage, startReceiver, javaScript, signIn, until, visit } from "./lib.mjs";

const { page } = await signIn({ viewport: { width: 1280, height: 900 } });
const server = await startReceiver(() => 204);
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_updated" }, { name: "content_published" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
const subscription = `/subscriptions/${created.body.data.id}`;
for (const content_id of [1, 2, 3, 4]) {
  const response = await api("POST", "/v2/events", { name: "content_updated", version: "1", content_id });
  check(response.status === 201, `an event is accepted, got status ${response.status}`);
}

await visit(page, `${subscription}/edit`);
await page.locator("summary", { hasText: "Filters" }).click();
const field = page.locator("#filters");
const look = page.locator("[data-filter-look]");
const control = (part) => page.locator(`[data-key="content_updated ${part}"]`);
if (javaScript) {
  check(!await page.getByRole("button", { name: "Test filters" }).isVisible(), "nothing needs to be tested by a button");
  await page.selectOption("[data-key=offer]", "content_updated");
  await page.getByRole("button", { name: "Add filter" }).click();
  await control("0 path").waitFor();
  check(await page.evaluate(() => document.activeElement.dataset.key) === "content_updated 0 path", "the focus is on the first field");
  await control("0 path").selectOption("content_id");
  await control("0 op").selectOption({ label: "is at most" });
  await control("0 value").fill("two");
  await until("what is wrong at the condition", async () => await control("0 value").getAttribute("aria-invalid") === "true");
  const fault = page.locator(`#${await control("0 value").getAttribute("aria-describedby")}`);
  check((await fault.innerText()).startsWith("must be a number"), `the condition says what is allowed, got ${await fault.innerText()}`);
  await checkPage(page);
  await control("0 value").fill("2");
  await until("the count", async () => (await look.innerText()).includes("2 of 4 events"));
  check(await control("0 value").getAttribute("aria-invalid") === null, "nothing is wrong any more");
  check(await page.evaluate(() => document.activeElement.dataset.key) === "content_updated 0 value", "the focus stays in the field");

  // Another condition, by keyboard, and its removal.
  await control("add").press("Enter");
  await control("1 path").selectOption("timestamp");
  await control("1 op").selectOption({ label: "is there" });
  await control("1 value").selectOption("false");
  await until("the count of both", async () => (await look.innerText()).includes("0 of 4 events"));
  await control("group").selectOption("any");
  await until("the count of any", async () => (await look.innerText()).includes("2 of 4 events"));
  await control("1 drop").click();
  check(await page.evaluate(() => document.activeElement.dataset.key) === "content_updated add", "the focus goes to the nearest control");
  await until("the count of one", async () => (await field.inputValue()).match(/path/g).length === 1);

  // The JSON and the conditions represent the same filters. Large numbers stay unchanged.
  await field.fill('{"content_updated": {"all": [{"path": "content_id", "op": "in", "value": [9007199254740993, 3]}]}}');
  await until("the conditions of the JSON", async () => await control("0 value").inputValue() === "9007199254740993, 3");
  await control("0 value").fill("9007199254740993, 3, 4");
  check((await field.inputValue()).includes('"value": [9007199254740993, 3, 4]'), `the number is exact, got ${await field.inputValue()}`);
  await until("its count", async () => (await look.innerText()).includes("2 of 4 events"));
  await field.fill('{"content_updated": {"not": {"path": "content_id", "op": "eq", "value": 3}}}');
  await page.getByText("This filter has groups of conditions.").waitFor();

  // The conditions do not lose what they cannot represent. Strings stay strings.
  await field.fill('{"content_updated": {"all": [{"path": "id", "op": "in", "value": ["a, b", "7"]}]}, "content_published": {"all": []}}');
  await until("no conditions", async () => !await page.locator("[data-filter-rows]").isVisible());
  await field.fill('{"content_updated": {"all": [{"path": "id", "op": "in", "value": ["a, b", "7"]}]}}');
  await until("the texts", async () => await control("0 value").inputValue() === '"a, b", 7');
  await control("0 value").fill('"a, b", 7, c');
  check((await field.inputValue()).includes('"value": ["a, b", "7", "c"]'), `texts are kept, got ${await field.inputValue()}`);
  await field.fill('{"content_updated": {"all": [{"path": "id", "op": "in", "value": ["typed"]}]}}');
  check(await page.locator("[data-filter-rows]").evaluate((rows) => rows.inert), "the conditions cannot change a text that they do not stand for");

  // A type with free-form objects accepts any path, and suggests known ones.
  await page.check("#events input[value=user_notification_created]");
  await page.selectOption("[data-key=offer]", "user_notification_created");
  await page.getByRole("button", { name: "Add filter" }).click();
  const path = page.locator('[data-key="user_notification_created 0 path"]');
  const suggested = await path.evaluate((input) => [...input.list.options].map((option) => option.value));
  check(suggested.includes("details.like_count") && suggested.includes("category"), `suggested fields, got ${suggested}`);
  await path.fill("details.like_count");
  await path.press("Tab");
  await until("the next control", () => page.evaluate(() => document.activeElement.dataset.key === "user_notification_created 0 op"));
  await checkPage(page);
  await page.uncheck("#events input[value=user_notification_created]");
  await field.fill('{"content_updated":');
  await until("a broken text", async () => !await page.locator("[data-filter-rows]").isVisible() && (await look.innerText()).includes("must be JSON"));
  await field.fill('{"content_updated": {"all": [{"path": "content_id", "op": "lte", "value": 2}]}}');
} else {
  check(!await page.locator("[data-filter-rows]").isVisible(), "the conditions need JavaScript");
  await field.fill('{"content_updated": {"all": [{"path": "content", "op": "lte", "value": 2}]}}');
  await waitForLoad(page, () => page.getByRole("button", { name: "Test filters" }).click());
  check((await look.innerText()).includes("content is not a field of content_updated; it has: "), `what is wrong, got ${await look.innerText()}`);
  await field.fill('{"content_updated": {"all": [{"path": "content_id", "op": "lte", "value": 2}]}}');
  await waitForLoad(page, () => page.getByRole("button", { name: "Test filters" }).click());
}
await until("the count of the filter", async () => (await look.innerText()).includes("2 of 4 events of the last 7 days"));
await page.locator("[data-filter-look] summary").click();
check(await look.locator("tbody tr").count() === 4, "examples of both");
await checkPage(page);
await page.setViewportSize({ width: 360, height: 800 });
await checkPage(page);
await waitForLoad(page, () => page.getByRole("button", { name: "Save" }).click());
check(page.url() === base + subscription, `it was saved, got ${page.url()}`);
check((await page.locator("main").innerText()).includes('"op": "lte"'), "the subscription page has the filter");

server.close();
await done();
