// serve --allow-http --allow-destination 127.0.0.1/32 --retry-schedule 50ms,50ms,1h,1h --retry-jitter 0 --attempt-timeout 5m
// A receiver that fails twice and then succeeds, each time when the journey says
// so, watched as it happens on the page of its delivery and on the list, without
// loading either again; what is new is counted for screen readers; the pages can
// be paused, and rest in a tab that is hidden.
import { api, check, done, holding, looks, signedIn, until, visit } from "./lib.mjs";

const { page: list, context } = await signedIn();
await visit(list, "/deliveries");
check(await list.getByText("No deliveries yet.").isVisible(), "the page of nothing says what to do");

// The first row comes by itself.
const server = await holding();
const made = await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] });
check(made.status === 201, `a subscription: ${JSON.stringify(made.body)}`);
await list.waitForSelector("[data-live-list] tr");
let n = 0;
const publish = async () => { // and waits for its first attempt
  const before = server.attempts().length;
  const answer = await api("POST", "/v2/events", { name: "content_deleted", version: "1", content_id: ++n });
  check(answer.status === 201, "an event is accepted");
  await server.attempt(before + 1);
};
const mark = (page) => page.evaluate(() => { window.here = true; });
const unmoved = async (page, what) => check(await page.evaluate(() => window.here), `${what} was not loaded again`);
await until("the stream", () => list.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
await mark(list);

// It is opened while the first attempt is under way.
await publish();
const row = list.locator("[data-live-list] tr", { hasText: "content_deleted" });
await row.getByText("1/5").waitFor();
const one = await context.newPage();
await visit(one, await row.locator("a[href^='/deliveries/']").first().getAttribute("href"));
await mark(one);
const attempts = one.locator("#attempts");
const facts = one.locator("#facts");
const articles = attempts.locator("article.attempt");
const attemptsNow = async () => (await attempts.locator("h2").innerText()).match(/(\d) of 5/)[1];
check(await attemptsNow() === "1" && await articles.count() === 0, "it was opened while the first attempt was under way");
check((await facts.innerText()).includes("not yet"), "it has not ended");

// Twice it fails. Where the focus is, something is being read or pressed: that
// stays as it is until the focus leaves, and then is what it should be.
await one.locator("#record a", { hasText: "Resend" }).focus();
await server.answer(503);
await until("the second attempt on its page", async () => await attemptsNow() === "2");
await until("the second attempt on the list", async () => (await row.textContent()).includes("2/5"));
check(await articles.count() === 1 && (await articles.first().textContent()).includes("503"), "the first answer");
await server.answer(503);
await until("the third attempt on its page", async () => await attemptsNow() === "3");
check((await attempts.textContent()).includes("Attempt 2") && await articles.count() === 2, "the second answer");
check(await one.evaluate(() => document.activeElement.textContent.trim()) === "Resend", "the focus is where it was");

// And then it succeeds.
await server.answer(200);
await row.getByText("Success").waitFor();
check((await row.textContent()).includes("3/5"), "the third attempt has succeeded");
check(await row.count() === 1, "the row was changed in its place");
await until("the end on its page", async () => !(await facts.innerText()).includes("not yet"));
await until("the third answer", async () => await articles.count() === 3);
await one.evaluate(() => document.activeElement.blur());
await until("the title, which had the focus", async () => (await one.locator("#record").textContent()).includes("success"));
await until("the word of it for screen readers", async () => await one.locator("[data-live-status]").textContent() === "Updated: success");
await unmoved(one, "the page of the delivery");
await unmoved(list, "the list");
check(server.requests.length === 4, "a ping and three attempts were sent");
const [first, second, third] = server.attempts();
check(first.body === third.body && second.body === third.body && first.headers["webhook-id"] === third.headers["webhook-id"], "the same bytes each time");

// Paused, nothing moves: what is new waits, is counted, and told once.
await list.click("[data-live-toggle]");
const toggle = list.locator("[data-live-toggle]");
check(await toggle.getAttribute("aria-pressed") === "true" && await toggle.getAttribute("aria-label") === "Paused: resume live updates", "the button says that it is paused");
server.always(410);
await publish();
await publish();
await list.getByText("2 new · Show").waitFor();
check(await row.count() === 1, "nothing moved while it was paused");
const told = list.locator("[data-live-status]");
check(await told.getAttribute("role") === "status", "what tells of it is a polite live region");
await until("the count for screen readers", async () => await told.textContent() === "2 new deliveries to show");
await looks(list);
await list.click("[data-live-show]");
await until("the new rows", async () => await row.count() === 3);
check(await toggle.getAttribute("aria-pressed") === "true", "it is paused still");
await toggle.click();
check(await toggle.getAttribute("aria-pressed") === "false", "and goes on");

// The page of a delivery is paused as well: what stands there stays. Three
// attempts fail, and the fourth is in an hour.
server.always(undefined);
await publish();
await until("its row", async () => await row.count() === 4);
await visit(one, await row.locator("a[href^='/deliveries/']").first().getAttribute("href"));
check(await attemptsNow() === "1", "a delivery whose first attempt is under way");
await one.click("[data-live-toggle]");
for (let i = 0; i < 3; i++) await server.answer(503);
await row.first().getByText("Retrying").waitFor();
await until("the third attempt on the list", async () => (await row.first().textContent()).includes("3/5"));
check(await attemptsNow() === "1", "the page that is paused stays as it is");
await one.click("[data-live-toggle]");
await until("what has become of it", async () => await attemptsNow() === "3" && await articles.count() === 3);

// In a hidden tab the stream rests; shown again it goes on from where it was.
const streams = [];
list.on("request", (r) => r.url().includes("/deliveries/stream") && streams.push(r));
const hide = (hidden) => list.evaluate((is) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => is });
  Object.defineProperty(document, "visibilityState", { configurable: true, get: () => (is ? "hidden" : "visible") });
  document.dispatchEvent(new Event("visibilitychange"));
}, hidden);
const rested = new Promise((ended) => list.on("requestfailed", (r) => r.url().includes("/deliveries/stream") && ended()));
await hide(true);
await rested;
const rows = await row.count();
const successes = async () => (await api("GET", `/v2/webhooks/subscriptions/${made.body.data.id}/deliveries?filter[status]=success`)).body.data.length;
const before = await successes();
server.always(200);
await publish();
await until("its end", async () => await successes() === before + 1);
check(await row.count() === rows && streams.length === 0, "a hidden tab asks for nothing");
await hide(false);
await until("what came meanwhile", async () => await row.count() === rows + 1);
check(streams.length === 1 && streams[0].headers()["last-event-id"], "it goes on from the last id");
await unmoved(list, "the list");

server.close();
await done();
