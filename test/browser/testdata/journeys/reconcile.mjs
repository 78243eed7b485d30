// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0
// and without JavaScript
// A partner sees which events of a day were delivered, which were not and why, and downloads them. The
// admin sees the same.
import { api, base, check, checkPage, done, javaScript, newPage, screenshot, signIn, startReceiver, until, visit, waitForLoad } from "./lib.mjs";

// What the receiver responds to the events of each type.
const statuses = { content_updated: 204, content_deleted: 422, content_published: 503 };
const receiver = await startReceiver((r) => statuses[JSON.parse(r.body).events[0].name] ?? 204);
const publish = async (name, n) => {
  const ids = [];
  for (let i = 0; i < n; i++) {
    const published = await api("POST", "/v2/events", { name, version: "1", content_id: i, ...(name === "content_published" ? { channel_ids: [7] } : {}) });
    check(published.status === 201, `an event, got ${published.status} ${JSON.stringify(published.body)}`);
    ids.push(published.body.data.id);
  }
  return ids;
};
await publish("content_updated", 3); // before there is a subscription
const created = await api("POST", "/v2/webhooks/subscriptions", { url: `${receiver.url}hook`, description: "Intranet search", max_events: 1, events: Object.keys(statuses).map((name) => ({ name })) });
check(created.status === 201, "a subscription");
const path = `/v2/webhooks/subscriptions/${created.body.data.id}`;
await publish("content_updated", 30);
const failed = await publish("content_deleted", 2);
await publish("content_published", 1);
await until("all are sent", async () => (await api("GET", `${path}/events?from=2026-01-01&page[size]=100`)).body.data.filter((e) => ["waiting", "pending"].includes(e.delivery_status)).length === 0);
check((await api("PUT", path, { active: false })).status === 200, "a pause");
const paused = await publish("content_updated", 2);

const { page: owner } = await signIn();
await visit(owner, "/programs/acme/portal");
await owner.selectOption("#role", "read");
await waitForLoad(owner, () => owner.getByRole("button", { name: "Create link" }).click());
const link = (await owner.getByLabel("Link", { exact: true }).textContent()).trim();
const { page: partner } = await newPage({ viewport: { width: 1280, height: 800 } });
await partner.goto(link);
await waitForLoad(partner, () => partner.locator("button.primary").click());

const shapes = async (page, name) => {
  for (const width of [1440, 360]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      await screenshot(page, `${name}-${width}-${colorScheme}`, true);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: 800 });
};
const counts = async (page) => Object.fromEntries(await page.locator("#owed .strip > div").evaluateAll((all) => all.map((e) => [e.querySelector("dt").innerText, e.querySelector("dd").innerText])));
const rows = (page) => page.locator("tr[data-row]");
for (const [page, root] of [[partner, "/portal"], [owner, ""]]) {
  await visit(page, `${root}/subscriptions/${created.body.data.id}`);
  await waitForLoad(page, () => page.locator("main a[href$='/reconciliation']").click());
  const expected = { Owed: "38", Delivered: "30", Failed: "2", Waiting: "1", "Not sent": "5" };
  await until("the counts of today", async () => JSON.stringify(await counts(page)) === JSON.stringify(expected));
  const reasons = (await page.locator("#owed").innerText()).replace(/\s+/g, " ");
  for (const text of ["2 failed: rejected", "1 retrying: another attempt follows", "3 not sent: before the subscription", "2 not sent: paused or not selected"]) check(reasons.includes(text), `${text} in ${reasons}`);
  await checkPage(page);
  await shapes(page, `reconciliation${root.replace("/", "-")}`);

  // A number leads to its events, and these to their deliveries.
  await waitForLoad(page, () => page.locator("#owed .strip a.bad").click());
  check(await rows(page).count() === 2, `2 failed events, got ${await rows(page).count()}`);
  check(JSON.stringify(await counts(page)) === JSON.stringify(expected), "the counts stay");
  await checkPage(page);
  await shapes(page, `reconciliation-failed${root.replace("/", "-")}`);
  await waitForLoad(page, () => rows(page).first().locator(`a[href^='${root}/deliveries/']`).click());
  check((await page.locator("main").innerText()).includes("422"), "the delivery");
  await page.goBack();
  await waitForLoad(page, () => page.getByRole("link", { name: "Clear filters" }).first().click());

  // The list goes on, page by page, and back.
  check(await rows(page).count() === 25, "a page");
  await waitForLoad(page, () => page.locator("a[rel=next]").click());
  check(await rows(page).count() === 13, "the rest");
  await checkPage(page);
  await waitForLoad(page, () => page.locator("a[rel=prev]").click());
  check(await rows(page).count() === 25, "the page before");

  // The file has the rows of the API.
  const file = await page.request.get(new URL(await page.getByRole("link", { name: "Download NDJSON" }).getAttribute("href"), base).href);
  check(file.headers()["content-type"] === "application/x-ndjson" && file.headers()["content-disposition"].includes(".ndjson"), "a file");
  const lines = (await file.text()).trim().split("\n").map((line) => JSON.parse(line));
  const pulled = (await api("GET", `${path}/events?from=2026-01-01&page[size]=100`)).body.data;
  check(JSON.stringify(lines.reverse()) === JSON.stringify(pulled), "the file is what the API returns");
  check(lines.filter((e) => e.delivery_status === "failed").map((e) => e.id).join() === failed.join() && lines.slice(-2).map((e) => e.id).join() === paused.join(), "the status of each event");

  // Yesterday there was nothing.
  await waitForLoad(page, () => page.getByRole("link", { name: "Yesterday", exact: true }).click());
  check((await counts(page)).Owed === "0" && await rows(page).count() === 0, "nothing yesterday");
  await checkPage(page);
  await waitForLoad(page, () => page.getByRole("link", { name: "7 d", exact: true }).click());
  check((await counts(page)).Owed === "38", "all within 7 days");
}

// The recipe is a click away.
check((await partner.request.get(base + await partner.locator("main a[href^='/docs/receiving']").getAttribute("href"))).status() === 200, "the guide");
check(await partner.locator("main form[method=post]").count() === 0, "nothing to change");
check(javaScript || (await partner.locator("#owed").count()) === 1, "the counts without JavaScript");
await done();
