// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// A span of time is picked from the histogram above the deliveries: by drawing over it,
// by clicking a bar, with the keyboard alone, and by the links of its table.
import { api, check, done, follow, looks, receiver, script, signedIn, until, visit } from "./lib.mjs";

const { page } = await signedIn();
const server = await receiver(() => 204);
const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(answer.status === 201, "an event is accepted");
const figure = page.locator("figure[data-pick]");
const load = async () => {
  await visit(page, "/deliveries?span=24h&filter[status]=success");
  return figure.count();
};
await until("the histogram", load);

// The bars' times, as the links of the table have them.
const bars = () => figure.locator("tbody th a").evaluateAll((all) => all.map((a) => {
  const query = new URL(a.href).searchParams;
  return { from: query.get("filter[created_at.from]"), to: query.get("filter[created_at.to]") };
}));
const picked = (from, to, how) => {
  const query = new URL(page.url()).searchParams;
  check(query.get("filter[created_at.from]") === from.from && query.get("filter[created_at.to]") === to.to, `${how} picks ${from.from} to ${to.to}, got ${page.url()}`);
  check(query.get("filter[status]") === "success" && !query.has("span"), `the other filters stay: ${page.url()}`);
};
let all = await bars();
check(all.length >= 20 && all.every((b) => b.from && b.to), `24 hours are some bars, got ${all.length}`);

if (!script) {
  await figure.locator("summary").click();
  await follow(page, () => figure.locator("tbody th a").nth(7).click());
  picked(all[7], all[7], "a link of the table");
  await done();
  process.exit();
}

// By the pointer.
const over = figure.locator(".over");
const readout = figure.locator(".readout");
const at = async (i) => {
  const box = await over.boundingBox();
  return [box.x + box.width * (i + 0.5) / all.length, box.y + box.height / 2];
};
await page.mouse.move(...await at(2));
await until("the values under the pointer", async () => (await readout.textContent()).includes("Success 0"));
await page.mouse.move(...await at(10));
await page.mouse.down();
await page.mouse.move(...await at(18), { steps: 5 });
await until("the span that is drawn", async () => (await readout.textContent()).includes(" to "));
await looks(page);
const mark = await figure.locator(".over > .mark").boundingBox();
const wide = (await over.boundingBox()).width;
check(Math.abs(mark.width - wide * 9 / all.length) < 3, `9 bars are marked, got ${mark.width} of ${wide} pixels`);
await follow(page, () => page.mouse.up());
picked(all[10], all[18], "drawing");
check(await page.locator(".chips a", { hasText: "Created from" }).count() === 1, "the span is a filter that can be removed");

await load();
all = await bars();
await follow(page, async () => page.mouse.click(...await at(5)));
picked(all[5], all[5], "a click");

// From right to left.
await load();
all = await bars();
await page.mouse.move(...await at(9));
await page.mouse.down();
await page.mouse.move(...await at(4), { steps: 5 });
await follow(page, () => page.mouse.up());
picked(all[4], all[9], "drawing to the left");

// By keyboard: Shift extends, an arrow alone begins again, Enter picks.
await load();
all = await bars();
const n = all.length;
await figure.locator("input[type=range]").focus();
for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowLeft");
for (let i = 0; i < 4; i++) await page.keyboard.press("Shift+ArrowLeft");
check((await readout.textContent()).includes(" to "), `a span is read out: ${await readout.textContent()}`);
await page.keyboard.press("ArrowLeft");
check(!(await readout.textContent()).includes(" to "), "an arrow alone begins again");
for (let i = 0; i < 2; i++) await page.keyboard.press("Shift+ArrowRight");
await follow(page, () => page.keyboard.press("Enter"));
picked(all[n - 9], all[n - 7], "the keyboard");

server.close();
await done();
