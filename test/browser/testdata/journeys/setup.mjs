// serve
// and without JavaScript
// Create the first admin, sign out and sign in with the keyboard alone. The focus is visible
// at each stop.
import { admin, base, check, done, newPage, startupLink, checkPage, tabTo, until } from "./lib.mjs";

const { page } = await newPage({}, ["the server responded with a status of 4"]);
const typeInto = async (field, text) => {
  await tabTo(page, field);
  await page.keyboard.press("Control+a");
  await page.keyboard.type(text);
};
const submit = () => Promise.all([page.waitForEvent("load"), page.keyboard.press("Enter")]);
const title = () => page.locator("h1").textContent();

// Creating the first admin requires the link. The form shows its errors.
await page.goto(`${base}/deliveries`);
check(await page.getByText("No admin yet").count() === 1, "the page says that there is no admin");
await checkPage(page);
await page.goto(startupLink);
await checkPage(page);
await typeInto("#email", admin.email);
await typeInto("#password", "short");
await typeInto("#again", "short");
await submit();
const passwordError = page.locator("#password-fault");
check((await passwordError.textContent()).includes("at least 12 characters"), "the field says what is wrong");
check(await page.locator("#password").getAttribute("aria-invalid") === "true", "the field is marked invalid");
check((await page.locator("#password").getAttribute("aria-describedby")).split(" ").includes("password-fault"), "the field refers to its error");
check(await page.inputValue("#email") === admin.email, "the form keeps the valid email");
check(await page.inputValue("#password") === "", "the form does not keep the password");
await checkPage(page);
await tabTo(page, "[role=alert] a[href='#password']");
await page.keyboard.press("Enter");
await until("the focus on the field", () => page.evaluate(() => document.activeElement.id === "password"));
await page.keyboard.type(admin.password);
await typeInto("#again", admin.password);
await submit();
check(page.url() === `${base}/` && await title() === "Overview", "the first admin is signed in");

// The link works once.
await page.goto(startupLink);
check(await title() === "Invalid link", "the link is used up");
check((await page.goto(startupLink)).status() === 404, "a used link responds with 404");
await checkPage(page);
await tabTo(page, "a[href='/sign-in']");
await submit();
check(await title() === "Overview", "an admin with a session gets to the overview");

// Sign out in the account menu.
await tabTo(page, "button[popovertarget=account]");
await page.keyboard.press("Enter");
await tabTo(page, "form.leave button");
await submit();
check(page.url() === `${base}/sign-in`, "the sign-in page after signing out");
check((await page.goto(`${base}/deliveries`)).status() === 401, "pages need a session");
check((await page.goto(startupLink)).status() === 404, "the link does not sign in");

// Sign in after a mistyped password. The requested page follows.
await page.goto(`${base}/deliveries?filter[status]=failed`);
await typeInto("#email", admin.email);
await typeInto("#password", `${admin.password}r`);
await submit();
check((await page.locator(".alarm[role=alert]").textContent()).includes("Wrong email or password"), "the page rejects a wrong password");
check(await page.inputValue("#email") === admin.email && await page.inputValue("#password") === "", "the form keeps the email, not the password");
await checkPage(page);
await typeInto("#password", admin.password);
await submit();
check(page.url() === `${base}/deliveries?filter[status]=failed`, `the requested page, got ${page.url()}`);

// The skip link comes first, and leads to the content.
check(await tabTo(page, "a.skip") === 1, "the skip link has the focus first");
await page.keyboard.press("Enter");
await tabTo(page, "main a, main button, main summary, main input");
check(await page.evaluate(() => !document.activeElement.closest("header, .bar")), "the next stop is within the content");
await done();
