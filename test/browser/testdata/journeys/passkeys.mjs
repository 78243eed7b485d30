// serve
// Passkeys: an admin adds one, signs out, signs in with it without an email, and removes it. The
// authenticator is Chromium's virtual one. A signed response cannot be sent again, and at an IP
// address the page says why passkeys are unavailable.
import { admin, base, check, checkPage, done, newPage, signIn, until, waitForLoad, visit } from "./lib.mjs";

const expectedErrors = ["the server responded with a status of 401", "the server responded with a status of 422", "the server responded with a status of 403"];
const { page: first } = await signIn(); // creates the admin
await visit(first, "/account");
await first.getByText("Passkeys need a domain name, and this page was opened at an IP address.").waitFor();
check(await first.getByRole("button", { name: "Add passkey" }).count() === 0, "no form that cannot work");

const home = base.replace("127.0.0.1", "localhost");
check(home !== base, "the service is at 127.0.0.1");
const { context, page } = await newPage({}, expectedErrors);
const device = await context.newCDPSession(page);
await device.send("WebAuthn.enable");
const { authenticatorId } = await device.send("WebAuthn.addVirtualAuthenticator", {
  options: { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true },
});
const stored = async () => (await device.send("WebAuthn.getCredentials", { authenticatorId })).credentials;

// Sign in with the password, and add a passkey.
await page.goto(`${home}/account`);
await page.fill("#email", admin.email);
await page.fill("#password", admin.password);
await waitForLoad(page, () => page.getByRole("button", { name: "Sign in", exact: true }).click());
await page.getByRole("heading", { name: "Passkeys" }).waitFor();
await checkPage(page);
await page.fill("#passkey-password", "not the password");
await waitForLoad(page, () => page.getByRole("button", { name: "Add passkey" }).click());
await page.locator("#passkey-password-fault").waitFor();
await page.fill("#passkey-password", admin.password);
await waitForLoad(page, () => page.getByRole("button", { name: "Add passkey" }).click());
await page.fill("#name", "Laptop");
await checkPage(page);
await waitForLoad(page, () => page.getByRole("button", { name: "Create passkey" }).click());
await page.getByText("Passkey added.").waitFor();
const row = page.locator("tr[data-row]", { hasText: "Laptop" });
check((await row.textContent()).includes("localhost") && (await row.textContent()).includes("never"), "the passkey is listed with its domain");
check((await stored()).length === 1 && (await stored())[0].isResidentCredential, "the authenticator keeps a passkey that names its user");
await checkPage(page);

// A device holds one passkey per account.
await page.fill("#passkey-password", admin.password);
await waitForLoad(page, () => page.getByRole("button", { name: "Add passkey" }).click());
await page.getByRole("button", { name: "Create passkey" }).click();
await page.getByText("This device already has a passkey for your account.").waitFor();
await page.goto(`${home}/account`);

// signOut ends on the sign-in page, where the device waits for its user.
const signOut = async () => {
  await device.send("WebAuthn.setAutomaticPresenceSimulation", { authenticatorId, enabled: false });
  await page.click("button[popovertarget=account]");
  await waitForLoad(page, () => page.locator("form.leave button").click());
  await page.getByRole("button", { name: "Sign in with a passkey" }).waitFor();
};
const press = async () => {
  await device.send("WebAuthn.setAutomaticPresenceSimulation", { authenticatorId, enabled: true });
  await page.getByRole("button", { name: "Sign in with a passkey" }).click();
};

// Sign in with it. Nothing is typed.
await signOut();
await checkPage(page);
let sent;
await page.route("**/sign-in/passkey", async (route) => {
  if (route.request().method() === "POST") {
    sent = { body: route.request().postData(), cookie: (await context.cookies()).map((c) => `${c.name}=${c.value}`).join("; ") };
  }
  await route.continue();
});
await waitForLoad(page, press);
await page.goto(`${home}/account`);
check(!(await page.locator("tr[data-row]", { hasText: "Laptop" }).textContent()).includes("never"), "the passkey was used");
check(!new URLSearchParams(sent.body).has("password"), "no password is sent");

// A sent response works once, even in the same browser.
const again = await (await newPage({}, expectedErrors)).context.request.post(`${home}/sign-in/passkey`, {
  headers: { "Content-Type": "application/x-www-form-urlencoded", Cookie: sent.cookie }, data: sent.body, maxRedirects: 0,
});
check(again.status() === 401 && (await again.text()).includes("The response of the passkey is not valid"), `a replay is refused, got ${again.status()}`);

// A removed passkey is unknown.
const credential = (await stored())[0];
await waitForLoad(page, () => page.locator("tr[data-row]", { hasText: "Laptop" }).getByRole("button").click());
await page.getByText("Removed the passkey Laptop.").waitFor();
check(await page.locator("tr[data-row]", { hasText: "Laptop" }).count() === 0, "it is not listed any more");
await signOut();
check((await stored())[0].credentialId === credential.credentialId, "the authenticator still has it");
await waitForLoad(page, press);
await page.getByText("This passkey is not registered here.").waitFor();
check(page.url() === `${home}/sign-in/passkey`, "and nobody is signed in");

// Without a passkey the browser says so, and the password works.
await device.send("WebAuthn.clearCredentials", { authenticatorId });
await page.waitForLoadState("networkidle"); // requests of the refused sign-in would abort the next page
await page.goto(`${home}/sign-in`);
await page.getByRole("button", { name: "Sign in with a passkey" }).click();
await page.getByText("No passkey was used").waitFor();
await page.fill("#email", admin.email);
await page.fill("#password", admin.password);
await waitForLoad(page, () => page.getByRole("button", { name: "Sign in", exact: true }).click());
await until("signed in", async () => await page.locator("h1").textContent() === "Overview");
await done();
