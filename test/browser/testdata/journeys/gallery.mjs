// serve
// The components of the admin UI: their accessibility, layout and script.
import { check, done, openGallery, checkPage, screenshot, signIn, until } from "./lib.mjs";

const { page, context } = await signIn();
await context.grantPermissions(["clipboard-read", "clipboard-write"]);
const streamRequests = [];
await page.route("**/deliveries/stream", (route) => {
  streamRequests.push(route.request().headers());
  const body = streamRequests.length === 1 ? 'id: 5\ndata: <tr role="row" id="d-live" data-row><td role="cell"><a href="/">live</a></td></tr>\n\n' : ":\n\n";
  return route.fulfill({ status: 200, contentType: "text/event-stream", body });
});
await openGallery(page);
await page.waitForSelector("#d-live");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-live", "a row from the stream comes first");
await until("a new request after the stream ended", () => streamRequests.length >= 2);
check(streamRequests[1]["last-event-id"] === "5", "the new request resumes after the last id");
await page.evaluate(() => document.getElementById("d-live").remove());
await checkPage(page, ["landmark-unique"]); // the gallery repeats landmarks that a page has once
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 800 });
    await screenshot(page, `gallery-${colorScheme}-${width}`, true);
  }
}
await page.setViewportSize({ width: 1280, height: 800 });

// Copy an ID.
const id = await page.locator("main .record code").textContent();
await page.locator("main .record button.copy").click();
check(await page.evaluate(() => navigator.clipboard.readText()) === id, "the clipboard has the id");
check(await page.locator("#copied").textContent() === "Copied", "a live region announces the copy");

// Select a range of rows.
const checkboxes = page.locator("input[data-tick]");
await checkboxes.nth(0).click();
await checkboxes.nth(1).click({ modifiers: ["Shift"] });
check(await checkboxes.nth(1).isChecked(), "Shift selects up to the row");

// Keyboard shortcuts move through rows, but do nothing while the visitor types.
await page.evaluate(() => document.activeElement.blur());
await page.keyboard.press("j");
check(await page.evaluate(() => document.activeElement.closest("[data-row]")?.id) === "d-1", "j goes to the first row");
await page.keyboard.press("j");
check(await page.evaluate(() => document.activeElement.closest("[data-row]")?.id) === "d-2", "j goes to the next row");
await page.fill("#find", "");
await page.type("#find", "jk?g");
check(await page.inputValue("#find") === "jk?g", "the field has the typed text");
check(!await page.locator("dialog#keys").isVisible(), "typing ? does not open the keyboard shortcuts");

// Relative times are updated.
const ageBefore = await page.locator("time[data-ago]").first().textContent();
await page.evaluate(() => { document.querySelector("time[data-ago]").dateTime = new Date(Date.now() - 7_200_000).toISOString(); });
await page.waitForFunction((previous) => document.querySelector("time[data-ago]").textContent !== previous, ageBefore);
check(await page.locator("time[data-ago]").first().textContent() === "2 h", "the relative time is updated");

// Live rows: a known row is replaced and a new row comes first. While the list is paused,
// new rows are counted.
const sendLiveRow = (html) => page.evaluate(async (data) => {
  const event = new CustomEvent("htmx:sse:before:message", { bubbles: true, cancelable: true, detail: { message: { data, event: "", id: "1" }, cancelled: false } });
  document.querySelector("[data-live-source]").dispatchEvent(event);
  await new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)));
}, html);
const rowHTML = (name, text) => `<tr role="row" id="${name}" data-row><td role="cell"><a href="/">${text}</a></td></tr>`;
await checkboxes.nth(0).click({ modifiers: ["Shift"] }); // a selection would keep the list from changing
await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
await sendLiveRow(rowHTML("d-1", "changed"));
check(await page.locator("#d-1").textContent() === "changed", "a known row is replaced");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-1", "a replaced row keeps its position");
await sendLiveRow(rowHTML("d-0", "first"));
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-0", "a new row comes first");
const timedRowHTML = (name, at, attribute = "") => `<tr role="row" id="${name}" data-row ${attribute}><td role="cell" class="w-age"><a href="/">timed</a><time datetime="${at}"></time></td></tr>`;
await sendLiveRow(timedRowHTML("d-new", "2026-03-03T00:00:02.000Z"));
await sendLiveRow(timedRowHTML("d-late", "2026-03-03T00:00:01.000Z", "data-late"));
check(await page.locator("[data-live-list] tr").nth(1).getAttribute("id") === "d-late", "a row that matches late is sorted by its time");
await page.click("[data-live-toggle]");
await sendLiveRow(rowHTML("d-00", "paused"));
check(await page.locator("#d-00").count() === 0, "no row appears while the list is paused");
check(await page.locator("[data-live-show]").textContent() === "1 new · Show", "the new row is counted");
await page.click("[data-live-show]");
check(await page.locator("[data-live-list] tr").first().getAttribute("id") === "d-00", "Show inserts the new row");
await done();
