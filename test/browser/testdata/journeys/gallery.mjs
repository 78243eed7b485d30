// serve
// The parts that pages are made of: how they look, and what their script does.
import { check, done, gallery, looks, screenshot, signedIn, until } from "./lib.mjs";

const { page, context } = await signedIn();
await context.grantPermissions(["clipboard-read", "clipboard-write"]);
const asked = [];
await page.route("**/deliveries/stream", (route) => {
  asked.push(route.request().headers());
  const body = asked.length === 1 ? 'id: 5\ndata: <tr role="row" id="d-live" data-row><td role="cell"><a href="/">live</a></td></tr>\n\n' : ":\n\n";
  return route.fulfill({ status: 200, contentType: "text/event-stream", body });
});
await gallery(page);
await page.waitForSelector("#d-live");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-live", "a row of the stream comes first");
await until("the stream that was cut to be asked for again", () => asked.length >= 2);
check(asked[1]["last-event-id"] === "5", "it goes on from the last id");
await page.evaluate(() => document.getElementById("d-live").remove());
await looks(page, ["landmark-unique"]); // it has what pages have once, twice
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 800 });
    await screenshot(page, `gallery-${colorScheme}-${width}`, true);
  }
}
await page.setViewportSize({ width: 1280, height: 800 });

// Copying.
const id = await page.locator("main .record code").textContent();
await page.locator("main .record button.copy").click();
check(await page.evaluate(() => navigator.clipboard.readText()) === id, "the id in the clipboard");
check(await page.locator("#copied").textContent() === "Copied", "it is said");

// A range of rows.
const ticks = page.locator("input[data-tick]");
await ticks.nth(0).click();
await ticks.nth(1).click({ modifiers: ["Shift"] });
check(await ticks.nth(1).isChecked(), "Shift ticks up to the row");

// The keyboard goes through rows, but not while something is typed.
await page.evaluate(() => document.activeElement.blur());
await page.keyboard.press("j");
check(await page.evaluate(() => document.activeElement.closest("[data-row]")?.id) === "d-1", "j goes to the first row");
await page.keyboard.press("j");
check(await page.evaluate(() => document.activeElement.closest("[data-row]")?.id) === "d-2", "j goes to the next row");
await page.fill("#find", "");
await page.type("#find", "jk?g");
check(await page.inputValue("#find") === "jk?g", "what is typed is typed");
check(!await page.locator("dialog#keys").isVisible(), "and nothing else");

// Times go on.
const before = await page.locator("time[data-ago]").first().textContent();
await page.evaluate(() => { document.querySelector("time[data-ago]").dateTime = new Date(Date.now() - 7_200_000).toISOString(); });
await page.waitForFunction((old) => document.querySelector("time[data-ago]").textContent !== old, before);
check(await page.locator("time[data-ago]").first().textContent() === "2 h", "the time that it is now");

// Live rows: a known one is replaced, a new one comes first, and while it is
// paused it is counted.
const message = (html) => page.evaluate(async (data) => {
  const event = new CustomEvent("htmx:sse:before:message", { bubbles: true, cancelable: true, detail: { message: { data, event: "", id: "1" }, cancelled: false } });
  document.querySelector("[data-live-source]").dispatchEvent(event);
  await new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)));
}, html);
const row = (name, words) => `<tr role="row" id="${name}" data-row><td role="cell"><a href="/">${words}</a></td></tr>`;
await ticks.nth(0).click({ modifiers: ["Shift"] }); // rows that are selected stay where they are
await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
await message(row("d-1", "changed"));
check(await page.locator("#d-1").textContent() === "changed", "the row that was there is changed");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-1", "and stays where it was");
await message(row("d-0", "first"));
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-0", "a new row comes first");
const timed = (name, at, late = "") => `<tr role="row" id="${name}" data-row ${late}><td role="cell" class="w-age"><a href="/">timed</a><time datetime="${at}"></time></td></tr>`;
await message(timed("d-new", "2026-03-03T00:00:02.000Z"));
await message(timed("d-late", "2026-03-03T00:00:01.000Z", "data-late"));
check(await page.locator("[data-live-list] tr").nth(1).getAttribute("id") === "d-late", "a row that matches only later comes by its time");
await page.click("[data-live-toggle]");
await message(row("d-00", "held"));
check(await page.locator("#d-00").count() === 0, "paused: nothing comes in");
check(await page.locator("[data-live-show]").textContent() === "1 new · Show", "it is counted");
await page.click("[data-live-show]");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-00", "and shown when asked for");
await done();
