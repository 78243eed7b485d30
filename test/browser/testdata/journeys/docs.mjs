// serve
// and without JavaScript
// The reference: every page is reachable from the first, readable on a phone and in dark mode, and
// available as Markdown, and its examples can be copied as shown.
import { base, check, checkPage, copied, done, javaScript, newPage, visit } from "./lib.mjs";

const { page } = await newPage();
await visit(page, "/docs");
const paths = await page.$$eval("nav a", (links) => [...new Set(links.map((a) => new URL(a.href)).filter((to) => to.origin === location.origin && to.pathname.startsWith("/docs")).map((to) => to.pathname))]);
check(paths.length >= 10, `the contents link the pages, got ${paths}`);
let examples = 0;
for (const path of paths) {
  await visit(page, path);
  check(await page.locator("h1").count() === 1, `${path} has one h1`);
  await checkPage(page);
  const text = await (await fetch(`${base}${path}.md`)).text();
  check(text.startsWith("# "), `${path}.md is Markdown, got ${text.slice(0, 80)}`);
  const shown = await page.locator("pre").count();
  const buttons = page.locator("button.copy");
  check(await buttons.count() === (javaScript ? shown : 0), `${path} has a button for each of ${shown} examples, got ${await buttons.count()}`);
  examples += shown;
  const example = page.locator(".code:visible").first();
  if (!javaScript || await example.count() === 0) continue;
  const want = await example.locator("pre").innerText();
  await example.getByRole("button", { name: "Copy" }).click();
  await copied(page, (got) => got.trim() === want.trim());
}
check(examples > 20, `the pages have examples, got ${examples}`);
await done();
