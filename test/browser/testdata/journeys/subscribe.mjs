// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// A subscription is made: the events are picked, a URL is refused and another
// one taken; its first ping and its secret are shown; a ping's result is seen in
// place; and nothing has the secret afterwards.
import { createHmac } from "node:crypto";
import { base, check, command, data, done, follow, looks, receiver, script, signedIn, tabTo, until, visit } from "./lib.mjs";

let answer = { status: 200, headers: { "Content-Type": "text/plain" }, body: "thank you\n" };
const server = await receiver(() => answer);
const expected = ["the server responded with a status of 4"]; // a form that is refused
const { page } = await signedIn({}, expected);
const main = () => page.locator("main").innerText();

// Nothing can be made before there is a program, and the page says how.
await visit(page, "/subscriptions");
check((await main()).includes("No subscriptions yet."), "the empty list says so");
await page.locator("main a[href='/subscriptions/new']").first().click();
await page.getByText("No programs yet.").waitFor();
command("token", "create", "--data", data, "--program", "acme", "--user", "1", "--scope", "webhooks.read");

// The events: searched for, and ticked by the group.
await page.reload();
const ticked = () => page.locator("[data-picker] input:checked").evaluateAll((all) => all.map((box) => box.value).sort());
const all = await page.locator("[data-picker] input[type=checkbox]").count();
const wanted = (await page.locator("[data-picker] input[type=checkbox]").evaluateAll((boxes) => boxes.map((box) => box.value))).filter((name) => name.startsWith("content_")).sort();
check(wanted.length > 2 && all > wanted.length, "the catalog has events of contents and others");
if (script) {
  const shown = page.locator("[data-picker] label:has(input[type=checkbox]):visible");
  await page.fill("[data-picker-search]", "content");
  const found = await shown.count();
  check(found >= wanted.length && found < all, `the search leaves some, got ${found} of ${all}`);
  await page.press("[data-picker-search]", "Enter");
  check(page.url().endsWith("/subscriptions/new"), "Enter in the search sends nothing");
  await page.fill("[data-picker-search]", "no such event");
  check(await page.locator("[data-picker-none]").isVisible(), "it is said that nothing is found");
  await page.fill("[data-picker-search]", "");
  check(await shown.count() === all, "all are there again");
  await page.getByRole("button", { name: "All : Content", exact: true }).click();
  check((await page.locator("[data-picker-count]").textContent()) === `${wanted.length} of ${all}`, "how many are ticked is said");
  await page.locator("[data-picker-all]").click();
  check((await ticked()).length === all, "all are ticked");
  await page.locator("[data-picker-all]").click();
  check((await ticked()).length === 0, "none is ticked");
  await page.getByRole("button", { name: "All : Content", exact: true }).click();
} else {
  check(!await page.locator("[data-picker-search]").isVisible(), "there is no search that does nothing");
  for (const name of wanted) await page.check(`[data-picker] input[value=${name}]`);
}
check(JSON.stringify(await ticked()) === JSON.stringify(wanted), `ticked are ${await ticked()}`);

// A URL into the network of the operator is refused while it is typed, and when
// it is sent: at its field, and nothing is lost of what was entered.
const blocked = "http://169.254.169.254/latest/meta-data";
await page.fill("#url", blocked);
const verdict = page.locator("#preview .verdict");
if (script) await until("the verdict", async () => (await verdict.textContent()).includes("leads to an address that deliveries may not be sent to"));
await page.click("button.primary");
await page.getByText("Nothing was saved.").waitFor();
if (script) check(await page.evaluate(() => document.activeElement.getAttribute("role")) === "alert", "the focus is where it is said what is wrong");
const described = (await page.locator("#url").getAttribute("aria-describedby")).split(" ");
check(described.includes("url-fault") && await page.locator("#url").getAttribute("aria-invalid") === "true", "the fault is linked to its field");
check((await page.locator("#url-fault").textContent()).includes("leads to an address that deliveries may not be sent to"), "it says why");
check(await page.inputValue("#url") === blocked && JSON.stringify(await ticked()) === JSON.stringify(wanted), "what was entered is still there");
await looks(page);
await tabTo(page, "[role=alert] a[href='#url']");
await page.keyboard.press("Enter");
await until("the field has the focus", () => page.evaluate(() => document.activeElement.id === "url"));
check(server.requests.length === 0, "nothing was sent");

// Another one is taken; the first ping is shown before it is sent.
const url = `${server.url}hooks?secret=query-of-the-partner`;
await page.keyboard.press("Control+a");
await page.keyboard.type(url);
if (script) {
  // It is checked while it is typed, too.
  await until("the verdict on all of it", async () => (await verdict.textContent()).includes("The URL is valid.") && (await page.locator("#preview").textContent()).includes(url.slice(server.url.length)));
} else {
  await follow(page, () => page.getByRole("button", { name: "Check URL" }).click());
  check((await verdict.textContent()).includes("The URL is valid."), "the URL can be used");
}
const preview = await page.locator("#preview").innerText();
check(preview.includes("POST /hooks?secret=query-of-the-partner HTTP/1.1") && preview.includes(new URL(url).host) && preview.includes('"ping"'), `the first ping, got ${preview}`);
await page.fill("#authorization", "Bearer of-the-partner");
await page.click("button.primary");
await page.getByText("Copy it now:").waitFor();
const secret = await page.locator("#secret").textContent();
check(/^whsec_[A-Za-z0-9+/=]{32,}$/.test(secret), "a secret");
check(await page.locator("button[aria-label='Copy secret']").isVisible() === script, "a button that copies it, where it can");
await looks(page);
await until("the first ping", () => server.requests.length === 1);
const sent = server.requests[0];
const signed = createHmac("sha256", Buffer.from(secret.slice(6), "base64")).update(`${sent.headers["webhook-id"]}.${sent.headers["webhook-timestamp"]}.${sent.body}`).digest("base64");
check(sent.headers["webhook-signature"].split(" ").includes(`v1,${signed}`), "the ping is signed with the secret that was shown");
const keys = (text) => Object.keys(JSON.parse(text)).join();
const shownBody = preview.slice(preview.indexOf("{"), preview.lastIndexOf("}") + 1);
check(keys(shownBody) === keys(sent.body), "the ping is of the shape that was shown");

// Its result, in its place.
await page.getByRole("link", { name: "See the first ping" }).click();
const ping = page.locator("#ping");
await ping.getByText("thank you").waitFor();
check((await ping.innerText()).includes("200") && (await ping.textContent()).includes("success"), "the result, the status and the first lines of the answer");
const subscription = new URL(page.url()).pathname;
for (const [status, result] of [[503, "retrying"], [404, "failed"], [200, "success"]]) {
  answer = { status, headers: {}, body: `answer ${status}` };
  await visit(page, subscription);
  if (script) await page.evaluate(() => { window.here = true; });
  await page.getByRole("button", { name: "Ping" }).click();
  await ping.getByText(`answer ${status}`).waitFor();
  check((await ping.textContent()).includes(result), `the result of a ${status} is ${result}`);
  if (!script) continue;
  check(await page.evaluate(() => window.here) && page.url() === base + subscription, "the page was not loaded again");
  const [first, pings] = [await ping.locator("a[href^='/deliveries/']").getAttribute("href"), server.requests.length];
  await page.getByRole("button", { name: "Ping" }).click();
  await until("a second ping in place", async () => await ping.locator("a[href^='/deliveries/']").getAttribute("href") !== first);
  check(server.requests.length === pings + 1, "pressed again it pings again, once");
}
await looks(page);

// The secret is nowhere: not where the form was, not on any page, in no file.
const secrets = [secret, secret.slice(6), "query-of-the-partner", "of-the-partner"];
const without = (where, text) => secrets.forEach((s) => check(!text.includes(s), `${where}: a secret is not shown again`));
const delivery = await page.locator("#ping a[href^='/deliveries/']").getAttribute("href");
for (const path of ["/", "/subscriptions", subscription, `${subscription}/rotate-secret`, `${subscription}/delete`, `${subscription}/replay`, "/deliveries", delivery, `${delivery}/redeliver`, "/events", "/tokens", "/system", "/audit", "/account", `/find?q=${subscription.split("/").pop()}`]) {
  const got = await visit(page, path);
  without(path, await page.content());
  without(path, JSON.stringify(got.headers()));
}
for (const path of ["/deliveries/export?format=ndjson", "/deliveries/export?format=csv", `${delivery}/body.json.txt`]) without(path, await (await page.request.get(base + path)).text());
await visit(page, `${subscription}/edit`);
check(await page.inputValue("#authorization") === "", "the header is not in the form");
check(!(await page.content()).includes("Bearer of-the-partner") && !(await page.content()).includes(secret), "nor in its page");

// Rotated, the new one is shown once; loading that again does not rotate again.
await visit(page, `${subscription}/rotate-secret`);
await page.getByRole("button", { name: "Rotate secret" }).click();
await page.getByText("Copy it now:").waitFor();
const second = await page.locator("#secret").textContent();
check(second !== secret && (await main()).includes("Previous signing secret"), "a new secret, and the end of the old one");
page.once("dialog", (dialog) => dialog.accept());
await page.reload();
check(await page.locator("#secret").count() === 0 && !(await page.content()).includes(second), "loaded again it shows no secret");
await visit(page, subscription);
check(!(await page.content()).includes(second), "the page of the subscription does not either");

server.close();
await done();
