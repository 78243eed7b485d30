// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// An owner creates a program with a limit, and a token and a subscription in it, sees its health in
// numbers, changes its limits, revokes the token and erases the program after typing its ID.
import { api, base, check, checkPage, done, signIn, startReceiver, until, visit, waitForLoad } from "./lib.mjs";

const server = await startReceiver(() => ({ status: 200, headers: { "Content-Type": "text/plain" }, body: "ok\n" }));
const { page } = await signIn({}, ["the server responded with a status of 4"]);
const press = (name) => waitForLoad(page, () => page.getByRole("button", { name, exact: true }).first().click());
const open = (name) => waitForLoad(page, () => page.locator("main").getByRole("link", { name, exact: true }).first().click());
const main = page.locator("main");

// The list is empty, and leads to the form.
await visit(page, "/programs");
await checkPage(page);
await open("New program");
await checkPage(page);
await page.fill("#id", "contoso one");
await page.fill("#rate-limit", "many");
await press("Create program");
check(await page.locator(".wrong").count() === 2, "the id and the limit are wrong");
await checkPage(page);
await page.fill("#id", "contoso");
await page.fill("#name", "Contoso, The Netherlands and Luxembourg B.V.");
await page.fill("#rate-limit", "600");
await page.fill("#max-in-flight", "4");
await press("Create program");
check(new URL(page.url()).pathname === "/programs/contoso", `the program page, not ${page.url()}`);
check((await main.innerText()).includes("Program created."), "it says so");
await checkPage(page);

// A token of the program works.
await open("New token");
check(await page.inputValue("#program") === "contoso", "the program is chosen");
await page.fill("#user", "backend");
await press("Create token");
const token = (await page.locator("pre[aria-label=Token]").innerText()).trim();
const send = (method, path, body) => fetch(base + path, { method, headers: { Authorization: `Bearer ${token}`, ...(body ? { "Content-Type": "application/json" } : {}) }, body: body && JSON.stringify(body) });

// A subscription, an event, and the numbers that follow.
await waitForLoad(page, () => page.getByRole("link", { name: "Create a subscription" }).click());
await page.fill("#url", `${server.url}in`);
await page.check("[data-picker] input[value=content_published]");
await press("Create subscription");
const example = (await (await send("GET", "/v2/event_types/content_published")).json()).data.example;
delete example.id; // the form gives it another
check((await send("POST", "/v2/events", example)).status === 201, "the token publishes");
await until("the delivery", () => server.requests.some((r) => r.body.includes("content_published")));
await visit(page, "/programs/contoso");
const numbers = await page.locator("#program-numbers").innerText();
check(/Subscriptions\s+1\s+all active/i.test(numbers) && /Events accepted\s+1\s/i.test(numbers) && /Valid tokens\s+1/i.test(numbers), `the numbers of the program: ${numbers}`);
check((await page.locator("#program-tokens").innerText()).includes("backend"), "its token");
check((await page.locator("#export pre").textContent()).includes("program export contoso "), "the command that exports it");
await checkPage(page);

// Change the limits in the form.
await open("Edit");
check(await page.inputValue("#rate-limit") === "600" && await page.inputValue("#max-subscriptions") === "", "the form has the limits");
await page.fill("#rate-limit", "");
await page.fill("#max-subscriptions", "1");
await checkPage(page);
await press("Save");
check((await send("POST", "/v2/webhooks/subscriptions", { url: `${server.url}second`, events: [{ name: "content_published" }] })).status >= 400, "the limit of subscriptions applies at once");

// Search by a part of the name.
await api("GET", "/v2/token"); // its token creates the program acme
await visit(page, "/programs");
check(await page.locator("tr[data-row]").count() >= 2, "both programs are listed");
await checkPage(page);
await visit(page, "/programs?filter[program_name]=luxem");
check(await page.locator("tr[data-row]").count() === 1 && (await main.innerText()).includes("Contoso, The Netherlands"), "found by a part of the name");
check((await page.locator("tr[data-row]").innerText()).includes("1 subscriptions, 4 in flight"), "the limits are in the list");

// A narrow screen shows the name as well.
const size = page.viewportSize();
await page.setViewportSize({ width: 360, height: 800 });
for (const to of ["/programs?filter[program_name]=luxem", "/subscriptions"]) {
  await visit(page, to);
  const box = await page.locator("tr[data-row] a.plain").first().boundingBox();
  check(box.width > 60, `${to}: the name is ${box.width} px wide`);
}
await page.setViewportSize(size);

// The token is revoked from the program page.
await visit(page, "/programs/contoso");
await waitForLoad(page, () => page.locator("#program-tokens tr[data-row] a").first().click());
await open("Revoke");
await press("Revoke token");
check((await send("GET", "/v2/token")).status === 401, "the token is invalid");
await open("contoso");
check((await page.locator("#program-tokens").innerText()).includes("No valid tokens."), "no token is left");
await checkPage(page);

// The program is erased once its ID was typed.
await open("Erase");
await checkPage(page);
await page.fill("#confirm", "Contoso");
await press("Erase program");
check((await main.innerText()).includes("Nothing was erased."), "another text erases nothing");
await checkPage(page);
await page.fill("#confirm", "contoso");
await press("Erase program");
check((await main.innerText()).includes("Erasing program contoso"), "it says so");
await checkPage(page);
await until("the erasure", async () => (await page.request.get(`${base}/programs/contoso`)).status() === 404);
await visit(page, "/programs");
check(await page.locator("tr[data-row]").count() === 1 && !(await page.locator("table").innerText()).includes("contoso"), "only the other program is left");
await visit(page, "/subscriptions");
check(!(await main.innerText()).includes("contoso"), "nothing of it is listed");
await visit(page, "/audit?filter[program_id]=contoso");
const audit = await main.innerText();
check(["Create program", "Edit program", "Delete program", "Create token", "Revoke token"].every((action) => audit.includes(action)), `the audit log: ${audit}`);
server.close();
await done();
