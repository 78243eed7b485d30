// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h
// and without JavaScript
// An owner finds a change in the audit log by token, program, action and time, and follows an entry
// to its record. The page shows the newest hash, which the log on disk verifies.
import { admin, api, check, checkPage, data, done, runCommand, signIn, startReceiver, visit, waitForLoad } from "./lib.mjs";

const receiver = await startReceiver(() => 204);
const created = await api("POST", "/v2/webhooks/subscriptions", { url: receiver.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, "a subscription");
const id = created.body.data.id;
runCommand("token", "create", "--data", data, "--program", "other", "--user", "1", "--scope", "events.read");

// The admin changes the subscription that the token created.
const { page } = await signIn();
await visit(page, `/subscriptions/${id}`);
await waitForLoad(page, () => page.getByRole("button", { name: "Pause" }).click());
await visit(page, "/audit");
await checkPage(page);
const rows = page.locator("table tr[data-row]");
const texts = async () => (await rows.allInnerTexts()).map((text) => text.replace(/\s+/g, " "));
const all = (await texts()).length;
check((await texts())[0].includes(admin.email) && (await texts())[0].includes("Pause subscription"), `the newest entry, got ${(await texts())[0]}`);

// An entry of the token leads to the token and to the subscription.
const ofToken = rows.filter({ hasText: "Token" }).filter({ hasText: "Create subscription" });
check(await ofToken.count() === 1, `the token created a subscription, got ${await texts()}`);
const token = (await ofToken.locator("a[href^='/tokens/']").getAttribute("href")).split("/").pop();
await waitForLoad(page, () => ofToken.locator(`a[href='/subscriptions/${id}']`).click());
await page.getByRole("button", { name: "Resume" }).waitFor();

// Filters, by the form and by the address.
const matching = async (query, wanted) => {
  await visit(page, `/audit?${query}`);
  const found = await texts();
  check(found.length > 0 && found.length < all && found.every(wanted), `${query} finds some entries, got ${found}`);
};
await visit(page, "/audit");
await page.getByText("More filters").click();
await checkPage(page);
await page.getByLabel("Token ID").fill(token);
await waitForLoad(page, () => page.getByLabel("Token ID").press("Enter"));
check((await texts()).join().includes("Create subscription") && (await rows.count()) === 1, `the entries of the token, got ${await texts()}`);
await waitForLoad(page, () => page.getByRole("link", { name: "Remove filter" }).first().click());
check(await rows.count() === all, "without the filter there are all entries");
await matching("filter[program_id]=other", (text) => text.includes("other"));
await matching("filter[action]=subscription.pause", (text) => text.includes("Pause subscription"));
await matching(`filter[admin]=${encodeURIComponent(admin.email)}`, (text) => text.includes(admin.email));
await visit(page, `/audit?filter[subject_id]=${id}&filter[at.from]=2026-01-01`);
check(await rows.count() === 2, "both changes of the subscription");
await visit(page, "/audit?filter[at.to]=2020-01-01");
check(await rows.count() === 0, "no entry is that old");
await checkPage(page);

// The page shows the newest hash.
await visit(page, "/audit");
const hash = (await page.locator("code.whole").last().textContent()).trim();
check(/^[0-9a-f]{64}$/.test(hash), `a hash, got ${hash}`);
check(runCommand("audit", "verify", "--data", data, "--expect", hash).length > 0, "the log contains the hash");
receiver.close();
await done();
