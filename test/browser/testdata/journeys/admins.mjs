// serve
// and without JavaScript
// An owner invites a viewer, changes that admin's role, ends the sessions and removes the admin. A
// new role applies to the next request of a signed-in browser. No page offers an action that the
// role does not allow.
import { admin, base, check, done, waitForLoad, newPage, checkPage, javaScript, signIn, visit } from "./lib.mjs";

const expectedErrors = ["the server responded with a status of 4"]; // the journey requests pages that respond with 4xx
const { page: owner } = await signIn({}, expectedErrors);
const password = "another horse battery staple";

// clickButton clicks a button and waits for the next page.
const clickButton = (page, name) => waitForLoad(page, () => page.getByRole("button", { name, exact: true }).first().click());

// The link of an invitation is shown once.
await visit(owner, "/admins");
await checkPage(owner);
await waitForLoad(owner, () => owner.getByRole("link", { name: "Invite admin" }).click());
await checkPage(owner);
await owner.fill("#email", "bo@example.com");
check(await owner.locator("#role").inputValue() === "viewer", "viewer is preselected");
await clickButton(owner, "Create invitation");
const invitationLink = new URL(await owner.getByLabel("Link", { exact: true }).textContent());
check(invitationLink.origin === base && /^\/invitation\/[\w-]{43}$/.test(invitationLink.pathname), `the link of an invitation, got ${invitationLink}`);
check(await owner.getByRole("button", { name: "Copy the link" }).count() === (javaScript ? 1 : 0), "a button copies the link, with JavaScript only");
await checkPage(owner);
await visit(owner, "/admins");
check(!(await owner.content()).includes(invitationLink.pathname), "the link is shown once");
check(await owner.getByText("bo@example.com").first().isVisible(), "the invitation is in the list");
await checkPage(owner);

// Requesting the link, as a chat's preview does, does not use it up.
const { page: bo } = await newPage({}, expectedErrors);
for (let n = 0; n < 3; n++) check((await bo.request.get(invitationLink.href)).status() === 200, "the link still works");
await visit(bo, invitationLink.pathname);
check(!(await bo.content()).includes("bo@example.com"), "the first page does not show the address");
await checkPage(bo);
await clickButton(bo, "Continue");
check(await bo.getByText("bo@example.com").first().isVisible(), "the form shows the address of the invitation");
await checkPage(bo);
await bo.fill("#password", password);
await bo.fill("#again", `${password}!`);
await clickButton(bo, "Create admin and sign in");
await checkPage(bo);
await bo.fill("#password", password);
await bo.fill("#again", password);
await clickButton(bo, "Create admin and sign in");
check(new URL(bo.url()).pathname === "/", `the overview after signing in, got ${bo.url()}`);
const visitor = (await newPage({}, expectedErrors)).page;
await visit(visitor, invitationLink.pathname, 404);
await checkPage(visitor);

// No page offers a viewer a form that changes something, and a direct request responds with 403.
for (const to of ["/", "/subscriptions", "/deliveries", "/events", "/event-types/content_published", "/tokens", "/alerts", "/admins", "/audit", "/system"]) {
  await visit(bo, to);
  const forms = await bo.locator("main form[method=post]").evaluateAll((all) => all.map((f) => f.getAttribute("action")));
  check(forms.length === 0, `${to} has no form for a viewer, got ${forms}`);
}
check(await bo.getByRole("link", { name: "Invite admin" }).count() === 0, "a viewer cannot invite admins");
await visit(bo, "/tokens/new", 403);
check(await bo.getByText("This needs the role owner. You are signed in as bo@example.com with the role viewer.").isVisible(), "the page names the role that is needed");
await checkPage(bo);

// A new role applies immediately.
await visit(owner, "/admins");
await waitForLoad(owner, () => owner.getByRole("link", { name: "bo@example.com" }).click());
const adminPath = new URL(owner.url()).pathname;
await checkPage(owner);
await owner.selectOption("#role", "operator");
await clickButton(owner, "Change role");
check(await owner.getByText("bo@example.com now has the role operator.").isVisible(), "the page confirms the new role");
await visit(bo, "/events/publish");
await visit(bo, "/tokens/new", 403);
await visit(bo, "/account");
check(await bo.getByText("with the role operator").isVisible(), "the account page shows the new role");

// The last owner cannot be removed.
await visit(owner, "/admins");
await waitForLoad(owner, () => owner.getByRole("link", { name: admin.email }).click());
check(await owner.getByText("is the last owner").isVisible(), "the page says that this is the last owner");
check(await owner.getByRole("link", { name: "Remove" }).count() === 0, "no link removes the last owner");
await visit(owner, `${new URL(owner.url()).pathname}/remove`);
await checkPage(owner);

// An owner ends the sessions of another admin, then removes the admin.
await visit(owner, adminPath);
await clickButton(owner, "End all sessions");
check(await owner.getByText("Ended 1 session of bo@example.com.").isVisible(), "the page confirms the end of the session");
await visit(bo, "/", 401);
await waitForLoad(owner, () => owner.getByRole("link", { name: "Remove" }).click());
await checkPage(owner);
await clickButton(owner, "Remove admin");
check(await owner.getByText("Removed bo@example.com.").isVisible(), "the page confirms the removal");
await bo.fill("#email", "bo@example.com");
await bo.fill("#password", password);
await clickButton(bo, "Sign in");
check(await bo.getByText("Wrong email or password.").isVisible(), "a removed admin cannot sign in");
await visit(owner, "/audit");
for (const action of ["Invite admin", "Change role of admin", "Sign out", "Remove admin"]) check(await owner.locator("[data-row]", { hasText: action }).count() > 0, `${action} is in the audit log`);
await done();
