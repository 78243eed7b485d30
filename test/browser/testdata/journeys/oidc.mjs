// serve --oidc-issuer $PROVIDER --oidc-client-id public --oidc-name Corp --oidc-role groups=staff:viewer --oidc-role groups=ops:operator
// and without JavaScript
// Admins sign in through an OpenID Connect provider. A user without a group gets no role. A viewer
// cannot change anything. The owner can still sign in with the password.
import { admin, base, check, checkPage, done, newPage, signIn, visit, waitForLoad } from "./lib.mjs";

const provider = process.env.PROVIDER;
const setGroups = async (user, ...groups) => {
  const query = new URLSearchParams([["user", `id-${user}`], ...groups.map((g) => ["group", g])]);
  check((await fetch(`${provider}/test/groups?${query}`, { method: "POST" })).ok, "the provider sets groups");
};
const expectedErrors = ["the server responded with a status of 4"]; // the journey requests pages that respond with 4xx
const clickButton = (page, name) => waitForLoad(page, () => page.getByRole("button", { name, exact: true }).first().click());

// logIn fills in the provider's page.
const logIn = async (page, user) => {
  check(page.url().startsWith(`${provider}/login/`), `the page of the provider, got ${page.url()}`);
  await page.fill("#username", user);
  await page.fill("#password", "verysecure");
  await clickButton(page, "Login");
};
const signInThroughProvider = async (page, user) => {
  await waitForLoad(page, () => page.getByRole("link", { name: "Sign in with Corp" }).click());
  await logIn(page, user);
};

const { page: owner } = await signIn({}, expectedErrors); // creates the admin
const { context, page } = await newPage({}, expectedErrors);

// A user without a group gets no role.
await visit(page, "/deliveries", 401);
await checkPage(page);
await signInThroughProvider(page, "ana");
await page.getByRole("heading", { name: "No role for this account" }).waitFor();
await checkPage(page);

// With a group, the browser gets to the requested page. A viewer sees no forms.
await setGroups("ana", "staff");
await visit(page, "/deliveries", 401);
await signInThroughProvider(page, "ana");
check(page.url() === `${base}/deliveries`, `the page that was asked for, got ${page.url()}`);
const cookies = await context.cookies(base);
check(cookies.some((c) => c.name === "__Host-session" && c.httpOnly && c.secure) && !cookies.some((c) => c.name === "__Host-oidc"), "a session, and no flow any more");
await visit(page, "/account");
await page.getByText("Signed in as ana@example.com with the role viewer.").waitFor();
await page.getByText("You sign in with Corp, without a password.").waitFor();
await checkPage(page);
await visit(page, "/subscriptions");
check(await page.locator("main form[method=post]").count() === 0, "a viewer has no form");
await visit(page, "/subscriptions/new", 403);
await page.getByText("Your role does not allow this").waitFor();
await page.goBack(); // the response with the code is not in the history, and would not work again

// The page Admins says how ana signs in.
await visit(owner, "/admins");
check((await owner.locator("tr[data-row]", { hasText: "ana@example.com" }).textContent()).includes("OpenID Connect"), "ana signs in with OpenID Connect");

// The owner can still sign in with the password.
const { page: back } = await newPage({}, expectedErrors);
await visit(back, "/admins", 401);
await back.fill("#email", admin.email);
await back.fill("#password", admin.password);
await clickButton(back, "Sign in");
check(back.url() === `${base}/admins`, `signed in with the password, got ${back.url()}`);
await done();
