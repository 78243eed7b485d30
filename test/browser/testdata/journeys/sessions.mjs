// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// A session ends when it should: by signing out, by the list of sessions, when
// the password changes, when nothing was heard of it for two hours, and twelve
// hours after it began. A page that is only watched goes to sign in then, and
// keeps no session from ending.
import { admin, api, base, check, done, fresh, receiver, restart, script, signedIn, until, visit } from "./lib.mjs";

const expected = ["the server responded with a status of 401", "the server responded with a status of 422", "net::ERR_", "htmx:sse:error", "htmx:error: Failed to fetch"]; // sessions end, and the service is started anew
let password = admin.password;
await signedIn(); // makes the admin

// enter signs in as a browser that has not been here.
async function enter(agent) {
  const { page } = await fresh({ userAgent: agent }, expected);
  await page.goto(`${base}/deliveries`);
  await page.fill("#email", admin.email);
  await page.fill("#password", password);
  await page.click("button.primary");
  await page.waitForURL(`${base}/deliveries`);
  return page;
}
const isIn = async (page) => {
  const answer = await page.request.get(`${base}/preferences`);
  check([200, 401].includes(answer.status()), `in or out, got ${answer.status()}`);
  return answer.status() === 200;
};
const ended = async (page, what) => {
  check(!await isIn(page), `${what}: the session has ended`);
  const another = await page.context().newPage(); // this one may be on its own way to sign in, whenever its stream is looked at
  const answer = await another.goto(`${base}/tokens`);
  check(answer.status() === 401 && await another.locator("#password").count() === 1, `${what}: a page asks to sign in`);
  check(!(await another.content()).includes(admin.email), `${what}: and tells nothing`);
  await another.close();
};
const toSignIn = (page, what) => until(what, async () => await page.locator("h1").textContent() === "Sign in"); // a stream that was cut waits longer each time

// A page that is watched: what is new comes in by itself.
const server = await receiver(() => 204);
check((await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] })).status === 201, "a subscription");
const watch = async (page) => {
  await visit(page, "/deliveries");
  if (script) await until("the stream", () => page.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
};
const rowsOf = async (agent) => { // of the list of sessions, as another one sees it
  await visit(desk, "/account");
  return desk.locator("tr[data-row]", { hasText: agent });
};

// By signing out. Another browser goes on.
const desk = await enter("Desk/1.0");
const phone = await enter("Phone/1.0");
const cookie = (await phone.context().cookies()).find((c) => c.name.endsWith("session"));
check(cookie.name === "__Host-session" && cookie.httpOnly && cookie.secure && cookie.sameSite === "Lax", "a cookie that is kept from scripts and other hosts");
await phone.click("button[popovertarget=account]");
await phone.locator("form.leave button").click();
await phone.waitForURL(`${base}/sign-in`);
await ended(phone, "signed out");
check(!(await phone.context().cookies()).some((c) => c.name === "__Host-session"), "the cookie is gone");
await phone.context().addCookies([cookie]);
await ended(phone, "signed out, with the cookie kept aside");
check(await isIn(desk), "the other browser is signed in still");

// By the list of sessions; a page that is watched there goes to sign in.
const tablet = await enter("Tablet/1.0");
await watch(tablet);
await (await rowsOf("Tablet")).getByRole("button").click();
await desk.getByText("Session revoked.").waitFor();
check(!await isIn(tablet), "a session that was revoked has ended");
check(await (await rowsOf("Tablet")).count() === 0, "it is not in the list any more");
check(await isIn(desk), "the session that ended it goes on");

// By a change of the password, which ends the others; this one goes on as another.
const laptop = await enter("Laptop/1.0");
await watch(laptop);
const before = (await desk.context().cookies()).find((c) => c.name === "__Host-session").value;
await visit(desk, "/account");
const change = async (current, next) => {
  await desk.fill("#current", current);
  await desk.fill("#password", next);
  await desk.fill("#again", next);
  await desk.getByRole("button", { name: "Change password" }).click();
};
await change("not the password", "another horse battery staple");
await desk.locator("#current-fault").waitFor();
check(await isIn(laptop), "a wrong password ends nothing");
await change(password, "another horse battery staple");
await desk.getByText("Password changed.").waitFor();
password = "another horse battery staple";
check(await isIn(desk), "the browser that changed it is signed in");
check((await desk.context().cookies()).find((c) => c.name === "__Host-session").value !== before, "as another session");
check(!await isIn(laptop), "the others have ended");
if (script) { // their streams are looked at again within seconds
  await toSignIn(tablet, "the page that was watched in a session that was revoked asks to sign in");
  await toSignIn(laptop, "the page that was watched when the password changed asks to sign in");
}
await ended(tablet, "revoked");
await ended(laptop, "the password was changed");
await laptop.goto(`${base}/sign-in`);
await laptop.fill("#email", admin.email);
await laptop.fill("#password", admin.password);
await laptop.click("button.primary");
check(await laptop.getByText("Wrong email or password").count() === 1, "the old password is of no use");

// Not heard of: the pages are watched on, and that is not being heard of.
const idle = await enter("Idle/1.0");
await watch(idle);
const awake = await enter("Awake/1.0");
const again = script && idle.waitForResponse((r) => r.url().includes("/deliveries/stream"));
await restart("1h55m"); // of two hours
if (script) check((await again).status() === 200, "the page that is watched goes on with its stream");
check(await isIn(awake), "a session that was seen in time goes on");
check(await isIn(desk), "this one too");
const seen = await (await rowsOf("Idle")).locator("[data-label='Last seen'] time").getAttribute("datetime");
check(Date.now() - Date.parse(seen) > 115 * 60_000, `the page that is watched was last seen when somebody did something, got ${seen}`);
await restart("10m");
check(await isIn(awake), "who asked for a page meanwhile is signed in");
if (script) await toSignIn(idle, "the page that was only watched asks to sign in");
await ended(idle, "not heard of for two hours");

// Twelve hours after it began, whatever was done.
for (let hours = 2; hours < 12; hours += 1.75) {
  check(await isIn(awake), `signed in after ${hours} h`);
  await restart("1h45m");
}
await ended(awake, "twelve hours after it began");

server.close();
await done();
