// serve --allow-http --allow-destination 127.0.0.1/32
// and without JavaScript
// A session ends when the admin signs out, revokes it or changes the password, after two idle
// hours, and twelve hours after it began. An open page then asks to sign in. Its live stream does
// not count as activity.
import { admin, api, base, check, done, newPage, startReceiver, restart, javaScript, signIn, until, visit } from "./lib.mjs";

const expectedErrors = ["the server responded with a status of 401", "the server responded with a status of 422", "net::ERR_", "htmx:sse:error", "htmx:error: Failed to fetch"]; // sessions end, and the service restarts
let password = admin.password;
await signIn(); // creates the admin

// signInFrom signs in from a new browser context.
async function signInFrom(userAgent) {
  const { page } = await newPage({ userAgent: userAgent }, expectedErrors);
  await page.goto(`${base}/deliveries`);
  await page.fill("#email", admin.email);
  await page.fill("#password", password);
  await page.click("button.primary");
  await page.waitForURL(`${base}/deliveries`);
  return page;
}
const isSignedIn = async (page) => {
  const response = await page.request.get(`${base}/preferences`);
  check([200, 401].includes(response.status()), `status 200 or 401, got ${response.status()}`);
  return response.status() === 200;
};
const checkSessionEnded = async (page, reason) => {
  check(!await isSignedIn(page), `${reason}: the session ended`);
  const otherTab = await page.context().newPage(); // the page may itself navigate to the sign-in page at any time
  const response = await otherTab.goto(`${base}/tokens`);
  check(response.status() === 401 && await otherTab.locator("#password").count() === 1, `${reason}: a page asks to sign in`);
  check(!(await otherTab.content()).includes(admin.email), `${reason}: the sign-in page does not show the address`);
  await otherTab.close();
};
const waitForSignInPage = (page, reason) => until(reason, async () => await page.locator("h1").textContent() === "Sign in"); // the backoff of a stream grows with each attempt

// An open list with a live stream.
const server = await startReceiver(() => 204);
check((await api("POST", "/v2/webhooks/subscriptions", { url: server.url, events: [{ name: "content_deleted" }] })).status === 201, "a subscription is created");
const watchDeliveries = async (page) => {
  await visit(page, "/deliveries");
  if (javaScript) await until("the live stream", () => page.evaluate(() => document.querySelector("[data-live]")?.dataset.state === "on"));
};
const sessionRows = async (userAgent) => { // in the list of sessions, in the desk browser
  await visit(desk, "/account");
  return desk.locator("tr[data-row]", { hasText: userAgent });
};

// Signing out ends the session of this browser only.
const desk = await signInFrom("Desk/1.0");
const phone = await signInFrom("Phone/1.0");
const cookie = (await phone.context().cookies()).find((c) => c.name.endsWith("session"));
check(cookie.name === "__Host-session" && cookie.httpOnly && cookie.secure && cookie.sameSite === "Lax", "the cookie is HttpOnly, Secure, SameSite=Lax and bound to the host");
await phone.click("button[popovertarget=account]");
await phone.locator("form.leave button").click();
await phone.waitForURL(`${base}/sign-in`);
await checkSessionEnded(phone, "signed out");
check(!(await phone.context().cookies()).some((c) => c.name === "__Host-session"), "the cookie is gone");
await phone.context().addCookies([cookie]);
await checkSessionEnded(phone, "signed out, with the old cookie restored");
check(await isSignedIn(desk), "the other browser is still signed in");

// Revoking in the list of sessions ends another session.
const tablet = await signInFrom("Tablet/1.0");
await watchDeliveries(tablet);
await (await sessionRows("Tablet")).getByRole("button").click();
await desk.getByText("Session revoked.").waitFor();
check(!await isSignedIn(tablet), "the revoked session ended");
check(await (await sessionRows("Tablet")).count() === 0, "the revoked session is no longer listed");
check(await isSignedIn(desk), "the revoking session continues");

// Changing the password ends all other sessions and replaces this one.
const laptop = await signInFrom("Laptop/1.0");
await watchDeliveries(laptop);
const cookieBefore = (await desk.context().cookies()).find((c) => c.name === "__Host-session").value;
await visit(desk, "/account");
const changePassword = async (current, replacement) => {
  await desk.fill("#current", current);
  await desk.fill("#password", replacement);
  await desk.fill("#again", replacement);
  await desk.getByRole("button", { name: "Change password" }).click();
};
await changePassword("not the password", "another horse battery staple");
await desk.locator("#current-fault").waitFor();
check(await isSignedIn(laptop), "a wrong password ends no session");
await changePassword(password, "another horse battery staple");
await desk.getByText("Password changed.").waitFor();
password = "another horse battery staple";
check(await isSignedIn(desk), "the browser that changed it is signed in");
check((await desk.context().cookies()).find((c) => c.name === "__Host-session").value !== cookieBefore, "the browser has a new session");
check(!await isSignedIn(laptop), "the other sessions ended");
if (javaScript) { // open streams check their session every few seconds
  await waitForSignInPage(tablet, "the sign-in page in the browser whose session was revoked");
  await waitForSignInPage(laptop, "the sign-in page in the browser signed in before the password changed");
}
await checkSessionEnded(tablet, "revoked");
await checkSessionEnded(laptop, "the password was changed");
await laptop.goto(`${base}/sign-in`);
await laptop.fill("#email", admin.email);
await laptop.fill("#password", admin.password);
await laptop.click("button.primary");
check(await laptop.getByText("Wrong email or password").count() === 1, "the old password does not work");

// Idle timeout: an open live stream is not activity.
const idle = await signInFrom("Idle/1.0");
await watchDeliveries(idle);
const active = await signInFrom("Awake/1.0");
const reconnected = javaScript && idle.waitForResponse((r) => r.url().includes("/deliveries/stream"));
await restart("1h55m"); // of the two hours
if (javaScript) check((await reconnected).status() === 200, "the open page resumes its stream");
check(await isSignedIn(active), "the active session continues");
check(await isSignedIn(desk), "the desk session continues");
const lastSeen = await (await sessionRows("Idle")).locator("[data-label='Last seen'] time").getAttribute("datetime");
check(Date.now() - Date.parse(lastSeen) > 115 * 60_000, `the stream does not count as activity, got last seen ${lastSeen}`);
await restart("10m");
check(await isSignedIn(active), "the session with a request in between continues");
if (javaScript) await waitForSignInPage(idle, "the sign-in page in the idle browser");
await checkSessionEnded(idle, "idle for two hours");

// A session ends twelve hours after it began, with or without activity.
for (let hours = 2; hours < 12; hours += 1.75) {
  check(await isSignedIn(active), `signed in after ${hours} h`);
  await restart("1h45m");
}
await checkSessionEnded(active, "twelve hours after it began");

server.close();
await done();
