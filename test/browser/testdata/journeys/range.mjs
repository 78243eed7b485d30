// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// An admin picks a time range in the histogram of deliveries: by dragging, by clicking a bar, with
// the keyboard, and by a link in its table.
import { api, check, done, waitForLoad, checkPage, startReceiver, javaScript, signIn, until, visit } from "./lib.mjs";

const { page } = await signIn();
const server = await startReceiver(() => 204);
const created = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
const response = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(response.status === 201, `an event is accepted, got status ${response.status}`);
const figure = page.locator("figure[data-pick]");
const loadHistogram = async () => {
  await visit(page, "/deliveries?span=24h&filter[status]=success");
  return figure.count();
};
await until("the histogram", loadHistogram);

// The time range of each bar, from the links of the table.
const readBars = () => figure.locator("tbody th a").evaluateAll((all) => all.map((a) => {
  const query = new URL(a.href).searchParams;
  return { from: query.get("filter[created_at.from]"), to: query.get("filter[created_at.to]") };
}));
const checkPicked = (from, to, method) => {
  const query = new URL(page.url()).searchParams;
  check(query.get("filter[created_at.from]") === from.from && query.get("filter[created_at.to]") === to.to, `${method} picks ${from.from} to ${to.to}, got ${page.url()}`);
  check(query.get("filter[status]") === "success" && !query.has("span"), `the status filter stays, got ${page.url()}`);
};
let bars = await readBars();
check(bars.length >= 20 && bars.every((b) => b.from && b.to), `at least 20 bars for 24 hours, got ${bars.length}`);

if (!javaScript) {
  await figure.locator("summary").click();
  await waitForLoad(page, () => figure.locator("tbody th a").nth(7).click());
  checkPicked(bars[7], bars[7], "a link of the table");
  await done();
  process.exit();
}

// By pointer.
const overlay = figure.locator(".over");
const readout = figure.locator(".readout");
const barCenter = async (i) => {
  const box = await overlay.boundingBox();
  return [box.x + box.width * (i + 0.5) / bars.length, box.y + box.height / 2];
};
await page.mouse.move(...await barCenter(2));
await until("the values under the pointer", async () => (await readout.textContent()).includes("Success 0"));
await page.mouse.move(...await barCenter(10));
await page.mouse.down();
await page.mouse.move(...await barCenter(18), { steps: 5 });
await until("the time range of the drag", async () => (await readout.textContent()).includes(" to "));
await checkPage(page);
const mark = await figure.locator(".over > .mark").boundingBox();
const overlayWidth = (await overlay.boundingBox()).width;
check(Math.abs(mark.width - overlayWidth * 9 / bars.length) < 3, `a mark of 9 bars, got ${mark.width} of ${overlayWidth} pixels`);
await waitForLoad(page, () => page.mouse.up());
checkPicked(bars[10], bars[18], "dragging");
check(await page.locator(".chips a", { hasText: "Created from" }).count() === 1, "the time range is a removable filter");

await loadHistogram();
bars = await readBars();
await waitForLoad(page, async () => page.mouse.click(...await barCenter(5)));
checkPicked(bars[5], bars[5], "a click");

// From right to left.
await loadHistogram();
bars = await readBars();
await page.mouse.move(...await barCenter(9));
await page.mouse.down();
await page.mouse.move(...await barCenter(4), { steps: 5 });
await waitForLoad(page, () => page.mouse.up());
checkPicked(bars[4], bars[9], "dragging to the left");

// By keyboard: Shift extends the time range, an arrow alone starts over, Enter picks it.
await loadHistogram();
bars = await readBars();
const n = bars.length;
await figure.locator("input[type=range]").focus();
for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowLeft");
for (let i = 0; i < 4; i++) await page.keyboard.press("Shift+ArrowLeft");
check((await readout.textContent()).includes(" to "), `the readout has a time range, got ${await readout.textContent()}`);
await page.keyboard.press("ArrowLeft");
check(!(await readout.textContent()).includes(" to "), "an arrow alone starts over");
for (let i = 0; i < 2; i++) await page.keyboard.press("Shift+ArrowRight");
await waitForLoad(page, () => page.keyboard.press("Enter"));
checkPicked(bars[n - 9], bars[n - 7], "the keyboard");

server.close();
await done();
