// serve --demo
// The demo: all pages of the navigation and the first record of each list have
// something to show, with charts that have something to draw, and without
// JavaScript too; what is pressed on every page.
import { base, check, done, fresh, looks, signedIn, visit } from "./lib.mjs";

const { page, context } = await signedIn();
await visit(page, "/");
const hrefs = (selector) => page.$$eval(selector, (all) => all.map((a) => a.getAttribute("href")));
const sections = await hrefs("#pages a");
check(sections.length > 0, "a navigation with pages");
const paths = [...sections, "/account", "/preferences", "/find", "/find?q=0"];
for (const section of sections) {
  await visit(page, section);
  check(await page.locator("h1").count() === 1, `${section}: one h1`);
  const first = (await hrefs("main [data-row] a")).find((href) => href.startsWith("/"));
  if (first && !paths.includes(first)) paths.push(first);
}
await visit(page, "/");
await looks(page);
await visit(page, paths.find((path) => path.startsWith("/subscriptions/")));
await looks(page);

// What is pressed is where it is seen: sheets and menus, by keyboard alone.
await visit(page, "/");
await page.keyboard.press("Tab");
check(await page.evaluate(() => document.activeElement.className) === "skip", "the first stop is the link that skips to the content");
await page.keyboard.press("?");
check(await page.locator("dialog#keys").isVisible(), "? opens the sheet of the keys");
await looks(page);
await page.keyboard.press("Escape");
check(!await page.locator("dialog#keys").isVisible(), "Escape closes the sheet");
await page.setViewportSize({ width: 320, height: 640 });
await page.click("button.menu");
check(await page.locator("#pages").isVisible(), "the menu opens where the screen is narrow");
await page.keyboard.press("Escape");
await page.setViewportSize({ width: 1280, height: 800 });

// A theme that was chosen is there before anything is drawn.
await page.click("button[popovertarget=account]");
await page.click("#account button[value=dark]");
await page.waitForURL(`${base}/`);
check(await page.locator("html[data-theme=dark]").count() === 1, "the theme that was chosen");
check(await page.evaluate(() => getComputedStyle(document.body).colorScheme) === "dark", "dark, though the system is light");

// Without JavaScript.
const plain = await fresh({ javaScriptEnabled: false, storageState: await context.storageState() });
for (const path of paths) {
  await visit(plain.page, path);
  check((await plain.page.locator("main").innerText()).length > 40, `${path}: something to read without JavaScript`);
}
await plain.page.setViewportSize({ width: 320, height: 640 });
await plain.page.click("button.menu");
check(await plain.page.locator("#pages").isVisible(), "the menu opens without JavaScript");
await done();
