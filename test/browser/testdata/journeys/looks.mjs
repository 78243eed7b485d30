// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --rejecting-after 1
// What all pages have in common: few font sizes, paddings, gaps, radii and heights of controls, and
// what is visible without scrolling, with 13 open incidents and 41 subscriptions.
import { api, check, done, runCommand, data, signIn, startReceiver, until, visit } from "./lib.mjs";

const incidents = 13;
const subscriptions = 41;
const receiver = await startReceiver(() => 200);
const failing = [];
for (let n = 1; n <= incidents; n++) failing.push(await startReceiver((r) => (JSON.parse(r.body).events[0].name === "ping" ? 204 : 401)));
for (let n = 1; n <= subscriptions; n++) {
  const created = await api("POST", "/v2/webhooks/subscriptions", {
    url: `${(failing[n - 1] ?? receiver).url}${n}`, events: [{ name: "content_deleted" }], description: `Partner ${n}`,
  });
  check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
}
const published = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(published.status === 201, `an event is accepted, got ${JSON.stringify(published.body)}`);
const list = async (path) => (await api("GET", path)).body.data;
const open = await until("the incidents", async () => {
  const all = await list("/v2/incidents?filter[status]=open");
  return all.length === incidents && all;
});
await until("the deliveries", async () => (await list("/v2/deliveries?filter[status]=success&filter[event]=content_deleted&page[size]=100")).length === subscriptions - incidents);
const failed = (await list("/v2/deliveries?filter[status]=failed"))[0];
const token = JSON.parse(runCommand("token", "list", "--data", data, "--json"))[0].id;

const { page } = await signIn();
const at = async (width, height, path) => {
  await page.setViewportSize({ width, height });
  await visit(page, path);
};
const heights = (selector) => page.locator(selector).evaluateAll((all) => [...new Set(all.map((e) => Math.round(e.getBoundingClientRect().height)))]);
// visible returns how many elements are entirely within the viewport.
const visible = async (selector) => (await page.locator(selector).first().waitFor(), page.locator(selector).evaluateAll((all) => all.filter((e) => e.getBoundingClientRect().height > 0 && e.getBoundingClientRect().bottom <= innerHeight).length));

// The overview fits one screen: six incidents, then the number of the others, the chart, the
// responses.
await at(1440, 900, "/");
check(await page.locator("h1").innerText() === `${incidents} endpoints need attention`, "the page begins with the conclusion");
check(await page.locator("#service-status").innerText().then((text) => text.includes(`${incidents} incidents`)), "the bar has the number of incidents");
check(await page.locator("#open-incidents-count").innerText() === String(incidents), "the navigation has it too");
const overview = await page.evaluate(() => document.documentElement.scrollHeight);
const parts = await page.locator("main > *, #overview-head > *").evaluateAll((all) => all.map((e) => `${e.id || e.className} ${e.getBoundingClientRect().height}`));
check(overview <= 900, `the overview fits on one screen, got ${overview} px: ${parts}`);
check(await page.locator(".incident").count() === 6 && await page.getByText("7 more incidents").count() === 1, "six incidents, and how many more there are");
check((await heights(".incident")).every((h) => h >= 56 && h <= 58), `incidents are 56 px, got ${await heights(".incident")}`);
check(await page.locator(".strip").evaluate((e) => e.getBoundingClientRect().height) <= 66, "the strip is one line of 64 px");

await at(1440, 900, "/deliveries");
await page.locator("tr[data-row]").first().waitFor();
const rowHeights = await heights("tr[data-row]");
check(rowHeights.every((h) => h >= 40 && h <= 41), `rows are 40 px, got ${rowHeights}`);
const rows = { wide: await visible("tr[data-row]") };
await at(768, 1024, "/deliveries");
rows.tablet = await visible("tr[data-row]");
check(!await page.locator(".histogram").isVisible(), "the chart is folded on a tablet");
await at(360, 740, "/deliveries");
rows.phone = await visible("tr[data-row]");
check(rows.wide >= 15 && rows.tablet >= 15 && rows.phone >= 7, `15, 15 and 7 deliveries are visible, got ${JSON.stringify(rows)}`);

// On a tablet every column of a list is in sight, and has room for a word.
for (const path of ["/deliveries", "/events", "/subscriptions", "/programs", "/tokens", "/alerts", "/audit"]) {
  await at(768, 1024, path);
  const narrow = await page.locator("table.listing th:not(.w-tick)").evaluateAll((all) => all.filter((e) => e.checkVisibility())
    .map((e) => [e.innerText, e.getBoundingClientRect()]).filter(([name, box]) => name && (box.right > innerWidth || box.width < 40)).map(([name, box]) => `${name} ${box.left} to ${box.right}`));
  check(narrow.length === 0 && await page.locator("table.listing th").count() > 0, `the columns of ${path} have room, got ${narrow}`);
  check((await heights("tr[data-row]")).every((h) => h <= 100), `no cell of ${path} has a line per letter, got rows of ${await heights("tr[data-row]")} px`);
}

await at(1440, 900, "/incidents");
check(await page.locator(".incident").count() === incidents, "the incidents are listed");
check((await heights(".incident")).every((h) => h >= 56 && h <= 58), `incidents are 56 px on their page, got ${await heights(".incident")}`);

// The response of a delivery, and the deliveries of a subscription, come first.
const top = (selector) => page.locator(selector).first().evaluate((e) => Math.round(e.getBoundingClientRect().top));
await at(1440, 900, `/deliveries/${failed.id}`);
check(await top("#response") <= 200, `the response begins at 200 px at most, got ${await top("#response")}`);
await at(1440, 900, `/events/acme/${published.body.data.id}`);
const eventRows = await heights("#deliveries tr[data-row]");
check(eventRows.every((h) => h >= 40 && h <= 41), `deliveries of an event are 40 px, got ${eventRows}`);
await at(1440, 900, `/subscriptions/${failed.subscription_id}`);
check(await top("#subscription-deliveries tr[data-row]") < 450, `the first delivery is above 450 px, got ${await top("#subscription-deliveries tr[data-row]")}`);

// Distinct values over all pages.
const found = {};
const paths = ["/", "/incidents", `/incidents/${open[0].id}`, "/deliveries", `/deliveries/${failed.id}`, "/events", `/events/acme/${published.body.data.id}`,
  "/subscriptions", `/subscriptions/${failed.subscription_id}`, `/subscriptions/${failed.subscription_id}/edit`, "/subscriptions/new", "/programs", "/programs/acme",
  "/event-types", "/event-types/content_deleted", "/tokens", `/tokens/${token}`, "/alerts", "/system", "/admins", "/audit", "/account", "/preferences"];
for (const path of paths) {
  await at(1440, 900, path);
  const values = await page.evaluate(() => {
    const kinds = {
      fonts: ["fontSize"], paddings: ["paddingTop", "paddingRight", "paddingBottom", "paddingLeft"], gaps: ["rowGap", "columnGap"],
      radii: ["borderTopLeftRadius", "borderTopRightRadius", "borderBottomLeftRadius", "borderBottomRightRadius"],
    };
    const all = [];
    for (const e of document.body.querySelectorAll("*:not(svg *, input[type=checkbox], input[type=radio], input[type=range], textarea, .folded)")) {
      if (!e.checkVisibility()) continue;
      const style = getComputedStyle(e);
      const name = `${e.localName}.${e.getAttribute("class") ?? ""}`;
      for (const [kind, properties] of Object.entries(kinds)) {
        for (const property of properties) if (parseFloat(style[property]) > 0) all.push([kind, style[property], name]);
      }
      if (e.matches("button, select, input, a.action, a.primary, .choice")) all.push(["heights", `${Math.round(e.getBoundingClientRect().height)}px`, name]);
    }
    return all;
  });
  for (const [kind, value, name] of values) ((found[kind] ??= {})[value] ??= `${name} on ${path}`);
}
const most = { fonts: 6, paddings: 8, gaps: 7, radii: 3, heights: 3 };
for (const [kind, n] of Object.entries(most)) {
  check(Object.keys(found[kind]).length <= n, `at most ${n} ${kind}, got ${JSON.stringify(found[kind], null, 1)}`);
}
[receiver, ...failing].forEach((r) => r.close());
await done();
