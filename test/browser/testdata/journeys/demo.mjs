// serve --demo
// The demo: every page of the navigation and the first record of each list have content,
// with and without JavaScript. The menu, the theme and the keyboard shortcuts work.
import { base, check, done, newPage, checkPage, signIn, visit } from "./lib.mjs";

const { page, context } = await signIn();
await visit(page, "/");
const hrefs = (selector) => page.$$eval(selector, (all) => all.map((a) => a.getAttribute("href")));
const sections = await hrefs("#pages a");
check(sections.length > 0, "the navigation has links");
const paths = [...sections, "/account", "/preferences", "/find", "/find?q=0"];
for (const section of sections) {
  await visit(page, section);
  check(await page.locator("h1").count() === 1, `${section} has one h1`);
  const firstRecord = (await hrefs("main [data-row] a")).find((href) => href.startsWith("/"));
  if (firstRecord && !paths.includes(firstRecord)) paths.push(firstRecord);
}
await visit(page, "/");
await checkPage(page);
await visit(page, paths.find((path) => path.startsWith("/subscriptions/")));
await checkPage(page);

// The skip link, the dialog of keyboard shortcuts and the menu of a narrow page.
await visit(page, "/");
await page.keyboard.press("Tab");
check(await page.evaluate(() => document.activeElement.className) === "skip", "the skip link has the focus first");
await page.keyboard.press("?");
check(await page.locator("dialog#keys").isVisible(), "? opens the keyboard shortcuts");
await checkPage(page);
await page.keyboard.press("Escape");
check(!await page.locator("dialog#keys").isVisible(), "Escape closes the keyboard shortcuts");
await page.setViewportSize({ width: 320, height: 640 });
await page.click("button.menu");
check(await page.locator("#pages").isVisible(), "the menu opens on a narrow page");
await page.keyboard.press("Escape");
await page.setViewportSize({ width: 1280, height: 800 });

// The server renders the chosen theme, so the page does not flash.
await page.click("button[popovertarget=account]");
await page.click("#account button[value=dark]");
await page.waitForURL(`${base}/`);
check(await page.locator("html[data-theme=dark]").count() === 1, "the page has the chosen theme");
check(await page.evaluate(() => getComputedStyle(document.body).colorScheme) === "dark", "the page is dark although the system is light");

// Without JavaScript.
const withoutJavaScript = await newPage({ javaScriptEnabled: false, storageState: await context.storageState() });
for (const path of paths) {
  await visit(withoutJavaScript.page, path);
  check((await withoutJavaScript.page.locator("main").innerText()).length > 40, `${path} has content without JavaScript`);
}
await withoutJavaScript.page.setViewportSize({ width: 320, height: 640 });
await withoutJavaScript.page.click("button.menu");
check(await withoutJavaScript.page.locator("#pages").isVisible(), "the menu opens without JavaScript");
await done();
