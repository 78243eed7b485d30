// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// From an empty database to a delivered test event by clicks alone. The overview's checklist leads
// through a token for a program, a subscription and a test event, and then disappears.
import { base, check, done, waitForLoad, startupLink, checkPage, startReceiver, javaScript, signIn, until, visit } from "./lib.mjs";

const server = await startReceiver(() => ({ status: 200, headers: { "Content-Type": "text/plain" }, body: "thank you\n" }));
const start = Date.now();
const { page } = await signIn();
const checklist = page.locator("#overview-setup");
let clicks = 0;
const click = (target) => { clicks++; return target.click(); };

await visit(page, "/");
check((await checklist.innerText()).includes("1 of 4 steps done"), "the first step, an admin, is done");
check(await checklist.locator("a.primary").count() === 1, "only the next step has a primary button");
for (const summary of await checklist.locator("summary").all()) await summary.click();
await checkPage(page);
const commands = await checklist.locator("pre").allInnerTexts();
check(commands.length === 4 && commands.slice(0, 2).every((c) => c.includes("--data ")), "the commands name the data directory");
check(commands.slice(2).every((c) => c.includes("--cacert ") && c.includes(`${base}/v2/`) && c.includes("Bearer $TOKEN")), "the requests name the certificate, the URL and the token");
check(!commands[2].includes('"ping"') && commands[2].includes("content_published"), "the example subscribes to content_published");

// Create a program by creating its first token. The token is shown once, with a button that copies
// it.
await waitForLoad(page, () => click(checklist.locator("a.primary")));
check(await page.locator("input[name=scope]:checked").count() === 4, "the scopes of a program are preselected");
await page.fill("#program", "acme");
await page.fill("#user", "backend");
await checkPage(page);
await waitForLoad(page, () => click(page.getByRole("button", { name: "Create token" })));
const token = await page.locator("pre[aria-label=Token]").innerText();
check(/^svc_\w+$/.test(token.trim()), "the page shows the token");
check(await page.getByRole("button", { name: "Copy token" }).isVisible() === javaScript, "a button copies the token, with JavaScript only");

// Create a subscription of the new program.
await waitForLoad(page, () => click(page.getByRole("link", { name: "Create a subscription" })));
check(await page.inputValue("#for-program") === "acme", "the program is preselected");
await page.fill("#url", `${server.url}hooks`);
await page.check("[data-picker] input[value=content_published]");
await waitForLoad(page, () => click(page.getByRole("button", { name: "Create subscription" })));
await until("the first ping", () => server.requests.length === 1);

// The next step of the checklist leads to the test event.
await visit(page, "/");
check((await checklist.innerText()).includes("3 of 4 steps done"), "one step remains");
await checkPage(page);
await click(checklist.locator("a.primary"));
await page.waitForURL(/\/subscriptions\/[^/]+#test$/);
await page.selectOption("#test-name", "content_published");
await click(page.getByRole("button", { name: "Send test event" }));
const result = page.locator(javaScript ? "#tested" : "#ping"); // next to the button, or on a separate page
await result.getByText("200").waitFor();
check(javaScript || (await result.innerText()).includes("thank you"), "the page shows the response");
const testRequest = server.requests.at(-1);
check(JSON.parse(testRequest.body).events[0].name === "content_published" && testRequest.headers["x-service-test"] === "true", "the test event arrived");

await visit(page, "/");
check(await page.getByText("steps done").count() === 0, "the checklist is gone");
await visit(page, "/deliveries");
check((await page.locator("main").innerText()).includes("content_published"), "the delivery is listed");
check(clicks <= 8, `at most 8 clicks, got ${clicks}`);
console.log(`from an empty database to a delivered test event: ${clicks} clicks, ${((Date.now() - start) / 1000).toFixed(1)} s, with the checks of each page`);
check(!(await (await fetch(startupLink)).text()).includes("/data"), "a page without a session does not name the data directory");
server.close();
await done();
