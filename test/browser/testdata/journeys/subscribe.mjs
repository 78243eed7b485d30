// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// and in Firefox
// An admin creates a subscription: picks events, corrects a blocked URL, and sees the first
// ping and the signing secret. The result of a ping appears in place. No page shows the
// secret later.
import { createHmac } from "node:crypto";
import { base, check, runCommand, data, done, waitForLoad, checkPage, startReceiver, javaScript, signIn, tabTo, until, visit } from "./lib.mjs";

let reply = { status: 200, headers: { "Content-Type": "text/plain" }, body: "thank you\n" };
const server = await startReceiver(() => reply);
const expectedErrors = ["the server responded with a status of 4"]; // the journey submits a form that responds with 4xx
const { page } = await signIn({}, expectedErrors);
const mainText = () => page.locator("main").innerText();

// A subscription needs a program, and the page says how to create one.
await visit(page, "/subscriptions");
check((await mainText()).includes("No subscriptions yet."), "the list says that it is empty");
await page.locator("main a[href='/subscriptions/new']").first().click();
await page.getByText("No programs yet.").waitFor();
runCommand("token", "create", "--data", data, "--program", "acme", "--user", "1", "--scope", "webhooks.read");

// Search for events and select them by group.
await page.reload();
const checkedEvents = () => page.locator("[data-picker] input:checked").evaluateAll((all) => all.map((box) => box.value).sort());
const eventCount = await page.locator("[data-picker] input[type=checkbox]").count();
const contentEvents = (await page.locator("[data-picker] input[type=checkbox]").evaluateAll((boxes) => boxes.map((box) => box.value))).filter((name) => name.startsWith("content_")).sort();
check(contentEvents.length > 2 && eventCount > contentEvents.length, "the catalog has content events and others");
if (javaScript) {
  const visibleEvents = page.locator("[data-picker] label:has(input[type=checkbox]):visible");
  await page.fill("[data-picker-search]", "content");
  const matches = await visibleEvents.count();
  check(matches >= contentEvents.length && matches < eventCount, `the search matches some events, got ${matches} of ${eventCount}`);
  await page.press("[data-picker-search]", "Enter");
  check(page.url().endsWith("/subscriptions/new"), "Enter in the search does not submit the form");
  await page.fill("[data-picker-search]", "no such event");
  check(await page.locator("[data-picker-none]").isVisible(), "the picker says that nothing matches");
  await page.fill("[data-picker-search]", "");
  check(await visibleEvents.count() === eventCount, "an empty search shows all events");
  await page.getByRole("button", { name: "All Content", exact: true }).click();
  check((await page.locator("[data-picker-count]").textContent()) === `${contentEvents.length} of ${eventCount}`, "the picker counts the selected events");
  await page.locator("[data-picker-all]").click();
  check((await checkedEvents()).length === eventCount, "all events are selected");
  await page.locator("[data-picker-all]").click();
  check((await checkedEvents()).length === 0, "no event is selected");
  await page.getByRole("button", { name: "All Content", exact: true }).click();
} else {
  check(!await page.locator("[data-picker-search]").isVisible(), "the search, which needs JavaScript, is hidden");
  for (const name of contentEvents) await page.check(`[data-picker] input[value=${name}]`);
}
check(JSON.stringify(await checkedEvents()) === JSON.stringify(contentEvents), `the content events are selected, got ${await checkedEvents()}`);

// A URL with a blocked address is rejected while the admin types, and on submit. The error
// is at the field, and the form keeps its values.
const blockedURL = "http://169.254.169.254/latest/meta-data";
await page.fill("#url", blockedURL);
const verdict = page.locator("#url-verdict");
if (javaScript) await until("the verdict on the blocked URL", async () => (await verdict.textContent()).includes("leads to an address that deliveries may not be sent to"));
await page.click("button.primary");
await page.getByText("Nothing was saved.").waitFor();
if (javaScript) check(await page.evaluate(() => document.activeElement.getAttribute("role")) === "alert", "the focus is on the error summary");
const describedBy = (await page.locator("#url").getAttribute("aria-describedby")).split(" ");
check(describedBy.includes("url-verdict") && await page.locator("#url").getAttribute("aria-invalid") === "true", "the field refers to its error");
check((await verdict.textContent()).includes("leads to an address that deliveries may not be sent to"), "the error says why");
check(await page.inputValue("#url") === blockedURL && JSON.stringify(await checkedEvents()) === JSON.stringify(contentEvents), "the form keeps its values");
await checkPage(page);
await tabTo(page, "[role=alert] a[href='#url']");
await page.keyboard.press("Enter");
await until("the focus on the field", () => page.evaluate(() => document.activeElement.id === "url"));
check(server.requests.length === 0, "no request was sent");

// A valid URL is accepted. The form previews the first ping.
const url = `${server.url}hooks?secret=query-of-the-partner`;
await page.keyboard.press("Control+a");
await page.keyboard.type(url);
if (javaScript) {
  await until("the end of the old error", async () => await page.locator("#url").getAttribute("aria-invalid") === null && await page.locator("[role=alert]").count() === 0);
  await until("the verdict on the whole URL", async () => (await verdict.textContent()).includes("The URL is valid.") && (await page.locator("#preview").textContent()).includes(url.slice(server.url.length)));
} else {
  await waitForLoad(page, () => page.getByRole("button", { name: "Check URL" }).click());
  check((await verdict.textContent()).includes("The URL is valid."), "the URL is valid");
}
const preview = await page.locator("#preview").innerText();
check(preview.includes("POST /hooks?secret=query-of-the-partner HTTP/1.1") && preview.includes(new URL(url).host) && preview.includes('"ping"'), `a preview of the first ping, got ${preview}`);
await page.fill("#authorization", "Bearer of-the-partner");
await page.click("button.primary");
await page.getByText("Copy it now:").waitFor();
const secret = await page.locator("#secret").textContent();
check(/^whsec_[A-Za-z0-9+/=]{32,}$/.test(secret), "the page shows the secret");
check(await page.locator("button[aria-label='Copy secret']").isVisible() === javaScript, "a button copies the secret, with JavaScript only");
await checkPage(page);
await until("the first ping", () => server.requests.length === 1);
const pingRequest = server.requests[0];
const signature = createHmac("sha256", Buffer.from(secret.slice(6), "base64")).update(`${pingRequest.headers["webhook-id"]}.${pingRequest.headers["webhook-timestamp"]}.${pingRequest.body}`).digest("base64");
check(pingRequest.headers["webhook-signature"].split(" ").includes(`v1,${signature}`), "the shown secret signs the ping");
const propertyNames = (text) => Object.keys(JSON.parse(text)).join();
const previewBody = preview.slice(preview.indexOf("{"), preview.lastIndexOf("}") + 1);
check(propertyNames(previewBody) === propertyNames(pingRequest.body), "the ping has the properties of the preview");

// The result of a ping appears in place.
await page.getByRole("link", { name: "See the first ping" }).click();
const pingResult = page.locator("#ping");
await until("the result of the first ping", async () => {
  if ((await pingResult.innerText()).includes("thank you")) return true;
  if (!javaScript) await page.reload(); // with JavaScript the page updates itself
  return false;
});
check((await pingResult.innerText()).includes("200") && (await pingResult.textContent()).includes("success"), "the result, the status and the first lines of the response");
const subscription = new URL(page.url()).pathname;
for (const [status, result] of [[503, "retrying"], [404, "failed"], [200, "success"]]) {
  reply = { status, headers: {}, body: `response ${status}` };
  await visit(page, subscription);
  if (javaScript) await page.evaluate(() => { window.loadedOnce = true; });
  await page.getByRole("button", { name: "Ping" }).click();
  await pingResult.getByText(`response ${status}`).waitFor();
  check((await pingResult.textContent()).includes(result), `${status} is shown as ${result}`);
  if (!javaScript) continue;
  check(await page.evaluate(() => window.loadedOnce) && page.url() === base + subscription, "the page did not reload");
  const [firstHref, requestsBefore] = [await pingResult.locator("a[href^='/deliveries/']").getAttribute("href"), server.requests.length];
  await page.getByRole("button", { name: "Ping" }).click();
  await until("the second ping", async () => await pingResult.locator("a[href^='/deliveries/']").getAttribute("href") !== firstHref);
  check(server.requests.length === requestsBefore + 1, "the second click sends one ping");
}
await checkPage(page);

// No page, header or download contains the secret, the query of the URL or the authorization
// header.
const secrets = [secret, secret.slice(6), "query-of-the-partner", "of-the-partner"];
const checkNoSecrets = (location, text) => secrets.forEach((s) => check(!text.includes(s), `${location} has no secret`));
const delivery = await page.locator("#ping a[href^='/deliveries/']").getAttribute("href");
for (const path of ["/", "/subscriptions", subscription, `${subscription}/rotate-secret`, `${subscription}/delete`, `${subscription}/replay`, "/deliveries", delivery, `${delivery}/redeliver`, "/events", "/tokens", "/system", "/audit", "/account", `/find?q=${subscription.split("/").pop()}`]) {
  const response = await visit(page, path);
  checkNoSecrets(path, await page.content());
  checkNoSecrets(path, JSON.stringify(response.headers()));
}
for (const path of ["/deliveries/export?format=ndjson", "/deliveries/export?format=csv", `${delivery}/body.json.txt`]) checkNoSecrets(path, await (await page.request.get(base + path)).text());
await visit(page, `${subscription}/edit`);
check(await page.inputValue("#authorization") === "", "the form does not show the authorization header");
check(!(await page.content()).includes("Bearer of-the-partner") && !(await page.content()).includes(secret), "the page has neither the header nor the secret");

// After a rotation the new secret is shown once. A reload does not rotate again.
await visit(page, `${subscription}/rotate-secret`);
await page.getByRole("button", { name: "Rotate secret" }).click();
await page.getByText("Copy it now:").waitFor();
const rotatedSecret = await page.locator("#secret").textContent();
check(rotatedSecret !== secret && (await mainText()).includes("Previous signing secret"), "a new secret, and the expiry of the previous one");
page.once("dialog", (dialog) => dialog.accept());
await page.reload();
check(await page.locator("#secret").count() === 0 && !(await page.content()).includes(rotatedSecret), "a reload shows no secret");
await visit(page, subscription);
check(!(await page.content()).includes(rotatedSecret), "the subscription page does not show the secret");

server.close();
await done();
