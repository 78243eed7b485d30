// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// From an empty database to a delivered test event, by clicks: the checklist of the
// overview leads through a program with its token, a subscription and a test event, and
// disappears.
import { base, check, done, follow, link, looks, receiver, script, signedIn, until, visit } from "./lib.mjs";

const server = await receiver(() => ({ status: 200, headers: { "Content-Type": "text/plain" }, body: "thank you\n" }));
const { page } = await signedIn();
const steps = page.locator("#overview-setup");
let clicks = 0;
const press = (target) => { clicks++; return target.click(); };

await visit(page, "/");
check((await steps.innerText()).includes("1 of 4 steps done"), "the admin is the first step");
check(await steps.locator("a.primary").count() === 1, "the next step stands out");
for (const fold of await steps.locator("summary").all()) await fold.click();
await looks(page);
const commands = await steps.locator("pre").allInnerTexts();
check(commands.length === 4 && commands.slice(0, 2).every((c) => c.includes("--data ")), "commands name the data directory");
check(commands.slice(2).every((c) => c.includes("--cacert ") && c.includes(`${base}/v2/`) && c.includes("Bearer $TOKEN")), "requests name the certificate, the URL and the token");
check(!commands[2].includes('"ping"') && commands[2].includes("content_published"), "the example subscribes to events of contents");

// A program and its token. The token is shown once, with a button that copies it.
await follow(page, () => press(steps.locator("a.primary")));
check(await page.locator("input[name=scope]:checked").count() === 4, "the scopes of a program are chosen");
await page.fill("#program", "acme");
await page.fill("#user", "backend");
await looks(page);
await follow(page, () => press(page.getByRole("button", { name: "Create token" })));
const token = await page.locator("pre[aria-label=Token]").innerText();
check(/^svc_\w+$/.test(token.trim()), "the token");
check(await page.getByRole("button", { name: "Copy token" }).isVisible() === script, "a button that copies it, where it can");

// A subscription of the new program.
await follow(page, () => press(page.getByRole("link", { name: "Create a subscription" })));
check(await page.inputValue("#for-program") === "acme", "the program is chosen");
await page.fill("#url", `${server.url}hooks`);
await page.check("[data-picker] input[value=content_published]");
await follow(page, () => press(page.getByRole("button", { name: "Create subscription" })));
await until("the first ping", () => server.requests.length === 1);

// The checklist is one step on, and leads to the test event.
await visit(page, "/");
check((await steps.innerText()).includes("3 of 4 steps done"), "one step is left");
await looks(page);
await press(steps.locator("a.primary"));
await page.waitForURL(/\/subscriptions\/[^/]+#test$/);
await page.selectOption("#test-name", "content_published");
await press(page.getByRole("button", { name: "Send test event" }));
const result = page.locator("#ping");
await result.getByText("thank you").waitFor();
check((await result.innerText()).includes("200"), "the response is shown");
const sent = server.requests.at(-1);
check(JSON.parse(sent.body).events[0].name === "content_published" && sent.headers["x-service-test"] === "true", "the test event arrived");

await visit(page, "/");
check(await page.getByText("steps done").count() === 0, "the checklist is gone");
check((await page.locator("#overview-deliveries").innerText()).includes("content_published"), "the delivery is listed");
check(clicks <= 8, `few clicks, got ${clicks}`);
check(!(await (await fetch(link)).text()).includes("/data"), "without a session no page names the data directory");
server.close();
await done();
