// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// An admin shares a delivery. A visitor without a session sees it, but no response of the
// receiver, until the link is revoked.
import { api, base, check, checkPage, done, newPage, signIn, startReceiver, until, visit, waitForLoad } from "./lib.mjs";

const server = await startReceiver(() => ({ status: 503, headers: { "X-Internal": "header-canary" }, body: "body-canary" }));
const created = await api("POST", "/v2/webhooks/subscriptions", { url: `${server.url}hook?key=url-canary`, description: "Hook of a partner", events: [{ name: "content_deleted" }] });
check(created.status === 201, "a subscription");
const list = `/v2/webhooks/subscriptions/${created.body.data.id}/deliveries`;
check((await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: 4711 })).status === 201, "an event");
const delivery = await until("a delivery that failed once", async () => (await api("GET", `${list}?filter[status]=retryable`)).body.data.find((d) => d.events[0].name === "content_deleted"));

const { page } = await signIn();
await visit(page, `/deliveries/${delivery.id}`);
await waitForLoad(page, () => page.getByRole("button", { name: "Share" }).click());
await page.getByText("Copy the link now:").waitFor();
await checkPage(page);
const link = (await page.locator(".copybox code").textContent()).trim();
check(link.startsWith(`${base}/shared/`), `a link, got ${link}`);

const { page: partner } = await newPage({}, ["the server responded with a status of 404"]);
const answer = await partner.goto(link);
check(answer.status() === 200 && answer.headers()["cache-control"] === "no-store" && answer.headers()["x-robots-tag"] === "noindex, nofollow" && answer.headers()["referrer-policy"] === "no-referrer", "a page that nobody stores or indexes");
await partner.getByText(delivery.id).first().waitFor();
await checkPage(partner);
const shown = await partner.content();
check(shown.includes("4711") && shown.includes("503 Service Unavailable"), "the body of the request and the attempts");
for (const canary of ["header-canary", "body-canary", "url-canary", "/hook", "Hook of a partner"]) check(!shown.includes(canary), `no ${canary}`);
check((await partner.context().cookies()).length === 0, "no cookie");

await visit(page, `/deliveries/${delivery.id}`);
await waitForLoad(page, () => page.locator("#shares tr[data-row], #shares tbody tr").getByRole("button").click());
await page.getByText("Link revoked. It no longer works.").waitFor();
const ended = await partner.goto(link);
check(ended.status() === 404, "a revoked link");
await partner.getByText("This link is not valid").waitFor();
await checkPage(partner);
const guess = await partner.goto(`${base}/shared/${"A".repeat(43)}`);
check(guess.status() === 404 && (await partner.getByText("This link is not valid").count()) > 0, "the same page for a guess");
server.close();
await done();
