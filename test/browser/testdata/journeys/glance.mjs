// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 1h,1h,1h,1h --retry-jitter 0
// A glance at some pages, light and wide: each passes axe, does not overflow and logs no error.
// With -short, TestBrowser runs only this journey; the tour visits every page, in every theme and
// width.
import { api, check, checkAsShown, done, runCommand, data, signIn, startReceiver, until, visit } from "./lib.mjs";

const { page } = await signIn();
const receiver = await startReceiver((r) => (JSON.parse(r.body).events[0].name === "ping" ? 204 : 503));
const created = await api("POST", "/v2/webhooks/subscriptions", { url: receiver.url, events: [{ name: "content_deleted" }] });
check(created.status === 201, `a subscription is created, got ${JSON.stringify(created.body)}`);
const published = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 1 });
check(published.status === 201, `an event is accepted, got ${JSON.stringify(published.body)}`);
const subscription = `/subscriptions/${created.body.data.id}`;
const failed = await until("the failed attempt", async () => {
  const { body } = await api("GET", "/v2/deliveries?filter[status]=retryable");
  return body.data[0];
});
const token = JSON.parse(runCommand("token", "list", "--data", data, "--json"))[0].id;

for (const path of ["/", "/deliveries", `/deliveries/${failed.id}`, "/events", `/events/acme/${published.body.data.id}`, "/subscriptions", subscription,
  `${subscription}/edit`, "/event-types", "/programs", `/tokens/${token}`, "/audit", "/incidents", "/system"]) {
  await visit(page, path);
  check(await page.locator("h1").count() === 1, `one h1 on ${path}`);
  await checkAsShown(page);
}
receiver.close();
await done();
