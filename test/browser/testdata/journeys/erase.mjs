// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// An operator erases the payload of an event, whose page, list and deliveries then show what is left.
import { api, check, checkPage, done, signIn, startReceiver, until, visit, waitForLoad } from "./lib.mjs";

const server = await startReceiver((req) => ({ status: 503, headers: { "X-Echo": "payload-4711" }, body: "payload-4711" }));
const created = await api("POST", "/v2/webhooks/subscriptions", { url: `${server.url}hook`, description: "Hook of a partner", events: [{ name: "content_deleted" }] });
check(created.status === 201, "a subscription");
const published = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 4711 });
check(published.status === 201, "an event");
const event = published.body.data;
const list = `/v2/webhooks/subscriptions/${created.body.data.id}/deliveries`;
const delivery = await until("a delivery that failed once", async () => (await api("GET", `${list}?filter[status]=retryable`)).body.data.find((d) => d.events[0].name === "content_deleted"));

const { page } = await signIn();
const at = `/events/${event.program_id ?? delivery.program_id}/${event.id}`;
await visit(page, at);
check((await page.content()).includes("4711"), "the payload");
await waitForLoad(page, () => page.getByRole("link", { name: "Erase payload" }).click());
await checkPage(page);
await waitForLoad(page, () => page.getByRole("link", { name: "Cancel" }).click());
check((await page.content()).includes("4711"), "nothing is erased by looking at the question");
await waitForLoad(page, () => page.getByRole("link", { name: "Erase payload" }).click());
await waitForLoad(page, () => page.getByRole("button", { name: "Erase payload" }).click());
await page.getByText("Payload erased.").waitFor();
await until("the cancelled delivery", async () => (await api("GET", `${list}/${delivery.id}`)).body.data.failure_reason === "cancelled");

for (const path of [at, "/events", `/deliveries/${delivery.id}`]) {
  await visit(page, path);
  check(!(await page.content()).includes("4711"), `no payload on ${path}`);
  await checkPage(page);
}
await visit(page, at);
await page.getByText("The payload was erased at").waitFor();
check((await page.getByRole("link", { name: "Erase payload" }).count()) === 0, "no second erasure");
await visit(page, `${at}/erase`);
await page.getByText("is erased already").waitFor();
await visit(page, `/deliveries/${delivery.id}`);
await page.getByText("an event of it was erased").waitFor();
await page.getByText("will not be sent again. Its events were erased.").waitFor();
server.close();
await done();
