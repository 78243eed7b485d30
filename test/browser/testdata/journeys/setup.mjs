// serve
// and without JavaScript
// From the first start to the first admin, out and in again, by keyboard alone:
// Tab, typing and Enter, and at each stop it is seen where the focus is.
import { admin, base, check, done, fresh, link, looks, tabTo, until } from "./lib.mjs";

const { page } = await fresh({}, ["the server responded with a status of 4"]);
const type = async (field, text) => {
  await tabTo(page, field);
  await page.keyboard.press("Control+a");
  await page.keyboard.type(text);
};
const send = () => Promise.all([page.waitForEvent("load"), page.keyboard.press("Enter")]);
const title = () => page.locator("h1").textContent();

// Without the link nobody becomes an admin; with it, the form says what is wrong.
await page.goto(`${base}/deliveries`);
check(await page.getByText("No admin yet").count() === 1, "a page says that there is no admin");
await looks(page);
await page.goto(link);
await looks(page);
await type("#email", admin.email);
await type("#password", "short");
await type("#again", "short");
await send();
const fault = page.locator("#password-fault");
check((await fault.textContent()).includes("at least 12 characters"), "the field says what is wrong with it");
check(await page.locator("#password").getAttribute("aria-invalid") === "true", "and that it is wrong");
check((await page.locator("#password").getAttribute("aria-describedby")).split(" ").includes("password-fault"), "the fault is linked to its field");
check(await page.inputValue("#email") === admin.email, "what was right is still there");
check(await page.inputValue("#password") === "", "a password is not sent back");
await looks(page);
await tabTo(page, "[role=alert] a[href='#password']");
await page.keyboard.press("Enter");
await until("the field has the focus", () => page.evaluate(() => document.activeElement.id === "password"));
await page.keyboard.type(admin.password);
await type("#again", admin.password);
await send();
check(page.url() === `${base}/` && await title() === "Overview", "the first admin is signed in");

// A second admin is not made by the same link.
await page.goto(link);
check(await title() === "Invalid link", "the link is used up");
check((await page.goto(link)).status() === 404, "with status 404");
await looks(page);
await tabTo(page, "a[href='/']:not(.brand)");
await send();
check(await title() === "Overview", "back to the overview");

// Out, by the menu of the account.
await tabTo(page, "button[popovertarget=account]");
await page.keyboard.press("Enter");
await tabTo(page, "form.leave button");
await send();
check(page.url() === `${base}/sign-in`, "signed out");
check((await page.goto(`${base}/deliveries`)).status() === 401, "the pages are closed");
check((await page.goto(link)).status() === 404, "the link is no way in");

// In again, after a mistyped password, to the page that was asked for.
await page.goto(`${base}/deliveries?filter[status]=failed`);
await type("#email", admin.email);
await type("#password", `${admin.password}r`);
await send();
check((await page.locator("[role=alert]").textContent()).includes("Wrong email or password"), "a wrong password is told");
check(await page.inputValue("#email") === admin.email && await page.inputValue("#password") === "", "the address stays, the password goes");
await looks(page);
await type("#password", admin.password);
await send();
check(page.url() === `${base}/deliveries?filter[status]=failed`, `where the visitor wanted to go, got ${page.url()}`);

// Through a page: the link that skips comes first, and leads to the content.
check(await tabTo(page, "a.skip") === 1, "the first stop skips to the content");
await page.keyboard.press("Enter");
await tabTo(page, "main a, main button, main summary, main input");
check(await page.evaluate(() => !document.activeElement.closest("header, .bar")), "the next stop is in the content");
await done();
